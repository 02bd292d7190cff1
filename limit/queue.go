package limit

import (
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/room"
	"github.com/weir-go/weir/internal/waiting"
)

// Queue is the wait room of a limiter: where work waits for a slot.
//
// Work waits only where waiting helps. Once the limiter knows how fast slots come
// back, it refuses on arrival what would have to wait longer than it may, or
// would have less than the median service time left before its deadline; and who
// waits leaves when no more than that is left. Neither holds for the first in
// line, and nothing is refused by an estimate before there is one.
type Queue struct {
	// Len bounds the work that waits. 0 means [DefaultQueueLen]; a negative
	// value means that nothing ever waits.
	Len int
	// MaxWait bounds the time spent waiting. 0 means [DefaultMaxWait]; a
	// negative value leaves only the work's own bounds: its deadline, its
	// MaxWait, its context.
	MaxWait time.Duration
	// Order says who goes first among those of one priority, user and tenant.
	// Default Adaptive.
	Order Order

	// Shares are the parts of what is served that a priority gets at least while
	// it has work waiting, and of the places to wait; from 0 to 1, and together no
	// more than 1. Default none: priorities are strict, and a higher one may
	// starve a lower one.
	Shares map[weir.Priority]float64
	// Weights are the parts that users and tenants get of what their priority is
	// served, in relation to each other, while they have work waiting.
	Weights Weights
	// ByTime makes the shares of users and tenants parts of the time that slots are
	// held, instead of what is admitted by cost: work is charged its cost times its
	// service time over the median; when it starts by what its tenant's took lately,
	// and as it was when it is done. So whoever sends requests ten times as long gets
	// a tenth as many. Who starts many at once that nobody could know to be long,
	// or while there is room, pays for them afterwards. Leave it off where a tenant's work is slow for no
	// fault of its own, as with a shard or a dependency each.
	ByTime bool
}

// Weights say who gets how much more than others. Who is not named has weight 1,
// as does the nameless user, the name of which is empty. A weight is from
// [MinWeight] to [MaxWeight].
type Weights struct {
	// Users are the weights by [weir.Work.User].
	Users map[string]float64
	// Tenants are the weights by [weir.Work.Tenant] among the tenants of one
	// user.
	Tenants map[string]float64
}

// The bounds of a weight: 0.001 and 1,000.
const (
	MinWeight = waiting.MinWeight
	MaxWeight = waiting.MaxWeight
)

// Defaults of the wait room. The length is a bound on memory more than on
// waiting, which is bounded by time: it holds a burst of half a second at 2,000
// requests a second. Besides its goroutine, a waiter takes about 400 bytes.
const (
	DefaultQueueLen = 1024
	DefaultMaxWait  = 2 * time.Second
)

// Order is the order in which waiting work is served.
type Order = room.Order

// The orders.
const (
	// Adaptive serves the oldest first, so that a burst is served in order, but
	// the newest first while a standing queue is too long: then the oldest are
	// the least likely to be answered in time. See the package's documentation
	// for what a standing queue is, and for who leaves the room then.
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

// settings are what the gates with a wait room have in common.
func (q *Queue) settings() *waiting.Queue {
	return &waiting.Queue{Order: q.Order, Shares: q.Shares, Users: q.Weights.Users, Tenants: q.Weights.Tenants}
}
