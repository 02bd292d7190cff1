package limit

import (
	"fmt"
	"runtime"
	"strings"

	"github.com/weir-go/weir"
)

// tracer stands between a caller and its permit while leaks are looked for: the
// caller's permit points at the tracer and nothing else does, so when the
// garbage collector takes the tracer, nobody can ever end the permit again.
type tracer struct {
	slot   weir.Slot
	common weir.Slots // its attention stays raised: every release comes through here
	inner  weir.Permit
}

// track returns p, or a permit that reports its own loss.
func (l *Limiter) track(p weir.Permit, site string) weir.Permit {
	if site == "" {
		return p
	}
	t := &tracer{inner: p}
	t.common.Attention.Store(1)
	t.slot.Init(t, &t.common, 0)
	runtime.AddCleanup(t, func(lost weir.Permit) {
		if !lost.Live() {
			return
		}
		lost.Done(weir.NoSample)
		l.count.leaked.Add(1)
		if h := l.hooks.Load(); h.Leaked != nil {
			h.Leaked(l.name, site)
		}
	}, p)
	return t.slot.Issue()
}

// site returns the call site outside the gates, or "" if nobody looks for leaks.
func (l *Limiter) site() string {
	if !l.findLeaks.Load() {
		return ""
	}
	var pcs [16]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	for {
		f, more := frames.Next()
		inside := strings.HasPrefix(f.Function, "github.com/weir-go/weir.") ||
			strings.HasPrefix(f.Function, "github.com/weir-go/weir/limit.(*Limiter)") ||
			strings.HasPrefix(f.Function, "github.com/weir-go/weir/policy.(*Gate)")
		if !inside || !more {
			return fmt.Sprintf("%s (%s:%d)", f.Function, f.File, f.Line)
		}
	}
}

// PermitDone implements [weir.Holder]. The tracer stays until the permit is back:
// the collector would take what is being given back right now for lost.
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

// SlotFreed implements [weir.Holder].
func (t *tracer) SlotFreed(*weir.Slot) {}
