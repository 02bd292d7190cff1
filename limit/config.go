package limit

import (
	"errors"
	"fmt"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
)

// Config configures a [Limiter]. Everything but Name and Now can be changed
// later with [Limiter.Reconfigure].
type Config struct {
	// Name is the gate's name in rejections, metrics and logs.
	Name string

	// Limit is the number of slots if Controller is nil, from 1 to [MaxLimit].
	Limit int64
	// Controller sets the limit while the limiter runs. nil means
	// control.Fixed(Limit). A controller belongs to one limiter.
	Controller control.Controller

	// Signals are read at the end of each window and shown to the controller.
	// nil means none. Fixed ignores them; [control.Capped] heeds them.
	Signals control.Source

	// Queue is the wait room.
	Queue Queue

	// Exempt is the most work marked [weir.Work.Exempt] at once; beyond it such
	// work is refused with [weir.ReasonLimit], so that an endless watch, or a
	// flood that calls itself exempt, stays bounded. 0 means [DefaultExempt]. With
	// a negative value nothing is exempt: work so marked is like any other.
	Exempt int64

	// RefuseOversize refuses work whose cost exceeds the limit with
	// [weir.ReasonTooLarge], at once. Without it such work is charged the whole
	// limit and runs alone. Work that is waiting when the limit shrinks below its
	// cost runs alone in either case, so that it is never stuck.
	RefuseOversize bool

	// Hooks are told what happens. Any hook, and any controller that moves the
	// limit, makes every admission go through the limiter's lock.
	Hooks weir.Hooks

	// FindLeaks records the call site of every admission and reports permits
	// that were dropped without Done, once the garbage collector has found
	// them; their slots are given back. A debug option: it costs an allocation
	// and a stack walk a permit.
	FindLeaks bool

	// Now replaces the clock, for virtual time: it returns the time since the
	// limiter's epoch, which stands for [VirtualEpoch] where a Work.Deadline is
	// concerned. With it set the limiter starts no timer; whoever owns the
	// clock calls [Limiter.Step] when [Limiter.Next] says so. Leave it nil
	// outside simulators.
	Now func() time.Duration
}

// VirtualEpoch is the time of day at which a clock given as Config.Now starts.
var VirtualEpoch = time.Unix(0, 0)

// MaxLimit is the largest limit. It is far beyond what one process serves, and
// keeps slot numbers in 32 bits.
const MaxLimit = 1 << 30

// validate reports every setting out of range.
func (c *Config) validate() error {
	var faults []error
	if c.Controller == nil && (c.Limit < 1 || c.Limit > MaxLimit) {
		faults = append(faults, fmt.Errorf("Limit %d: must be from 1 to %d (or set a Controller)", c.Limit, MaxLimit))
	}
	if c.Controller != nil && c.Limit != 0 {
		faults = append(faults, fmt.Errorf("Limit %d: leave it 0, the Controller %q decides", c.Limit, c.Controller.Name()))
	}
	if c.Exempt > MaxLimit {
		faults = append(faults, fmt.Errorf("Exempt %d: must be at most %d (negative: nothing is exempt)", c.Exempt, MaxLimit))
	}
	faults = append(faults, c.Queue.settings().Faults()...)
	if len(faults) == 0 {
		return nil
	}
	return fmt.Errorf("limit: gate %q: %w", c.Name, errors.Join(faults...))
}

// controller returns the controller, which is Fixed if none was given.
func (c *Config) controller() control.Controller {
	if c.Controller == nil {
		return control.Fixed(c.Limit)
	}
	return c.Controller
}

func clampLimit(n int64) int64 { return min(max(n, 1), MaxLimit) }
