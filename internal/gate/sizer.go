package gate

import (
	"errors"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/internal/fault"
)

// MaxLimit is the largest limit of a gate.
const MaxLimit = 1 << 30

// IdleWindow is the length of the windows of a gate that has to measure although
// its controller wants no windows. It is also their length after a decision that
// made no sense.
const IdleWindow = time.Second

// shortestWindow bounds how often a controller can ask to be called: shorter
// windows would cost more than they tell.
const shortestWindow = time.Millisecond

// Sizer is a gate's controller with its window. Its lock is taken before
// those of the gate. The controller and the signals are called under this lock only.
type Sizer struct {
	sync.Mutex
	Controller control.Controller
	Signals    control.Source
	Window     control.Window
	Faults     atomic.Uint64 // decisions that made no sense
}

// ControllerOr returns c, or a fixed limit if there is none.
func ControllerOr(c control.Controller, limit int64) control.Controller {
	if c == nil {
		return control.Fixed(limit)
	}
	return c
}

// ClampLimit brings a limit into its range.
func ClampLimit(n int64) int64 { return min(max(n, 1), MaxLimit) }

// IsFixed reports whether nothing but a person moves the limit.
func (s *Sizer) IsFixed() bool { return isFixed(s.Controller) }

func isFixed(c control.Controller) bool {
	_, fixed := c.(control.Fixed)
	return fixed
}

// Ask asks the controller to decide about s.Window. A decision that makes no sense is
// replaced by kept. The first of them comes with the problem, for the hook.
func (s *Sizer) Ask(kept control.Decision) (d control.Decision, problem string) {
	return s.ask(kept, func(w *control.Window) control.Decision {
		w.Readings = w.Readings[:0]
		if s.Signals != nil {
			w.Readings = s.Signals.Readings(w.Readings)
		}
		return s.Controller.Update(w)
	})
}

// AskAlso asks another controller about the window that [Sizer.Ask] has been asked about, with the
// readings of then.
func (s *Sizer) AskAlso(c control.Controller, kept control.Decision) (d control.Decision, problem string) {
	return s.ask(kept, c.Update)
}

func (s *Sizer) ask(kept control.Decision, update func(*control.Window) control.Decision) (d control.Decision, problem string) {
	kept.Next, kept.Reason = IdleWindow, "kept: the controller failed"
	name := s.Controller.Name()
	defer func() {
		if r := recover(); r != nil {
			d, problem = kept, fmt.Sprintf("controller %q panicked: %v", name, r)
		}
		if problem != "" && s.Faults.Add(1) > 1 {
			problem = ""
		}
	}()
	d = update(&s.Window)
	if problem = nonsense(name, d); problem != "" {
		return kept, problem
	}
	if d.Next > 0 {
		d.Next = max(d.Next, shortestWindow)
	}
	return d, ""
}

// nonsense says what makes no sense in a decision of a controller, empty if all does.
func nonsense(name string, d control.Decision) string {
	switch {
	case d.Limit < 1 || d.Limit > MaxLimit:
		return fmt.Sprintf("controller %q wants a limit of %d: it must be from 1 to %d", name, d.Limit, int64(MaxLimit))
	case !(d.Fraction >= 0 && d.Fraction < 1):
		return fmt.Sprintf("controller %q wants a fraction of %v: it must be from 0 to below 1", name, d.Fraction)
	case d.Next < 0:
		return fmt.Sprintf("controller %q wants a window of %v: it must not be negative", name, d.Next)
	}
	return ""
}

// Start returns the first decision of a controller. The error says what makes no sense in it.
func Start(c control.Controller) (control.Decision, error) {
	first := c.Start()
	if problem := nonsense(c.Name(), first); problem != "" {
		return first, errors.New(problem)
	}
	return first, nil
}

// Replace puts a new controller in place and returns where that one starts. A controller of the
// same kind starts from all that the old one knew. Another starts from what the old one would
// save, or from the present limit. A first decision that makes no sense replaces nothing.
func (s *Sizer) Replace(next control.Controller, signals control.Source, limit int64) (control.Decision, error) {
	learned := same(next, s.Controller) || s.bequeath(next, limit)
	first, err := Start(next)
	if err != nil {
		return first, err
	}
	first.Reason = "configured"
	if learned && !isFixed(next) {
		first.Reason = "goes on from what was learned"
	}
	s.Controller, s.Signals = next, signals
	return first, nil
}

// bequeath tells a new controller what the old one has learned, and reports whether that was
// anything.
func (s *Sizer) bequeath(next control.Controller, limit int64) bool {
	if heir, ok := next.(control.Successor); ok && heir.Succeed(s.Controller) {
		return true
	}
	saver, ok := next.(control.Saver)
	if !ok {
		return false
	}
	state, learned := s.save()
	if !learned {
		state = control.State{Limit: float64(limit)}
	}
	saver.Restore(state)
	return learned
}

// same reports whether two controllers are one. Controllers of a type that
// cannot be compared never are: comparing two of them would panic.
func same(a, b control.Controller) bool { return reflect.ValueOf(a).Comparable() && a == b }

// Save returns what the controller has learned, and false if it learns nothing.
func (s *Sizer) Save() (control.State, bool) {
	s.Lock()
	defer s.Unlock()
	return s.save()
}

func (s *Sizer) save() (control.State, bool) {
	if saver, ok := s.Controller.(control.Saver); ok {
		return saver.Save(), true
	}
	return control.State{}, false
}

// Restore gives a controller what an earlier run has learned. It returns the limit
// to start from, and false if the controller learns nothing.
func (s *Sizer) Restore(state control.State) (limit int64, ok bool) {
	saver, ok := s.Controller.(control.Saver)
	if !ok {
		return 0, false
	}
	saver.Restore(state)
	first, err := Start(s.Controller)
	return first.Limit, err == nil
}

// Change is a change of a limit that the hooks have not heard of yet. Problem is
// what was wrong with a decision, if that has to be reported.
type Change struct {
	From, To int64
	Reason   string
	Problem  string
}

// Changed calls the hooks. No lock may be held.
func (f *Front) Changed(c Change) {
	h := f.hooks.Load()
	if h.LimitChanged != nil && c.From != c.To {
		h.LimitChanged(f.name, c.From, c.To, c.Reason)
	}
	if h.Faulty != nil && c.Problem != "" {
		h.Faulty(f.name, c.Problem)
	}
}

// CheckLimit adds the faults of a limit and its controller.
func CheckLimit(f *fault.List, limit int64, c control.Controller) {
	if c == nil {
		f.Check(limit >= 1 && limit <= MaxLimit, fault.Path{"Limit"}, limit, "must be from 1 to %d, or set a Controller", int64(MaxLimit))
	} else {
		f.Check(limit == 0, fault.Path{"Limit"}, limit, "leave it 0, the Controller %q decides", c.Name())
	}
}

// CheckExempt adds the fault of a cap on exempt work.
func CheckExempt(f *fault.List, most int64) {
	f.Check(most <= MaxLimit, fault.Path{"Exempt"}, most, "must be at most %d (negative: nothing is exempt)", int64(MaxLimit))
}
