package kafka

import "time"

// connection is what is known of a client's connection: which answers it waits for, who it is, and until when it is not listened to. It
// has no socket, no lock and no clock. A [relay] has them.
type connection struct {
	pending []pending // in the order of the requests
	kept    int       // bytes of others' choice in them
	writing bool      // somebody writes answers of the gateway's own
	login   login
	muted   mute
	leaving bool // no further request is read
}

// mute is why no request is read, and until when. The zero value is none.
type mute struct {
	until  time.Time
	quota  string // produce, fetch or mutations
	client string // the client id of the request that made it
}

// pending is an answer that a client waits for. One with bytes of its own is not the broker's.
type pending struct {
	request
	own   []byte
	share *share    // of the memory for answers
	step  step      // of a login
	until time.Time // what the request has been charged is paid back then; zero: it owes nothing

	rule, bucket string // it was charged by and to; empty: it was not

	question *question // the gateway's own; the answer is not the client's
	mutation *mutation // that a quota has counted; nil: none
	makes    bool      // it asks for metadata, and the broker may make topics that are counted
}

// kept is how many bytes of others' choice are kept until the answer.
func (p *pending) kept() int {
	return len(p.client) + len(p.own) + len(p.step.user.name) + len(p.rule) + len(p.bucket)
}

const (
	// mostPending bounds the requests of a connection that have no answer yet. More are read when there is room.
	mostPending = 4096
	// mostKept bounds the bytes that are kept of them: a client id may have 32 KiB. All connections together keep as much times their number.
	mostKept = 64 << 10
)

// full reports whether no further request may be read now.
func (c *connection) full() bool { return len(c.pending) >= mostPending || c.kept >= mostKept }

// expect notes that an answer is to come, behind all others.
func (c *connection) expect(p pending) {
	c.pending = append(c.pending, p)
	c.kept += p.kept()
}

// firstOwn returns the next answer if it is the gateway's own and nobody writes those. Then the caller does, until nextOwn
// returns nil. The goroutine of requests asks after each own answer, that of answers after each of the broker's; so one of them writes.
func (c *connection) firstOwn() []byte {
	if c.writing || len(c.pending) == 0 || c.pending[0].own == nil {
		return nil
	}
	c.writing = true
	return c.pending[0].own
}

// nextOwn is told that an own answer has been written, and returns the one behind it, nil if that is not the gateway's.
func (c *connection) nextOwn() []byte {
	c.answered()
	c.writing = false
	return c.firstOwn()
}

// answers returns the request that the broker's next answer belongs to. Its correlation id has to be that of the request.
func (c *connection) answers(id int32) (pending, error) {
	if len(c.pending) == 0 || c.pending[0].own != nil || c.pending[0].correlation != id {
		return pending{}, endErrorf("the broker answers request %d, and no such request is next", id)
	}
	return c.pending[0], nil
}

// answered is told that the first answer has been written.
func (c *connection) answered() {
	c.kept -= c.pending[0].kept()
	c.pending[0].share.leave()
	c.pending[0] = pending{} // or it would keep its bytes
	c.pending = c.pending[1:]
}

// mute lets no request be read for as long as m says. The longest counts.
func (c *connection) mute(m mute) {
	if m.until.After(c.muted.until) {
		c.muted = m
	}
}

// mutedFor returns for how long no request is to be read. A connection that is let go has no time for that: its request has begun. Neither
// has a login that is under way: it would not end in time. What comes behind it waits.
func (c *connection) mutedFor(now time.Time) time.Duration {
	if c.leaving || c.login.underway {
		return 0
	}
	return max(c.muted.until.Sub(now), 0)
}

// leave lets no further request be read.
func (c *connection) leave() { c.leaving = true }

// over reports whether the connection is let go, and nothing is in flight.
func (c *connection) over() bool { return c.leaving && len(c.pending) == 0 }
