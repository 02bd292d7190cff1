package limit

import (
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
)

// Config configures a [Limiter]. Everything but Name can be changed later with
// [Limiter.Reconfigure].
type Config struct {
	// Name is the gate's name in rejections, metrics and logs.
	Name string

	// Limit is the number of slots if Controller is nil. At least 1.
	Limit int64
	// Controller sets the limit while the limiter runs. nil means
	// control.Fixed(Limit). A controller belongs to one limiter.
	Controller control.Controller

	// Queue is the wait room.
	Queue Queue

	// Hooks are told what happens.
	Hooks weir.Hooks

	// FindLeaks records the call site of every admission and reports permits
	// that were dropped without Done, once the garbage collector has found
	// them. A debug option: it costs an allocation and a stack walk a permit.
	FindLeaks bool

	// Now replaces the clock, for virtual time: it returns the time since the
	// limiter's epoch. With it set the limiter starts no timer; whoever owns
	// the clock calls [Limiter.Step] when [Limiter.Next] says so. Leave it nil
	// outside simulators.
	Now func() time.Duration
}

// Queue is the wait room of a limiter: where work waits for a slot.
type Queue struct {
	// Len bounds the work that waits. 0 means [DefaultQueueLen]; a negative
	// value means that nothing ever waits.
	Len int
	// MaxWait bounds the time spent waiting. 0 means [DefaultMaxWait]; a
	// negative value leaves only the work's own bounds: its deadline, its
	// MaxWait, its context.
	MaxWait time.Duration
	// Order says who goes first among those that wait. Default FIFO.
	Order Order
}

// Defaults of the wait room.
const (
	DefaultQueueLen = 256
	DefaultMaxWait  = time.Second
)

// Order is the order in which waiting work is served.
type Order uint8

// The orders.
const (
	// FIFO serves the oldest first.
	FIFO Order = iota
	// LIFO serves the newest first. The old ones wait until they expire, so
	// use it only where late answers are worthless.
	LIFO
	// Adaptive serves the oldest first, but the newest first while a standing
	// queue lasts: while the room has not been empty for 100 ms.
	Adaptive
)
