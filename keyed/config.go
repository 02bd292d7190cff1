package keyed

import (
	"maps"
	"slices"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/internal/gate"
	"github.com/weir-go/weir/internal/keys"
	"github.com/weir-go/weir/limit"
)

// Config configures [Pools]. Everything but Name, Key and Now can be changed
// later with [Pools.Reconfigure].
type Config struct {
	// Name is the gate's name in rejections, metrics and logs.
	Name string

	// Key names the key of a piece of work, and so its pool. Default: its Tenant. Any
	// string will do, the empty one too. It is called for each piece of work, with
	// no lock held.
	Key func(weir.Work) string

	// Limit is the number of slots of each key if Controller is nil, from 1 to
	// limit.MaxLimit.
	Limit int64
	// Controller sets the limit of each key while the gate runs: one number for
	// all of them. nil means control.Fixed(Limit). See the package's documentation
	// for which controllers make sense and what their windows contain. A controller
	// belongs to one gate.
	Controller control.Controller
	// Signals are read at the end of each window and shown to the controller.
	Signals control.Source

	// Overrides are keys with a limit of their own. nil means none.
	Overrides map[string]Override

	// MaxKeys bounds the keys that are known at a time, and so the memory: 64
	// bytes a key. 0 means [DefaultMaxKeys]; at most 16,777,215. A key in use
	// holds a place; an idle one gives it up to a newcomer. Set it above the most
	// work that can be in flight and waiting at once. Then no key is ever refused
	// for want of a place.
	MaxKeys int

	// Queue is the wait room.
	Queue Queue

	// Exempt is the most work marked [weir.Work.Exempt] at once, over all keys. It
	// takes no slot and never waits. 0 means limit.DefaultExempt; with a negative
	// value nothing is exempt here.
	Exempt int64

	// RefuseOversize refuses work at once, with [weir.ReasonTooLarge], if it costs
	// more than the whole limit of its key. If the key is not known yet, it stays
	// unknown. Without it such work is charged the whole limit and runs alone. In
	// either case the limit may shrink below the cost of work that is already
	// waiting. Such work runs alone, so it is never stuck.
	RefuseOversize bool

	// Hooks are called as things happen.
	Hooks weir.Hooks

	// FindLeaks looks for permits that were dropped without Done, as in
	// limit.Config.
	FindLeaks bool

	// Now replaces the clock, for virtual time. It returns the time since the
	// gate's epoch. For a Work.Deadline, the epoch stands for limit.VirtualEpoch.
	// With it set the gate starts no timer; whoever owns the clock calls
	// [Pools.Step] when [Pools.Next] says so. Leave it nil outside simulators.
	Now func() time.Duration
}

// DefaultMaxKeys is the number of keys where Config.MaxKeys is 0: 4 MiB.
const DefaultMaxKeys = 1 << 16

// Override is the limit of one key. The zero value changes nothing.
type Override struct {
	// Limit is the key's own, whatever the controller says. Range 1 to
	// limit.MaxLimit; 0 leaves it to the controller.
	Limit int64
	// Scale is how many times the limit of the others the key gets, rounded down
	// and at least 1. Range above 0 to 1,000,000; 0 means 1. Only without Limit.
	Scale float64
}

// maxScale bounds Override.Scale: beyond it, it is a mistake.
const maxScale = 1e6

func (o Override) of(base int64) int64 {
	switch {
	case o.Limit > 0:
		return o.Limit
	case o.Scale > 0:
		return gate.ClampLimit(int64(min(o.Scale*float64(base), limit.MaxLimit)))
	}
	return base
}

// Queue is the wait room of [Pools]. Work waits only for a slot of its own key.
// All keys together share the places to wait.
type Queue struct {
	// Len bounds the work that waits, over all keys together. 0 means
	// limit.DefaultQueueLen; a negative value means that nothing ever waits.
	//
	// A key may have no more work waiting than there are places left. So one key
	// that floods the room gets half of it, and two get a third each. A key that
	// has nothing waiting finds a place as long as there is one at all (Choudhury
	// and Hahne, Dynamic queue length thresholds, 1998).
	Len int
	// MaxWait bounds the time spent waiting. 0 means limit.DefaultMaxWait; a
	// negative value leaves only the work's own bounds: its deadline, its
	// MaxWait, its context.
	MaxWait time.Duration
	// Order says who goes first among those that wait for the same key and have
	// the same priority, user and tenant. Higher priorities go before lower ones,
	// and users and tenants take turns. Default limit.Adaptive.
	Order limit.Order

	// Shares guarantee a priority a part of what a key is served while it has work
	// waiting for that key. They also guarantee it the same part of the places that the
	// key may have at the moment, in whole places. Each share is from 0 to 1, and
	// together they are no more than 1. Each key counts alone: what another key is served
	// does not matter. Default none: priorities are strict, and a higher one may starve a
	// lower one of the same key.
	Shares map[weir.Priority]float64
	// Weights divide what a priority is served of one key among its users, and what
	// a user is served among the user's tenants. They count for those with work
	// waiting for the key. Where the key is the tenant, all who wait for one key
	// have the same tenant. Then Weights.Users divide the key among its users, by
	// the same weights for every tenant. Weights.Tenants have no effect.
	Weights limit.Weights
	// ByTime makes the parts of users and tenants parts of the time that slots are
	// held, see limit.Queue.ByTime. The median is that of many keys, and every piece
	// of work is timed.
	ByTime bool
}

// settings are what the gates with a wait room have in common.
func (q *Queue) settings() *gate.Queue {
	return &gate.Queue{Order: q.Order, Shares: q.Shares, Users: q.Weights.Users, Tenants: q.Weights.Tenants}
}

// validate reports every setting out of range.
func (c *Config) validate() error {
	var f gate.Faults
	f.CheckLimit(c.Limit, c.Controller)
	if c.Controller != nil {
		f.Check(!byLatency(c.Controller),
			"Controller %q: learns from the service times of one pool; use NewAdaptive, which gives each key its own", c.Controller.Name())
	}
	f.Check(c.MaxKeys >= 0 && c.MaxKeys <= keys.Most, "MaxKeys %d: must be from 1 to %d, or 0 for %d", c.MaxKeys, keys.Most, DefaultMaxKeys)
	f = append(f, c.Queue.settings().Faults()...)
	f.CheckExempt(c.Exempt)
	for _, key := range slices.Sorted(maps.Keys(c.Overrides)) {
		o := c.Overrides[key]
		f.Check(o.Limit >= 0 && o.Limit <= limit.MaxLimit, "Overrides[%.40q].Limit %d: must be from 1 to %d, or 0", key, o.Limit, int64(limit.MaxLimit))
		f.Check(o.Scale >= 0 && o.Scale <= maxScale, "Overrides[%.40q].Scale %v: must be above 0 and at most %v, or 0", key, o.Scale, maxScale)
		f.Check(o.Limit == 0 || o.Scale == 0, "Overrides[%.40q]: has a Limit and a Scale: leave one 0", key)
	}
	return f.Err("keyed", c.Name)
}

// byLatency reports whether a controller needs service times. A gate with one
// controller for many keys measures none for it.
func byLatency(c control.Controller) bool {
	switch c := c.(type) {
	case *control.Knee, *control.AIMD, *control.Vegas, *control.Gradient2:
		return true
	case *control.Capped: // has the name of the one inside
		return slices.Contains([]string{"knee", "aimd", "vegas", "gradient2"}, c.Name())
	}
	return false
}

// settings are what every shard reads: replaced as a whole, never written to.
type settings struct {
	limit     int64 // of a key without an override
	signal    string
	overrides map[keys.Name]Override
	maxKeys   int64
	places    int64
	longest   time.Duration
	order     limit.Order
	parts     *gate.Parts
	exempt    int64
	timed     bool // every piece of work is timed, not one of a few
	moved     bool // the limit is, by a controller
	byTime    bool

	refuseOversize bool
}

func (c *Config) settings(base int64) *settings {
	_, fixed := gate.ControllerOr(c.Controller, c.Limit).(control.Fixed)
	s := &settings{
		limit: gate.ClampLimit(base), overrides: make(map[keys.Name]Override, len(c.Overrides)),
		maxKeys: int64(c.MaxKeys), places: int64(gate.Places(c.Queue.Len, limit.DefaultQueueLen)),
		longest: gate.Longest(c.Queue.MaxWait, limit.DefaultMaxWait), order: c.Queue.Order, parts: c.Queue.settings().Parts(),
		exempt: c.Exempt, timed: !fixed || c.Hooks.Done != nil || c.Now != nil || c.Queue.ByTime,
		moved: !fixed, byTime: c.Queue.ByTime, refuseOversize: c.RefuseOversize,
	}
	if s.maxKeys == 0 {
		s.maxKeys = DefaultMaxKeys
	}
	if s.exempt == 0 {
		s.exempt = limit.DefaultExempt
	}
	for key, o := range c.Overrides {
		s.overrides[keys.NameOf(key)] = o
	}
	return s
}

// of returns the limit of a key.
func (s *settings) of(e *keys.Entry) int64 {
	if e.Is(keys.Marked) {
		return s.named(e.Name())
	}
	return s.limit
}

// named is of for a key that may not be known.
func (s *settings) named(n *keys.Name) int64 { return s.overrides[*n].of(s.limit) }

// oversize reports whether work of that key and cost is refused for its cost.
func (s *settings) oversize(n *keys.Name, cost int64) bool {
	return s.refuseOversize && cost > 1 && cost > s.named(n)
}
