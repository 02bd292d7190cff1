package kafka

import (
	"errors"
	"net"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/accept"
	"github.com/weir-go/weir/policy"
)

// enter lets a new connection in by the quota of its address, before anything is read of it. Where the gate has a queue it waits there,
// if not it is reset. Brokers hold one that is too many as well, but only to close it then (KIP-612). Here it is served when its turn comes:
// a client that has connected waits, and one that was turned away comes back at once.
func (r *relay) enter() error {
	g := r.server.opts.Quotas().Connections
	if g == nil {
		return nil
	}
	host, _, _ := net.SplitHostPort(r.raw.RemoteAddr().String())
	turn := make(chan error, 1)
	p, waiter, err := g.Arrive(weir.Work{User: policy.PeerName(host)}, func(p weir.Permit, err error) {
		p.Done(weir.OK)                            // of what it has let in a quota knows no more
		_ = r.raw.SetReadDeadline(time.Unix(1, 0)) // it wakes who waits
		turn <- err
	})
	p.Done(weir.OK)
	if errors.Is(err, weir.ErrWaiting) {
		err = r.awaitTurn(waiter, turn)
	}
	if weir.AsRejection(err) != nil {
		accept.Reset(r.raw)
	}
	return err
}

// awaitTurn waits for the answer of a gate. It ends early if the client goes, or is let go: nothing is in flight yet.
func (r *relay) awaitTurn(waiter weir.Waiter, turn <-chan error) (err error) {
	waits := true
	if gone := awaitGone(r.raw); errors.Is(gone, errors.ErrUnsupported) {
		select {
		case err = <-turn:
			waits = false
		case <-r.ctx.Done():
		}
	}
	if waits && waiter.Cancel() {
		return net.ErrClosed
	} else if waits {
		err = <-turn // which has come, or is about to
	}
	if err == nil {
		err = r.raw.SetReadDeadline(time.Time{})
	}
	if err == nil && r.leaving() {
		err = net.ErrClosed // or the deadline of drain would be lost
	}
	return err
}
