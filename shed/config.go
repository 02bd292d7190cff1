package shed

import (
	"fmt"
	"math"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/internal/fault"
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
	Interval time.Duration
	// Hold is how long the last pressure is used while none is known. At least
	// Interval; default ten intervals, and no less than 1 s.
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
	Resalt time.Duration

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
// below that of a lower class. From Critical on, the hard cap, everything but exempt work is
// refused. The zero value of a field means its default.
type Thresholds struct {
	Background float64 // default 0.75
	Normal     float64 // default 0.90
	High       float64 // default 0.95
	Critical   float64 // default 1
}

// Cursor finds the level as DAGOR does (Zhou et al., Overload Control for Scaling
// WeChat Microservices, SoCC 2018). The zero value of a field means its default.
type Cursor struct {
	// Overload is the mean pressure from which a window counts as overloaded.
	// Default 1; use more before a gate whose work may wait, see [LoadOf].
	Overload float64
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

// The defaults.
const (
	defaultInterval = 10 * time.Millisecond
	defaultHold     = time.Second // or ten intervals, if that is more
	defaultResalt   = time.Hour
)

// withDefaults fills in the defaults.
func (c Config) withDefaults() Config {
	def(&c.Interval, defaultInterval)
	def(&c.Hold, max(defaultHold, 10*c.Interval))
	def(&c.Resalt, defaultResalt)
	def(&c.Thresholds.Background, 0.75)
	def(&c.Thresholds.Normal, 0.90)
	def(&c.Thresholds.High, 0.95)
	def(&c.Thresholds.Critical, 1)
	if c.Cursor != nil {
		cursor := *c.Cursor
		def(&cursor.Overload, 1)
		c.Cursor = &cursor
	}
	return c
}

// check returns every setting out of range, once the defaults are filled in.
func (c *Config) check() error {
	var f fault.List
	f.Require(c.Pressure != nil || c.Signals != nil, fault.Path{"pressure"}, "there is none; set Pressure or Signals")
	f.Require(c.Pressure == nil || c.Signals == nil, fault.Path{"signals"}, "set either Pressure or Signals, not both")
	f.Check(c.Signals != nil || len(c.Heed) == 0, fault.Path{"heed"}, c.Heed, "only used with Signals")
	f.Check(c.Interval >= time.Millisecond && c.Interval <= longest, fault.Path{"interval"}, c.Interval, "must be from 1ms to 1m")
	f.Check(c.Hold >= c.Interval, fault.Path{"hold"}, c.Hold, "must not be below the interval %v", c.Interval)
	f.Check(c.Blind <= Keep, fault.Path{"blind"}, c.Blind, "must be Open or Keep")
	f.Check(c.Resalt < 0 || c.Resalt >= time.Minute, fault.Path{"resalt"}, c.Resalt, "must be at least 1m, or negative for never")
	c.Thresholds.check(&f)
	if cursor := c.Cursor; cursor != nil {
		f.Check(cursor.Overload > 0 && !math.IsInf(cursor.Overload, 1), fault.Path{"cursor", "overload"}, cursor.Overload, "must be finite and above 0")
		f.Check(c.Interval <= windowAtMost, fault.Path{"interval"}, c.Interval, "must be at most %v with a Cursor", windowAtMost)
	}
	return f.Err(fmt.Sprintf("shed: gate %q", c.Name))
}

func (t Thresholds) check(f *fault.List) {
	list := t.list()
	for class, v := range list {
		good := v > 0 && !math.IsInf(v, 1)
		f.Check(good, fault.Path{"thresholds", fields[class]}, v, "must be finite and above 0")
		if class > 0 && good {
			below := list[class-1]
			f.Check(!(v < below), fault.Path{"thresholds", fields[class]}, v, "must not be below %s, which is %v: a class is refused after those below it", fields[class-1], below)
		}
	}
}

// fields are the names of the classes in a configuration, lowest first.
var fields = [classes]string{"background", "normal", "high", "critical"}

func (t Thresholds) list() [classes]float64 {
	return [classes]float64{t.Background, t.Normal, t.High, t.Critical}
}

// def replaces the zero value of a setting by its default.
func def[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}
