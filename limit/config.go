package limit

import (
	"fmt"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/internal/gate"
	"github.com/weir-go/weir/internal/room"
)

// Config configures a [Limiter]. The zero value finds the limit by itself. Everything but
// Name and Now can be changed later with [Limiter.Reconfigure].
type Config struct {
	// Name is the gate's name in rejections, metrics and logs.
	Name string

	// Limit is the number of slots, from 1 to [MaxLimit]. Leave it 0 if a controller
	// is to find out.
	Limit int64
	// Controller sets the limit while the limiter runs. nil means
	// control.Fixed(Limit), or [control.Default] if Limit is 0 as well. A controller
	// belongs to one limiter.
	Controller control.Controller

	// Signals are read at the end of each window and shown to the controller.
	// nil means none. Fixed ignores them; [control.Capped] heeds them.
	Signals control.Source

	// Queue is the wait room.
	Queue Queue

	// Exempt is the most work marked [weir.Work.Exempt] at once. Beyond it such
	// work is refused with [weir.ReasonLimit]. So an endless watch, or a flood
	// that calls itself exempt, stays bounded. 0 means [DefaultExempt]. With a
	// negative value nothing is exempt: work so marked is like any other.
	Exempt int64

	// RefuseOversize refuses work whose cost exceeds the limit with
	// [weir.ReasonTooLarge], at once. Without it such work is charged the whole
	// limit and runs alone. In either case the limit may shrink below the cost of
	// work that is already waiting. Such work runs alone, so it is never stuck.
	RefuseOversize bool

	// Hooks are called as things happen. Any hook, and any controller that moves the
	// limit, makes every admission go through the limiter's lock.
	Hooks weir.Hooks

	// FindLeaks records the call site of every admission. It reports permits
	// dropped without Done, once the garbage collector has found them, and
	// gives their slots back. A debug option: it costs an allocation and a
	// stack walk a permit. Leave it off in a bubble of testing/synctest. The
	// collector gives slots back from outside of the bubble, which ends the process
	// if work waits.
	FindLeaks bool

	// Now replaces the clock, for virtual time. It returns the time since the
	// limiter's epoch. For a Work.Deadline, the epoch stands for
	// [weir.VirtualEpoch]. With it set the limiter starts no timer; whoever owns the
	// clock calls [Limiter.Step] when [Limiter.Next] says so. Leave it nil
	// outside simulators.
	Now func() time.Duration
}

// MaxLimit is the largest limit. It is far beyond what one process serves, and
// keeps slot numbers in 32 bits.
const MaxLimit = gate.MaxLimit

// DefaultExempt is the most exempt work at once where Config.Exempt is 0. It is
// far above what health checks and operators need. It still bounds a program
// that marks too much as exempt.
const DefaultExempt = gate.DefaultExempt

// compile returns the controller to use, or an error that names every setting out
// of range.
func (c *Config) compile() (control.Controller, error) {
	var f fault.List
	byDefault := c.Controller == nil && c.Limit == 0
	if !byDefault {
		gate.CheckLimit(&f, c.Limit, c.Controller)
	}
	gate.CheckExempt(&f, c.Exempt)
	q := &c.Queue
	gate.CheckQueue(&f, q.Order, q.Shares, q.Weights.Users, q.Weights.Tenants)
	if err := f.Err(fmt.Sprintf("limit: gate %q", c.Name)); err != nil {
		return nil, err
	}
	if byDefault {
		return control.Default(), nil
	}
	return gate.ControllerOr(c.Controller, c.Limit), nil
}

// Queue is the wait room of a limiter: where work waits for a slot.
//
// Work waits only where waiting helps. The limiter estimates waits once it knows
// how fast slots come back. It refuses work on arrival that would have to wait
// longer than it may. It also refuses work that would have less than the median
// service time left before its deadline. A waiter leaves when no more than that
// is left. The first in line is never refused on arrival by an estimate, and nothing
// is refused by an estimate before there is one.
type Queue struct {
	// Len bounds the work that waits. 0 means [DefaultQueueLen]; a negative
	// value means that nothing ever waits.
	Len int
	// MaxWait bounds the time spent waiting. 0 means [DefaultMaxWait], and
	// [weir.NoWait] that nothing ever waits. Any other negative value leaves only
	// the work's own bounds: its deadline, its MaxWait, its context.
	MaxWait time.Duration
	// Order says who goes first among those of one priority, user and tenant.
	// Default Adaptive.
	Order Order

	// Shares guarantee a priority a part of what is served while it has work
	// waiting, and the same part of the places to wait. Each is from 0 to 1, and
	// together they are no more than 1. Default none: priorities are strict, and a
	// higher one may starve a lower one.
	Shares map[weir.Priority]float64
	// Weights divide what a priority is served among its users, and what a user
	// is served among the user's tenants. They count while there is work
	// waiting.
	Weights Weights
	// ByTime makes the shares of users and tenants parts of the time that slots are
	// held. Work is charged its cost times its service time over the median. The
	// charge at the start is a forecast from the tenant's last work. When the work is
	// done, the real time replaces it. So a tenant whose requests take ten times as
	// long gets a tenth as many. Leave it off if work may be slow through no fault of
	// the tenant, for instance with a shard or a dependency for each.
	ByTime bool
}

// Weights say who gets how much more than others. The default is 1, also for work
// without a name. A weight is from [MinWeight] to [MaxWeight].
type Weights struct {
	// Users are the weights by [weir.Work.User].
	Users map[string]float64
	// Tenants are the weights by [weir.Work.Tenant] among the tenants of one
	// user.
	Tenants map[string]float64
}

// The bounds of a weight: 0.001 and 1,000.
const (
	MinWeight = gate.MinWeight
	MaxWeight = gate.MaxWeight
)

// Defaults of the wait room. The length bounds memory more than waiting, which
// is bounded by time. It holds a burst of half a second at 2,000 requests a
// second. Besides its goroutine, a waiter takes about 400 bytes.
const (
	DefaultQueueLen = 1024
	DefaultMaxWait  = 2 * time.Second
)

// Order is the order in which waiting work is served.
type Order = room.Order

// The orders.
const (
	// Adaptive serves the oldest first, so that a burst is served in order.
	// While a standing queue is too long, it serves the newest first, because
	// then the oldest are the least likely to be answered in time. See the
	// package's documentation for what a standing queue is, and for who leaves
	// the room then.
	Adaptive = room.Adaptive
	// FIFO serves the oldest first. When the room is full, newcomers are
	// refused. Under a lasting overload all work waits as long as it may.
	FIFO = room.FIFO
	// LIFO serves the newest first. When the room is full, the oldest is
	// refused in favour of the newcomer. Those that remain may wait until they
	// expire, so use it only where late answers are worthless.
	LIFO = room.LIFO
	// EDF serves the earliest deadline first, and last those without one, oldest
	// first. When the room is full, newcomers are refused. An early deadline is an
	// advantage here, so use it only where deadlines come from somebody you trust.
	EDF = room.EDF
)
