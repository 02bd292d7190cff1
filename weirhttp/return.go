package weirhttp

import (
	"context"

	"github.com/weir-go/weir"
)

// AttachFrom is [Request.Attach] for a permit that g granted. [Request.Return]
// then asks g for another in its place. A nil g is that of a permit nobody can be
// asked for again.
func (q *Request) AttachFrom(g weir.Gate, p weir.Permit) {
	if q == nil {
		return
	}
	q.mu.Lock()
	late := q.moved || q.ended
	if !late {
		if q.owners == nil {
			q.owners = q.firstOwner[:0]
		}
		q.permits, q.owners = append(q.permits, p), append(q.owners, g)
	}
	q.mu.Unlock()
	if late {
		p.Done(weir.NoSample)
	}
}

// Return takes back what [Request.Stream] gave away: w is admitted once more, by
// the request's gate and then by the gates given to [Request.AttachFrom], and the
// place among the streams is left for the new permits. It waits as long as
// those gates let w wait, or until ctx ends.
//
// A proxy calls Stream for a request whose body comes too slowly to keep a slot
// for it, and Return before it passes the end of the body on: up to then it is
// the client that takes its time, from then on the backend works.
//
// The error carries a [*weir.Rejection]. The request is a stream still, and the
// backend must not be given the rest of the work. There is nothing to take back,
// and nil is returned at once, if the request holds its slot, if it was ever
// sampled (the backend has answered), or if it has ended or was detached.
func (q *Request) Return(ctx context.Context, w weir.Work) error {
	if q == nil {
		return nil
	}
	q.mu.Lock()
	if !q.away() || q.returning {
		q.mu.Unlock()
		return nil
	}
	q.returning = true
	owners := q.owners
	q.mu.Unlock()
	permits, err := readmit(ctx, w, q.ctx.gate, owners)

	q.mu.Lock()
	q.returning = false
	back := err == nil && q.away()
	if back {
		q.moved, q.permits = false, permits
	}
	q.mu.Unlock()
	switch {
	case back:
		q.streams.leave()
	case err == nil: // the backend has answered meanwhile, or all is over
		permits.cancel()
	}
	return err
}

// away reports whether the request has a place among the streams and the backend
// has not answered it. q.mu is held.
func (q *Request) away() bool { return q.moved && !q.sampled && !q.ended && !q.detached }

// keepLive leaves of the owners those whose permits are held: the others were
// given back before, as a target is that was tried in vain. q.mu is held.
func (q *Request) keepLive() {
	live := q.owners[:0]
	for i, g := range q.owners {
		// The zero permit is that of a gate which lets everything through.
		if p := q.permits[i+1]; g != nil && (p == weir.Permit{} || p.Live()) {
			live = append(live, g)
		}
	}
	q.owners = live
}

// readmit asks every gate for a permit: all of them, or none.
func readmit(ctx context.Context, w weir.Work, gate weir.Gate, owners []weir.Gate) (Permits, error) {
	permits := make(Permits, 0, 1+len(owners))
	for i := range cap(permits) {
		g := gate
		if i > 0 {
			g = owners[i-1]
		}
		p, err := g.Admit(ctx, w)
		if err != nil {
			permits.cancel()
			if weir.AsRejection(err) == nil {
				err = foreign(err)
			}
			return nil, err
		}
		permits = append(permits, p)
	}
	return permits, nil
}

// cancel takes permits back as if they had never been granted.
func (ps Permits) cancel() {
	for i := len(ps) - 1; i >= 0; i-- {
		ps[i].Cancel()
	}
}
