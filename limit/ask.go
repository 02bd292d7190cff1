package limit

import (
	"fmt"
	"time"

	"github.com/weir-go/weir/control"
)

// ask has the controller decide, and takes its word only where that makes
// sense. What does not is named; the limit then stays what it is.
func (l *Limiter) ask(w *control.Window) (d control.Decision, problem string) {
	defer func() {
		if r := recover(); r != nil {
			d, problem = l.keep(w), fmt.Sprintf("controller %q panicked: %v", l.controlledBy, r)
		}
	}()
	w.Readings = w.Readings[:0]
	if l.signals != nil {
		w.Readings = l.signals.Readings(w.Readings)
	}
	d = l.controller.Update(w)
	switch {
	case d.Limit < 1 || d.Limit > MaxLimit:
		problem = fmt.Sprintf("controller %q wants a limit of %d: it must be from 1 to %d", l.controlledBy, d.Limit, MaxLimit)
	case d.Next < 0:
		problem = fmt.Sprintf("controller %q wants a window of %v: it must not be negative", l.controlledBy, d.Next)
	case d.Next > 0 && d.Next < shortestWindow:
		d.Next = shortestWindow
	}
	if problem != "" {
		d = l.keep(w)
	}
	return d, problem
}

// shortestWindow bounds how often a controller can ask to be called: shorter
// windows would cost more than they tell.
const shortestWindow = time.Millisecond

// keep is the decision to change nothing, for want of a better one.
func (l *Limiter) keep(w *control.Window) control.Decision {
	return control.Decision{Limit: w.Limit, Next: idleWindow, Reason: "kept: the controller failed"}
}

// faulty tells of nonsense.
func (l *Limiter) faulty(problem string) {
	if h := l.hooks.Load(); problem != "" && h.Faulty != nil {
		h.Faulty(l.name, problem)
	}
}
