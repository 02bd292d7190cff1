package kafka

import (
	"encoding/binary"
	"errors"
	"math"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/policy"
)

// Quotas are the gates that count what clients of a cluster use. A client with a debt is delayed, as by brokers (KIP-13, KIP-219). The
// answer says for how long, and meanwhile no request of the connection is read. Only mutations are refused, and only to clients that know
// the error (KIP-599).
type Quotas struct {
	// Produce counts the bytes of requests to produce, Fetch those of answers to fetch, and Mutations the partitions that are created and
	// deleted. Connections counts new connections by address, before their first byte. nil counts nothing.
	Produce, Fetch, Mutations, Connections *policy.Gate
	// NoAutoCreate forbids brokers to create a topic because a client asks for its metadata. Otherwise such a topic counts as a mutation.
	NoAutoCreate bool
	// Longest bounds a delay. The rest of the debt stays.
	Longest time.Duration
	// Samples and Window determine the burst of a quota that a client sets, as do quota.window.num and quota.window.size.seconds of a
	// broker.
	Samples int
	Window  time.Duration
}

// Charge is a charge of a quota, or a wait that a client was told because of it.
type Charge struct {
	Quota              string // produce, fetch or mutations
	Gate, Rule, Bucket string
	User, Client       string
	// Cost is how many bytes or partitions were charged. For the wait of several topics it is 0, because each topic had a Charge before.
	Cost int64
	// Wait is the throttle time for the client, 0 if there is no debt.
	Wait time.Duration
}

// throttles counts delays by a quota.
type throttles struct {
	quota               string // produce, fetch or mutations
	times, milliseconds atomic.Uint64
}

// Throttled is how often, and for how long in total, a quota has told clients to wait.
type Throttled struct {
	Times   uint64  `json:"times"`
	Seconds float64 `json:"seconds"`
}

func (t *throttles) snapshot() Throttled {
	return Throttled{t.times.Load(), float64(t.milliseconds.Load()) / 1000}
}

// note reports a charge, and mutes the connection for its wait, but at most for longest. It returns when the wait ends.
func (r *relay) note(t *throttles, c Charge, longest time.Duration) (until time.Time) {
	c.Quota = t.quota
	if c.Wait > 0 {
		t.times.Add(1)
		t.milliseconds.Add(uint64(inMillis(c.Wait)))
		until = r.mute(t, c.Client, min(c.Wait, longest)).Add(max(c.Wait-longest, 0))
	}
	if hook := r.server.opts.Charged; hook != nil && (c.Cost > 0 || c.Wait > 0) {
		hook(c)
	}
	return until
}

// mute stops the reading of requests of the client for the wait.
func (r *relay) mute(t *throttles, client string, wait time.Duration) time.Time {
	until := time.Now().Add(wait)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state.mute(mute{until, t.quota, clipped(client)})
	return until
}

// clipped returns at most 100 bytes of a client id, because clients choose its length.
func clipped(s string) string {
	const most = 100
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "..."
}

// work is the work for a quota: n bytes or partitions of the present client. If the client's name is unknown, User is empty, so only rules
// for every user or without a user match.
func (r *relay) work(req *request, n int64) weir.Work {
	r.mu.Lock()
	defer r.mu.Unlock()
	return weir.Work{User: r.state.login.principal().name, Client: req.client, Cost: n}
}

// charge charges a request for n bytes, of the request or of its answer. It mutes the connection until the debt is paid back, as far as the
// gateway knows, because charge waits for no store. To refund the bytes, cancel the permit.
func (r *relay) charge(g *policy.Gate, p *pending, n int, t *throttles) weir.Permit {
	if g == nil || n == 0 {
		return weir.Permit{}
	}
	w := r.work(&p.request, int64(n))
	permit, a, err := g.AdmitAhead(r.ctx, w)
	longest := r.server.opts.Quotas().Longest
	c := Charge{Gate: g.Name(), Rule: a.Rule, Bucket: a.Key, User: w.User, Client: w.Client, Cost: a.Cost, Wait: a.Wait}
	if refused := weir.AsRejection(err); refused != nil {
		c.Cost = 0
		switch refused.Reason {
		case weir.ReasonStore:
			c.Wait = refused.RetryAfter
		case weir.ReasonBlocked:
			c.Wait = longest
		} // otherwise the connection ends, or a reload has just replaced the gate
	}
	c.Wait = min(c.Wait, longest)
	p.rule, p.bucket, p.until = c.Rule, c.Bucket, r.note(t, c, longest)
	return permit
}

// owed returns until when the client of a charged request must wait, when the broker has answered the request. By then a remote store has
// answered, too, and others may have charged the same bucket.
func (r *relay) owed(g *policy.Gate, p *pending, t *throttles) time.Time {
	if g == nil || !g.IsDistant() {
		return p.until
	}
	w, longest := r.work(&p.request, 1), r.server.opts.Quotas().Longest
	wait := min(g.Owed(w), longest)
	if wait <= 0 || !time.Now().Add(wait).After(p.until) {
		return p.until
	}
	if !p.until.IsZero() {
		return r.mute(t, w.Client, wait) // the delay was counted before
	}
	return r.note(t, Charge{Gate: g.Name(), Rule: p.rule, Bucket: p.bucket, User: w.User, Client: w.Client, Wait: wait}, longest)
}

// leastFetch is the smallest value to which max_bytes of a fetch is lowered, and mostShareFetch the largest one of a ShareFetch. Brokers
// still send a larger batch.
const (
	leastFetch     = 1 << 20
	mostShareFetch = 4 << 20
)

// lower lowers max_bytes of a fetch to the tokens of a full bucket of its quota. A larger answer would always make a debt. An answer to
// ShareFetch is held in memory, so several must have room at a time, whatever the quota. A remote store is asked for the state of the
// bucket while the broker works, because the throttle time is in the answer's first bytes.
func (r *relay) lower(g *policy.Gate, req *request, frame []byte) {
	if req.key == keyShareFetch {
		req.lower(frame, mostShareFetch)
	}
	if g == nil || g.Mode() != policy.Enforce {
		return
	}
	if g.IsDistant() {
		_ = g.Owed(r.work(req, 1))
	}
	matched := g.Quota().Explain(r.work(req, 0))
	if len(matched) == 0 {
		return
	}
	for _, w := range matched[0].Windows {
		req.lower(frame, max(w.Burst, leastFetch))
	}
}

// mostTold is the longest wait that an answer can express, some 24.8 days.
const mostTold = math.MaxInt32 * time.Millisecond

// throttleOf is the throttle time in milliseconds of an answer that is sent now, for a wait that ends at until.
func throttleOf(until, now time.Time) int32 { return inMillis(until.Sub(now)) }

// inMillis rounds a wait up to the milliseconds of an answer.
func inMillis(wait time.Duration) int32 {
	wait = min(max(wait, 0), mostTold)
	return int32((wait + time.Millisecond - 1) / time.Millisecond)
}

// raise sets the throttle time of a decoded answer to the longer of the broker's and ours.
func raise(resp kmsg.Response, ms int32) {
	told, ok := resp.(kmsg.ThrottleResponse)
	set, can := resp.(kmsg.SetThrottleResponse)
	if !ok || !can {
		return
	}
	if was, _ := told.Throttle(); was < ms {
		set.SetThrottle(ms)
	}
}

// raiseFetch does the same in the first bytes of an answer to fetch, after the size of its frame.
func raiseFetch(b []byte, version int16, ms int32) error {
	in := reader{b: b}
	in.int32() // the correlation id
	if version >= firstFlexibleFetch {
		in.tags()
	}
	at := in.at
	if was := in.int32(); in.short {
		return endErrorf("an answer to Fetch ends within its header")
	} else if was < ms {
		binary.BigEndian.PutUint32(b[at:], uint32(ms))
	}
	return nil
}

// unmuted waits until requests of the client may be read again. Meanwhile it only checks whether the client has left. While the connection
// is drained it does not wait, because a request has begun.
func (r *relay) unmuted() error {
	for {
		r.mu.Lock()
		wait, leaving, closed := r.state.mutedFor(time.Now()), r.state.leaving, r.closed
		r.mu.Unlock()
		switch {
		case closed:
			return net.ErrClosed
		case leaving:
			return r.whole()
		case wait <= 0:
			return nil
		}
		if err := r.raw.SetReadDeadline(time.Now().Add(wait)); err != nil {
			return err
		}
		if r.leaving() {
			continue // otherwise the deadline of drain would be lost
		}
		err := awaitGone(r.raw)
		if errors.Is(err, errors.ErrUnsupported) {
			select {
			case <-time.After(wait):
			case <-r.staying.Done():
			}
		} else if !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
		if err := r.raw.SetReadDeadline(time.Time{}); err != nil {
			return err
		}
	}
}
