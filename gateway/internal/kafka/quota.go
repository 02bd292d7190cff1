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

// Quotas are the gates that count what clients of a cluster use up. A client that owes is delayed, as brokers do it (KIP-13,
// KIP-219). Its answer says for how long, and meanwhile no request of its connection is read. Only mutations are refused, to clients
// that know the error (KIP-599).
type Quotas struct {
	// Produce counts the bytes of requests to produce, Fetch those of answers to fetch, Mutations the partitions that are created
	// and deleted. Connections counts new connections by address, before anybody has said anything. nil counts nothing.
	Produce, Fetch, Mutations, Connections *policy.Gate
	// NoAutoCreate lets no topic be made because a client has asked for its metadata. Else it counts as a mutation.
	NoAutoCreate bool
	// Longest bounds a delay. What is owed beyond it stays a debt.
	Longest time.Duration
	// Samples and Window make the burst of a quota that a client sets, as quota.window.num and quota.window.size.seconds of a broker.
	Samples int
	Window  time.Duration
}

// Charge is what a quota has counted, or a wait that a client has been told for it.
type Charge struct {
	Quota              string // produce, fetch or mutations
	Gate, Rule, Bucket string
	User, Client       string
	// Cost is how many bytes or partitions were charged. Of a wait for several topics it is 0: each has been told before.
	Cost int64
	// Wait is what the client is told, 0 if it owes nothing.
	Wait time.Duration
}

// throttles counts delays by a quota.
type throttles struct {
	quota               string // produce, fetch or mutations
	times, milliseconds atomic.Uint64
}

// Throttled is how often, and for how long in all, clients have been told to wait by a quota.
type Throttled struct {
	Times   uint64  `json:"times"`
	Seconds float64 `json:"seconds"`
}

func (t *throttles) snapshot() Throttled {
	return Throttled{t.times.Load(), float64(t.milliseconds.Load()) / 1000}
}

// note takes note of a charge, and mutes the connection for its wait, for longest at most. It returns when the wait is over.
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

// mute lets no request of the client be read for a while.
func (r *relay) mute(t *throttles, client string, wait time.Duration) time.Time {
	until := time.Now().Add(wait)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state.mute(mute{until, t.quota, clipped(client)})
	return until
}

// clipped is a client id, which others chose, as it is kept: at most 100 bytes.
func clipped(s string) string {
	const most = 100
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "..."
}

// work is what a quota counts: n bytes, or partitions, of the client that asks now. Whose name cannot be told has none, so only rules for every user match,
// and those that look at no user.
func (r *relay) work(req *request, n int64) weir.Work {
	r.mu.Lock()
	defer r.mu.Unlock()
	return weir.Work{User: r.state.login.principal().name, Client: req.client, Cost: n}
}

// charge charges a request for n bytes, its own or those of its answer. It notes when the client has paid back what it owes, as far as
// is known here: it waits for no store. Until then no request of the client is read any more. The permit gives the bytes back.
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
		} // else the connection ends, or the gate is one that a reload has just replaced
	}
	c.Wait = min(c.Wait, longest)
	p.rule, p.bucket, p.until = c.Rule, c.Bucket, r.note(t, c, longest)
	return permit
}

// owed is told that the broker has answered a request that was charged, and returns until when its client is to wait. A store
// elsewhere has answered meanwhile, too, and others may have charged the same bucket.
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
		return r.mute(t, w.Client, wait) // it has been counted as one delay
	}
	return r.note(t, Charge{Gate: g.Name(), Rule: p.rule, Bucket: p.bucket, User: w.User, Client: w.Client, Wait: wait}, longest)
}

// leastFetch is the least that max_bytes of a fetch is lowered to. Brokers send a batch that is larger nevertheless.
const leastFetch = 1 << 20

// lower lowers max_bytes of a fetch to what a full bucket of its quota holds. Else the answer would be a debt whatever there was
// before. A store elsewhere is asked what is there while the broker works: the answer says it in its first bytes.
func (r *relay) lower(g *policy.Gate, req *request, frame []byte) {
	if g == nil || g.Mode() != policy.Enforce {
		return
	}
	if g.IsDistant() {
		_ = g.Owed(r.work(req, 1))
	}
	if req.maxBytes == 0 {
		return
	}
	matched := g.Quota().Explain(r.work(req, 0))
	if len(matched) == 0 {
		return
	}
	field := frame[4+req.maxBytes:]
	most := float64(int32(binary.BigEndian.Uint32(field)))
	for _, w := range matched[0].Windows {
		most = min(most, max(w.Burst, leastFetch))
	}
	binary.BigEndian.PutUint32(field, uint32(int32(most)))
}

// mostTold is the longest wait that an answer can say, some 24.8 days.
const mostTold = math.MaxInt32 * time.Millisecond

// throttleOf is what an answer says at a time, in milliseconds, of a wait that ends at another.
func throttleOf(until, now time.Time) int32 { return inMillis(until.Sub(now)) }

// inMillis rounds a wait up to milliseconds, as an answer says it.
func inMillis(wait time.Duration) int32 {
	wait = min(max(wait, 0), mostTold)
	return int32((wait + time.Millisecond - 1) / time.Millisecond)
}

// raise lets a decoded answer say the longer of two waits: the broker's and ours.
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

// raiseFetch does the same in the first bytes of an answer to fetch, behind the size of its frame.
func raiseFetch(b []byte, version int16, ms int32) error {
	in := reader{b: b, at: 4}
	if version >= firstFlexibleFetch {
		in.tags()
	}
	at := in.at
	if was := in.int32(); in.short {
		return endErrorf("an answer to Fetch ends in its header")
	} else if was < ms {
		binary.BigEndian.PutUint32(b[at:], uint32(ms))
	}
	return nil
}

// unmuted waits until requests of the client are read again. Meanwhile nothing is read, except to see that the client has gone. A
// connection that is let go waits no longer: its request has begun.
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
			continue // or the deadline of drain would be lost
		}
		err := awaitGone(r.raw)
		if errors.Is(err, errors.ErrUnsupported) {
			select {
			case <-time.After(wait):
			case <-r.ctx.Done():
			}
		} else if !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
		if err := r.raw.SetReadDeadline(time.Time{}); err != nil {
			return err
		}
	}
}
