package gate

import (
	"fmt"
	"runtime"
	"strings"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/slot"
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

// trackLater is Track for a permit that a callback will bring.
func (f *Front) trackLater(wake func(weir.Permit, error)) func(weir.Permit, error) {
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
	var pcs [32]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	for {
		f, more := frames.Next()
		if !inGate(f.Function) || !more {
			return fmt.Sprintf("%s (%s:%d)", f.Function, f.File, f.Line)
		}
	}
}

// inGate reports whether a function belongs to a gate, or to what stands between a gate of the caller's side and its user.
func inGate(function string) bool {
	const module = "github.com/weir-go/weir"
	name, ok := strings.CutPrefix(function, module)
	if !ok {
		return strings.HasPrefix(function, "net/http.") || strings.HasPrefix(function, "google.golang.org/grpc.")
	}
	for _, gate := range [...]string{".", "/internal/gate.", "/limit.(*Limiter)", "/keyed.(*Pools)", "/keyed.(*Adaptive)", "/policy.(*Gate)", "/weirpgx.(*Pool)", "/weirsql.(*DB)", "/weirsql.(*Stmt)", "/weirsql.(*guard)", "/throttle.(*Call)", "/throttle.(*Caller)",
		"/weirhttp.(*Transport)", "/weirgrpc.(*Client)", "/weirgrpc.(*outgoing)", "/weirgrpc.(*clientStream)"} {
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
	slot  slot.Slot
	group slot.Group // its attention stays raised: every release comes through here
	inner weir.Permit
}

func (f *Front) track(p weir.Permit, site string) weir.Permit {
	t := &tracer{inner: p}
	t.group.Holder = t
	t.group.Attention.Store(1)
	t.slot.Init(&t.group, 0)
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
	return weir.NewPermit(t.slot.Issue())
}

// Done implements [slot.Holder]. The tracer is kept alive until the permit is back.
// Otherwise the collector could report a permit as lost while it is being given back.
func (t *tracer) Done(outer slot.Ticket, outcome uint8) {
	if live, _ := outer.Recall(); live {
		t.inner.Done(weir.Outcome(outcome))
		runtime.KeepAlive(t)
	}
}

// Sample implements [slot.Holder].
func (t *tracer) Sample(outer slot.Ticket, outcome uint8) {
	if outer.MarkSampled() {
		t.inner.Sample(weir.Outcome(outcome))
	}
}

// Cancel implements [slot.Holder].
func (t *tracer) Cancel(outer slot.Ticket) {
	if live, _ := outer.Recall(); live {
		t.inner.Cancel()
		runtime.KeepAlive(t)
	}
}

// SetCost implements [slot.Holder].
func (t *tracer) SetCost(outer slot.Ticket, gate string, units int64) {
	if outer.Live() {
		t.inner.SetCost(gate, units)
	}
}
