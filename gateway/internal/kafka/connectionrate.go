package kafka

import (
	"errors"
	"net"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/accept"
	"github.com/weir-go/weir/policy"
)

// enter charges a new connection to the quota of its address, before anything is read from it. If the quota is used up, the connection
// waits in the gate's queue, or is reset if there is no queue. Brokers hold such a connection, too, but then they close it (KIP-612). Here
// it is served when its turn comes. A connected client waits, but a client whose connection was closed would come back at once.
func (r *relay) enter() error {
	g := r.server.opts.Quotas().Connections
	if g == nil {
		return nil
	}
	host, _, _ := net.SplitHostPort(r.raw.RemoteAddr().String())
	turn := make(chan error, 1)
	p, waiter, err := g.Arrive(weir.Work{User: policy.PeerName(host)}, func(p weir.Permit, err error) {
		p.Done(weir.OK)                            // a quota does not follow the connection
		_ = r.raw.SetReadDeadline(time.Unix(1, 0)) // it wakes awaitTurn
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

// awaitTurn waits for the answer of a gate. It ends early if the client leaves or the connection is drained: nothing is in flight yet.
func (r *relay) awaitTurn(waiter weir.Waiter, turn <-chan error) (err error) {
	waits := true
	if gone := awaitGone(r.raw); errors.Is(gone, errors.ErrUnsupported) {
		select {
		case err = <-turn:
			waits = false
		case <-r.staying.Done():
		}
	}
	if waits && waiter.Cancel() {
		return net.ErrClosed
	} else if waits {
		err = <-turn // the answer has come, or is about to come
	}
	if err == nil {
		err = r.raw.SetReadDeadline(time.Time{})
	}
	if err == nil && r.leaving() {
		err = net.ErrClosed // otherwise the deadline of drain would be lost
	}
	return err
}
