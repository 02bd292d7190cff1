package gate

import (
	"fmt"
	"runtime"
	"strings"

	"github.com/weir-go/weir"
)

// FindLeaks turns the search for permits that are dropped without Done on or off.
func (f *Front) FindLeaks(on bool) { f.findLeaks.Store(on) }

// FindsLeaks reports whether leaks are looked for.
func (f *Front) FindsLeaks() bool { return f.findLeaks.Load() }

// Leaked returns how many leaks were found.
func (f *Front) Leaked() uint64 { return f.leaked.Load() }

// Track returns p, or while leaks are looked for a permit that reports its own loss.
func (f *Front) Track(p weir.Permit) weir.Permit {
	if !f.findLeaks.Load() {
		return p
	}
	return f.track(p, callSite())
}

// TrackLater is Track for a permit that a callback will bring.
func (f *Front) TrackLater(wake func(weir.Permit, error)) func(weir.Permit, error) {
	if !f.findLeaks.Load() {
		return wake
	}
	site := callSite()
	return func(p weir.Permit, err error) {
		if err == nil {
			p = f.track(p, site)
		}
		wake(p, err)
	}
}

// callSite returns where a gate was called from outside of gates.
func callSite() string {
	var pcs [16]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	for {
		f, more := frames.Next()
		if !inGate(f.Function) || !more {
			return fmt.Sprintf("%s (%s:%d)", f.Function, f.File, f.Line)
		}
	}
}

func inGate(function string) bool {
	const module = "github.com/weir-go/weir"
	name, ok := strings.CutPrefix(function, module)
	if !ok {
		return false
	}
	for _, gate := range [...]string{".", "/internal/gate.", "/limit.(*Limiter)", "/keyed.(*Pools)", "/keyed.(*Adaptive)", "/policy.(*Gate)"} {
		if strings.HasPrefix(name, gate) {
			return true
		}
	}
	return false
}

// tracer stands between a caller and its permit while leaks are looked for. The
// caller's permit points at the tracer and nothing else does. So when the garbage
// collector takes the tracer, nobody can ever end the permit.
type tracer struct {
	slot   weir.Slot
	common weir.Slots // its attention stays raised: every release comes through here
	inner  weir.Permit
}

func (f *Front) track(p weir.Permit, site string) weir.Permit {
	t := &tracer{inner: p}
	t.common.Attention.Store(1)
	t.slot.Init(t, &t.common, 0)
	runtime.AddCleanup(t, func(lost weir.Permit) {
		if !lost.Live() {
			return
		}
		lost.Done(weir.NoSample)
		f.leaked.Add(1)
		if h := f.hooks.Load(); h.Leaked != nil {
			h.Leaked(f.name, site)
		}
	}, p)
	return t.slot.Issue()
}

// PermitDone implements [weir.Holder]. The tracer is kept alive until the permit is
// back. Otherwise the collector could report a permit as lost while it is being
// given back.
func (t *tracer) PermitDone(p weir.Permit, o weir.Outcome) {
	if live, _ := t.slot.Recall(p); live {
		t.inner.Done(o)
		runtime.KeepAlive(t)
	}
}

// PermitSampled implements [weir.Holder].
func (t *tracer) PermitSampled(p weir.Permit, o weir.Outcome) {
	if t.slot.MarkSampled(p) {
		t.inner.Sample(o)
	}
}

// PermitCancelled implements [weir.Holder].
func (t *tracer) PermitCancelled(p weir.Permit) {
	if live, _ := t.slot.Recall(p); live {
		t.inner.Cancel()
		runtime.KeepAlive(t)
	}
}

// PermitCost implements [weir.CostHolder].
func (t *tracer) PermitCost(p weir.Permit, gate string, units int64) {
	if p.Live() {
		t.inner.SetCost(gate, units)
	}
}

// SlotFreed implements [weir.Holder].
func (t *tracer) SlotFreed(*weir.Slot) {}
