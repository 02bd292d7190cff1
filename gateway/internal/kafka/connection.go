package kafka

import (
	"time"
	"unsafe"
)

// connection is the state of a client's connection: its pending answers, its principal, and until when no request is read. It has no
// socket, no lock and no clock. A [relay] has them.
type connection struct {
	pending []pending // in the order of the requests
	kept    int       // their bytes
	writing bool      // a goroutine writes the gateway's own answers
	login   login
	muted   mute
	leaving bool // no further request is read

	answeredAny bool // an answer has been written, to anything but ApiVersions
}

// mute says why no request is read, and until when. The zero value is no mute.
type mute struct {
	until  time.Time
	quota  string // produce, fetch or mutations
	client string // the client id of the request that made it
}

// pending is an answer for which a client waits. If it has bytes, it is the gateway's own and not the broker's.
type pending struct {
	request
	own   []byte
	share *share    // of the memory for answers
	step  step      // of a login
	until time.Time // when the request's charge is paid back; zero if nothing is owed

	rule, bucket string // of the charge; empty if there is none

	question *question // of the gateway itself; the answer is not for the client
	mutation *mutation // one that a quota has counted, or nil
	makes    bool      // it asks for metadata, and the broker may create topics that are counted
}

// kept is how many bytes are kept until the answer. Clients choose the texts, and how many answers are pending.
func (p *pending) kept() int {
	return int(unsafe.Sizeof(*p)) + len(p.client) + len(p.own) + len(p.step.mechanism) + len(p.step.user.name) + len(p.step.user.token) + len(p.rule) + len(p.bucket)
}

// mostKept bounds the bytes that a connection keeps of requests without an answer: some 280 requests, or two with a client id of 32 KiB.
// The last of them may go beyond it, and further requests are read when there is room. A broker works on one request of a connection at a
// time, so more of them gain nothing.
const mostKept = 64 << 10

// full reports whether no further request may be read now.
func (c *connection) full() bool { return c.kept >= mostKept }

// expect appends a pending answer.
func (c *connection) expect(p pending) {
	c.pending = append(c.pending, p)
	c.kept += p.kept()
}

// firstOwn returns the next answer if it is the gateway's own and no goroutine writes such answers. Then the caller writes them until
// nextOwn returns nil. The goroutine of requests calls firstOwn after each own answer, and that of answers after each answer of the broker.
// So one of them writes.
func (c *connection) firstOwn() []byte {
	if c.writing || len(c.pending) == 0 || c.pending[0].own == nil {
		return nil
	}
	c.writing = true
	return c.pending[0].own
}

// nextOwn removes an own answer that has been written. It returns the next answer if that is the gateway's own, or else nil.
func (c *connection) nextOwn() []byte {
	c.answered()
	c.writing = false
	return c.firstOwn()
}

// requestFor returns the request of the broker's next answer. The correlation ids of both must be equal.
func (c *connection) requestFor(id int32) (pending, error) {
	if len(c.pending) == 0 || c.pending[0].own != nil || c.pending[0].correlation != id {
		return pending{}, endErrorf("the broker answers request %d, which is not the next request", id)
	}
	return c.pending[0], nil
}

// answered removes the first answer, which has been written.
func (c *connection) answered() {
	c.kept -= c.pending[0].kept()
	c.answeredAny = c.answeredAny || c.pending[0].key != keyApiVersions
	c.pending[0].share.free()
	c.pending[0] = pending{} // so that its bytes can be freed
	c.pending = c.pending[1:]
}

// mute stops the reading of requests until m ends. Of several mutes, the longest counts.
func (c *connection) mute(m mute) {
	if m.until.After(c.muted.until) {
		c.muted = m
	}
}

// mutedFor returns for how long no request may be read. It is 0 while the connection is drained, because a request has begun, and during a
// login, which would not end in time. Requests after the login wait.
func (c *connection) mutedFor(now time.Time) time.Duration {
	if c.leaving || c.login.underway {
		return 0
	}
	return max(c.muted.until.Sub(now), 0)
}

// leave stops the reading of requests for good.
func (c *connection) leave() { c.leaving = true }

// over reports whether the connection is drained, and nothing is in flight.
func (c *connection) over() bool { return c.leaving && len(c.pending) == 0 }
