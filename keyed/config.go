package keyed

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/internal/fault"
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

	// LargestFirst makes the keys that hold most shrink first, and the others only when
	// that is not enough. The Controller must be a control.LagMap or a control.Drain. Work
	// must keep its permit until it is no part of the lag any more. Then what a key
	// holds is its own part of the lag. See the package's documentation for the rule.
	LargestFirst bool

	// Overrides are keys with a limit of their own. nil means none.
	Overrides map[string]Override

	// MaxKeys bounds the keys that are known at a time, and so the memory: 64
	// bytes a key. 0 means [DefaultMaxKeys]; at most 16,777,215. A key in use
	// holds a place; an idle one gives it up to a newcomer. Set it above the most
	// work that can be in flight and waiting at once. Then no key is ever refused
	// for want of a place.
	MaxKeys int

	// Queue is the wait room. Work waits only for a slot of its own key, and who goes
	// first is decided among those that wait for it. Each key counts alone.
	//
	// All keys together share Queue.Len places. A key may have no more work waiting
	// than there are places left. So one key that floods the room gets half of it, and
	// two get a third each. A key that has nothing waiting finds a place as long as
	// there is one at all (Choudhury and Hahne, Dynamic queue length thresholds, 1998).
	//
	// Queue.Shares keep whole places only: a share of the places that the key may have at
	// the moment, rounded down.
	// Where the key is the tenant, Queue.Weights.Tenants have no effect, and
	// Queue.Weights.Users divide each tenant's pool. With Queue.ByTime, the median
	// service time is that of many keys, and every piece of work is timed.
	Queue limit.Queue

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
	// gate's epoch. For a Work.Deadline, the epoch stands for weir.VirtualEpoch.
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
	// Target and Critical are thresholds of the key's own, instead of those of the
	// Controller, which must be a control.LagMap or a control.Drain. The key then has the
	// limit that the Controller would set with them, times Scale. A control.Drain has no
	// Critical. 0 means the Controller's. Only without Limit.
	Target, Critical float64
}

// follows reports whether the key has thresholds of its own.
func (o Override) follows() bool { return o.Target != 0 || o.Critical != 0 }

// override is an Override in force.
type override struct {
	Override
	own int64 // what the others' limit would be by the key's own thresholds; 0: it has none
}

// from returns the limit of the key where the others have base.
func (o override) from(base int64) int64 {
	if o.own > 0 {
		base = o.own
	}
	return o.Override.from(base)
}

// maxScale bounds Override.Scale: beyond it, it is a mistake.
const maxScale = 1e6

// from returns the limit of the key where the others have base.
func (o Override) from(base int64) int64 {
	switch {
	case o.Limit > 0:
		return o.Limit
	case o.Scale > 0:
		return gate.ClampLimit(int64(min(o.Scale*float64(base), limit.MaxLimit)))
	}
	return base
}

// validate reports every setting out of range.
func (c *Config) validate() error {
	var f fault.List
	gate.CheckLimit(&f, c.Limit, c.Controller)
	if c.Controller != nil {
		f.Require(!byLatency(c.Controller), fault.Path{"Controller"},
			"%q learns from the service times of one pool; use NewAdaptive, which gives each key its own", c.Controller.Name())
	}
	f.Require(!c.LargestFirst || byLag(c.Controller), fault.Path{"LargestFirst"},
		"the controller does not go by a lag; write a control.LagMap or a control.Drain, or leave it out")
	f.Check(c.MaxKeys >= 0 && c.MaxKeys <= keys.Most, fault.Path{"MaxKeys"}, c.MaxKeys, "must be from 1 to %d, or 0 for %d", keys.Most, DefaultMaxKeys)
	q := &c.Queue
	gate.CheckQueue(&f, q.Order, q.Shares, q.Weights.Users, q.Weights.Tenants)
	gate.CheckExempt(&f, c.Exempt)
	for _, key := range slices.Sorted(maps.Keys(c.Overrides)) {
		at, o := fault.Path{"Overrides", key}, c.Overrides[key]
		f.Check(o.Limit >= 0 && o.Limit <= limit.MaxLimit, at.At("Limit"), o.Limit, "must be from 1 to %d, or 0", int64(limit.MaxLimit))
		f.Check(o.Scale >= 0 && o.Scale <= maxScale, at.At("Scale"), o.Scale, "must be above 0 and at most %v, or 0", maxScale)
		f.Require(o.Limit == 0 || o.Scale == 0, at, "has a Limit and a Scale; leave one 0")
		if o.follows() {
			c.checkThresholds(&f, at, o)
		}
	}
	return f.Err(fmt.Sprintf("keyed: gate %q", c.Name))
}

// checkThresholds checks the thresholds of one key.
func (c *Config) checkThresholds(f *fault.List, at fault.Path, o Override) {
	f.Require(o.Limit == 0, at, "has a Limit and thresholds; leave the Limit 0, or Target and Critical")
	by, ok := c.Controller.(control.Thresholds)
	if !ok {
		f.Require(false, at, "has thresholds, and the controller has none; write a control.LagMap or a control.Drain")
		return
	}
	if _, err := by.WithThresholds(o.Target, o.Critical); err != nil {
		f.AddError(at, err)
	}
}

// byLatency reports whether a controller needs service times. A gate with one
// controller for many keys measures none for it.
func byLatency(c control.Controller) bool {
	return slices.Contains([]string{"belief", "knee", "aimd", "vegas", "gradient2"}, c.Name()) // also if it is capped
}

// byLag reports whether a controller can say of a lag whose it is.
func byLag(c control.Controller) bool {
	return c != nil && (c.Name() == "lag" || c.Name() == "drain") // also if it is capped
}

// settings are what every shard reads: replaced as a whole, never written to.
type settings struct {
	limit      int64  // of a key without an override
	more       uint8  // so many groups of keys have one slot more than limit
	turn       uint8  // added to a group's number, it tells whether that is one of them
	reason     string // for that limit, by this controller
	controller string
	signal     string
	overrides  map[keys.Name]override
	maxKeys    int64
	places     int64
	longest    time.Duration
	order      limit.Order
	parts      *gate.Parts
	timed      bool // every piece of work is timed, not one of a few
	moved      bool // the limit is, by a controller
	largest    bool // those that hold most shrink first
	byTime     bool

	refuseOversize bool
}

func (c *Config) settings(by control.Controller, first control.Decision) *settings {
	_, fixed := by.(control.Fixed)
	s := &settings{
		limit: gate.ClampLimit(first.Limit), reason: first.Reason, controller: by.Name(), overrides: make(map[keys.Name]override, len(c.Overrides)),
		maxKeys: int64(c.MaxKeys), places: int64(gate.Places(c.Queue.Len, c.Queue.MaxWait, limit.DefaultQueueLen)),
		longest: gate.Longest(c.Queue.MaxWait, limit.DefaultMaxWait), order: c.Queue.Order,
		parts: gate.NewParts(c.Queue.Shares, c.Queue.Weights.Users, c.Queue.Weights.Tenants),
		timed: !fixed || c.Hooks.Done != nil || c.Now != nil || c.Queue.ByTime,
		moved: !fixed, largest: c.LargestFirst, byTime: c.Queue.ByTime, refuseOversize: c.RefuseOversize,
	}
	s.share(first.Fraction)
	if s.maxKeys == 0 {
		s.maxKeys = DefaultMaxKeys
	}
	for key, o := range c.Overrides {
		s.overrides[keys.NameOf(key)] = override{Override: o}
	}
	return s
}

// limitOf returns the limit of a key.
func (s *settings) limitOf(e *keys.Entry) int64 {
	if e.Is(keys.Marked) {
		return s.limitOfName(e.Name())
	}
	if s.more > 0 && (e.Group()+s.turn)%keys.Groups < s.more {
		return s.limit + 1
	}
	return s.limit
}

// share gives so many groups of keys one slot more than the limit that a fraction of a slot is
// the mean. Those who have it now have it last again.
func (s *settings) share(fraction float64) {
	s.turn = (s.turn - s.more) % keys.Groups
	s.more = 0
	if fraction > 0 && fraction < 1 && s.limit < limit.MaxLimit {
		s.more = uint8(fraction * keys.Groups)
	}
}

// limitOfName is limitOf for a key that may not be known.
func (s *settings) limitOfName(n *keys.Name) int64 { return s.overrides[*n].from(s.limit) }

// oversize reports whether work of that key and cost is refused for its cost.
func (s *settings) oversize(n *keys.Name, cost int64) bool {
	return s.refuseOversize && cost > 1 && cost > s.limitOfName(n)
}
