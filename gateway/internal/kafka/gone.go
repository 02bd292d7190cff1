package kafka

import "time"

// lookEvery is how often a connection is checked for a side that has gone. If one has, the connection ends after a number of further checks
// between which the other side has received nothing.
const lookEvery = 10 * time.Second

// clientGone is that number if the client has gone, and brokerGone if the broker has. A broker that delays a client by its own quota reads
// nothing for a while. The last records of a producer with acks=0 wait for that.
const clientGone, brokerGone = 12, 1

// departure is what a check has found of a side. The zero value is a side that is there.
type departure struct {
	gone     bool
	received uint64 // by the other side so far, in bytes
}

// absence is what the checks so far have found of a side.
type absence struct {
	last   departure
	checks int // in a row that found the side gone, and that the other one has received nothing since the check before
}

// note notes what a check finds, and returns the number of checks.
func (a *absence) note(found departure) int {
	if a.checks++; !found.gone || a.last != found {
		a.last, a.checks = found, 0
	}
	return a.checks
}

// look ends the connection if one side has gone and what it has sent does not reach the other. While a goroutine waits for one side to read,
// or for memory, nobody reads from the other side, and so nobody sees its end.
func (r *relay) look() {
	every := r.server.lookEvery
	var why error
	if r.sides.client.note(departureOf(r.raw, r.broker)) >= clientGone {
		why = endErrorf("the client has closed its connection, and the broker has received nothing for %v; the rest of what the client has sent is lost", clientGone*every)
	}
	if r.sides.broker.note(departureOf(r.broker, r.raw)) >= brokerGone {
		why = endErrorf("the broker has closed its connection, and the client has received nothing for %v", brokerGone*every)
	}
	if why != nil {
		r.logEnd(why)
		r.close()
		return
	}
	r.lookLater()
}

// lookLater starts the time to the next check, if checks can find anything.
func (r *relay) lookLater() {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed || !canLook:
	case r.sides.next == nil:
		r.sides.next = time.AfterFunc(r.server.lookEvery, r.look)
	default:
		r.sides.next.Reset(r.server.lookEvery)
	}
}
