package shed

import (
	"cmp"
	"fmt"
	"reflect"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/internal/setting"
)

// Config configures a [Shedder]. Everything but Name and Now can be changed
// later with [Shedder.Reconfigure]. The zero value of a field means its default.
type Config struct {
	// Name is the gate's name in rejections, metrics and logs.
	Name string

	// Pressure returns how loaded the service behind the gate is: 1 is the most that
	// is wanted, false means unknown. It is called from its own goroutine, once at a
	// time. It may be slow, hang or panic: no request waits for it. NaN, infinite and
	// negative values count as unknown. [LoadOf] makes one of another gate.
	Pressure func() (float64, bool)
	// Signals are read instead of a Pressure, for example a [signal.Poller]. The
	// highest known one counts, and the Rejection names it. Heed names those that
	// count; empty means all. Set either Pressure or Signals.
	Signals control.Source
	Heed    []string

	// Interval is the time between two readings of the pressure. It is from 1 ms to 1
	// min, or to 1 s with a Cursor. Default 10 ms. With thresholds, what passes at one
	// reading passes until the next. So what arrives in an interval must be little
	// against the capacity: use 1 ms where thousands a second come.
	Interval time.Duration `default:"10ms" min:"1ms" max:"1m"`
	// Hold is how long the last pressure is used while none is known. At least
	// Interval; default ten intervals, and no less than 1 s. With thresholds a refusal
	// names it as the time to come back, up to 1 min.
	Hold time.Duration
	// Blind says what to do after that. Default Open.
	Blind Blind

	// Thresholds are the pressures from which classes are refused. They are in
	// force where Cursor is nil.
	Thresholds Thresholds
	// Cursor, if not nil, finds the level from which work is let through.
	Cursor *Cursor

	// Salt is part of the hash that gives users their levels. Instances with the same
	// Salt, Resalt and time of day give every user the same level. Keep it secret, or
	// users choose names of a high level. 0 means a random one.
	Salt uint64
	// Resalt is how long a user keeps its level, at least 1 min; negative means for
	// ever. Default 1 h, as in DAGOR. That is long enough to serve a session as a
	// whole, and short enough that not always the same users are refused.
	Resalt time.Duration `default:"1h"`

	// Hooks are called as things happen: Admitted, Rejected, LimitChanged (how many of
	// the 512 levels are admitted), Faulty (troubles of the pressure).
	Hooks weir.Hooks

	// Now replaces the clock, for virtual time: it returns the time since the gate's
	// epoch. The gate then starts no goroutine, and its levels are the same in every
	// run. The owner of the clock calls [Shedder.Step], which reads the pressure, when
	// [Shedder.Next] says so. Leave it nil outside simulators.
	Now func() time.Duration
}

// Thresholds are the pressures from which each class is refused: finite, above 0, none
// below that of a lower class. The zero value of a field means its default.
type Thresholds struct {
	// From this pressure on, background is refused.
	Background float64 `json:"background,omitempty" default:"0.75" min:"0"`
	// From this pressure on, normal is refused.
	Normal float64 `json:"normal,omitempty" default:"0.9" min:"0"`
	// From this pressure on, high is refused.
	High float64 `json:"high,omitempty" default:"0.95" min:"0"`
	// From this pressure on, everything but exempt work is refused.
	Critical float64 `json:"critical,omitempty" default:"1" min:"0"`
}

// Cursor finds the level as DAGOR does (Zhou et al., Overload Control for Scaling
// WeChat Microservices, SoCC 2018). The zero value of a field means its default.
type Cursor struct {
	// From this mean pressure on, a window counts as overloaded. Use more before a gate with a wait
	// room.
	Overload float64 `json:"overload,omitempty" default:"1" min:"0"`
}

// Blind says what a gate does without a pressure, after Config.Hold.
type Blind uint8

// What to do without a pressure.
const (
	// Open lets everything through: a sensor that fails refuses nobody. Use a gate
	// with a limit behind it.
	Open Blind = iota
	// Keep leaves the level where it is. Before the first pressure that is open, too.
	Keep
)

// complete returns the settings with their defaults, or an error that names every one out
// of range.
func (c Config) complete() (Config, error) {
	var f fault.List
	setting.Complete(&c, &f)
	f.Require(c.Pressure != nil || c.Signals != nil, fault.Path{"Pressure"}, "there is none; set Pressure or Signals")
	f.Require(c.Pressure == nil || c.Signals == nil, fault.Path{"Signals"}, "set either Pressure or Signals, not both")
	f.Check(c.Signals != nil || len(c.Heed) == 0, fault.Path{"Heed"}, c.Heed, "only used with Signals")
	c.Hold = cmp.Or(c.Hold, max(time.Second, 10*c.Interval))
	f.Check(c.Hold >= c.Interval, fault.Path{"Hold"}, c.Hold, "must not be below the interval %v", c.Interval)
	f.Check(c.Blind <= Keep, fault.Path{"Blind"}, c.Blind, "must be Open or Keep")
	f.Check(c.Resalt < 0 || c.Resalt >= time.Minute, fault.Path{"Resalt"}, c.Resalt, "must be at least 1m, or negative for never")
	list := c.Thresholds.list()
	for class := 1; class < classes; class++ {
		at := fault.Path{"Thresholds", reflect.TypeFor[Thresholds]().Field(class).Name}
		f.Check(f.Wrong(at) || !(list[class] < list[class-1]), at, list[class],
			"must not be below that of %v, which is %v: a class is refused after those below it", weir.PriorityOf(class-1), list[class-1])
	}
	if c.Cursor != nil {
		cursor := *c.Cursor
		c.Cursor = &cursor
		var own fault.List
		setting.Complete(&cursor, &own)
		f.AddError(fault.Path{"Cursor"}, own.Err(""))
		f.Check(c.Interval <= windowAtMost, fault.Path{"Interval"}, c.Interval, "must be at most %v with a Cursor", windowAtMost)
	}
	return c, f.Err(fmt.Sprintf("shed: gate %q", c.Name))
}

func (t Thresholds) list() [classes]float64 {
	return [classes]float64{t.Background, t.Normal, t.High, t.Critical}
}
