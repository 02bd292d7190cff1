package policy

import (
	"cmp"
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/signal"
)

// dial is a signal that a test turns.
type dial struct {
	value atomic.Int64 // thousandths; negative: it fails
	reads atomic.Int64
}

func (d *dial) Name() string { return "dial" }

func (d *dial) Read(context.Context) (float64, error) {
	d.reads.Add(1)
	if v := d.value.Load(); v >= 0 {
		return float64(v) / 1000, nil
	}
	return 0, errors.New("the dial is broken")
}

func dialled(thousandths int64) *dial {
	d := new(dial)
	d.value.Store(thousandths)
	return d
}

func loadOf(d *dial) map[string]signal.Signal { return map[string]signal.Signal{"load": d} }

func TestSignalFaults(t *testing.T) {
	spec := Spec{
		Signals: map[string]SignalSpec{
			"a":      {Read: "cpuu"},
			"b":      {},
			"cpu":    {Threshold: 85, Wait: 5, Interval: 1, Then: "stop"},
			"disk":   {Read: "psi_io", Over: -1, Path: "x"},
			"behind": {Read: "http", URL: "127.0.0.1:8000"},
			"file":   {SafeValue: 2},
			"memory": {Then: "safe"},
		},
		Gates: map[string]GateSpec{
			"x": {Limit: &LimitSpec{Signals: []string{"cpuu", "memory", "memory", "goroutines", "cpu"}}},
			"y": {Limit: &LimitSpec{Controller: "resource"}},
			"w": {Limit: &LimitSpec{Signals: []string{"kafkalag"}}},
			"z": {Limit: &LimitSpec{Controller: "lag", Signals: []string{"load"}, Lag: LagSpec{LagMapConfig: control.LagMapConfig{Signal: "load", Target: 9, Critical: 3}}}},
		},
	}
	_, err := Compile(spec, Options{Signals: loadOf(dialled(0))})
	want := []string{
		`signals.a.read: "cpuu" is nothing that a signal can read; write read: cpu`,
		`signals.b: "b" is nothing that a signal can read; write read: and one of load, sched_latency, runnable`,
		"signals.behind.url: \"127.0.0.1:8000\" is not an http or https URL",
		"signals.cpu.wait: is 5ns, too small; write at least 1us",
		"signals.cpu.interval: is 1ns, too small; write at least 1ms",
		`signals.cpu.then: "stop" is not known; write one of ignore, safe`,
		"signals.cpu.threshold: is 85, too large; write at most 1, or 0.85 for 85 %",
		"signals.disk.over: is -1, too small; write at least 1ms",
		"signals.disk.path: means nothing to a signal that reads psi_io",
		"signals.file.path: no file is named",
		"signals.file.safe_value: 2 will not do; only used with then: safe",
		"signals.memory.safe_value: then: safe has no value to put in place of a missing one; write the pressure",
		`gates.w.limit.signals[0]: there is no signal "kafkalag"; say under signals: what it reads, or write one of a, b, behind, cpu, disk, file, memory, load, sched_latency, runnable, cpu_throttling, heap, …`,
		`gates.x.limit.signals[0]: there is no signal "cpuu"; did you mean cpu?`,
		`gates.x.limit.signals[2]: "memory" is in the list already`,
		"gates.x.limit.signals[3]: the signal goroutines has to be told its threshold; write it under signals: goroutines:",
		"gates.y.limit.signals: the controller resource has no signals",
		"gates.z.limit.lag.critical: 3 will not do; must be above the target, which is 9",
		`gates.z.limit.signals[0]: "load" is a lag and no pressure`,
	}
	wantFaults(t, err, want)
}

// Every word for what can be read compiles, under its own name and another one.
func TestSignalKindsCompile(t *testing.T) {
	for _, word := range SignalKinds() {
		s := SignalSpec{Read: word}
		switch word {
		case "goroutines":
			s.Threshold = 1000
		case "file":
			s.Path = "x"
		case "http":
			s.URL = "http://127.0.0.1:1"
		}
		spec := limitSpec(LimitSpec{Signals: []string{"mine"}})
		spec.Signals = map[string]SignalSpec{"mine": s}
		p := compile(t, spec, Options{})
		if all := p.Signals(); len(all) != 1 || all[0].Name != "mine" {
			t.Errorf("%s: signals %v", word, all)
		}
	}
}

// A signal under pressure holds the limit down, is named wherever the limit is,
// and lets go. A reload in between changes nothing.
func TestASignalHoldsTheLimitDown(t *testing.T) {
	for _, l := range []LimitSpec{{Limit: 20}, {Controller: "aimd"}, {Controller: "belief"}, {Controller: "knee"}} {
		synctest.Test(t, func(t *testing.T) {
			load := dialled(500)
			l.Signals, l.Queue.Len = []string{"load", "memory"}, -1
			p := must(t, limitSpec(l), Options{Signals: loadOf(load)})
			defer p.Close()
			g := p.Gate("api")
			for range 10 {
				admit(t, g)
			}
			time.Sleep(time.Second)
			if s := g.Snapshot(); s.Limit < 20 || s.Signal != "" {
				t.Fatalf("%s, no pressure: limit %d, signal %q", s.Controller, s.Limit, s.Signal)
			}
			load.value.Store(2500)
			time.Sleep(time.Second)
			s := g.Snapshot()
			if s.Limit != 4 || s.Signal != "load" {
				t.Errorf("%s, ten in flight at a pressure of 2.5: limit %d, signal %q; want 4, load", s.Controller, s.Limit, s.Signal)
			}
			if _, err := g.TryAdmit(weir.Work{}); err == nil || weir.AsRejection(err).Signal != "load" {
				t.Errorf("%s: refused with %v; want it to name the signal", s.Controller, err)
			}
			next := must(t, limitSpec(l), Options{Signals: loadOf(load), Previous: p})
			defer next.Close()
			p.Replace(next)
			if s := g.Snapshot(); next.Gate("api") != g || s.Limit != 4 {
				t.Errorf("%s, after a reload: limit %d, want 4", s.Controller, s.Limit)
			}
			time.Sleep(time.Second)
			if s := g.Snapshot(); s.Limit != 4 || s.Signal != "load" {
				t.Errorf("%s, a second after a reload: limit %d, signal %q; want 4, load", s.Controller, s.Limit, s.Signal)
			}
			load.value.Store(0)
			time.Sleep(10 * time.Second)
			if s := g.Snapshot(); s.Limit < 20 || s.Signal != "" {
				t.Errorf("%s, the pressure gone: limit %d, signal %q", s.Controller, s.Limit, s.Signal)
			}
			if got := g.Signals(); !slices.Equal(got, []string{"load", "memory"}) {
				t.Errorf("the gate goes by %v", got)
			}
		})
	}
}

// No pressure holds a limit down below its least one, which the controllers have by default too.
func TestASignalStopsAtTheLeastLimit(t *testing.T) {
	for word, least := range map[string]int64{"fixed": 1, "belief": 2, "knee": 2, "aimd": 1, "vegas": 1, "gradient2": 20, "probe": 4, "lag": 10, "drain": 10} {
		for _, given := range []int64{0, 3} {
			if given > 0 && word == "fixed" {
				continue
			}
			var now time.Duration
			l := LimitSpec{Controller: word, Min: given, Signals: []string{"cpu"}}
			switch word {
			case "fixed":
				l.Limit = 20
			case "lag":
				l.Lag.Signal = "memory"
			case "drain":
				l.Drain.Signal = "memory"
			}
			p := compile(t, limitSpec(l), Options{Now: func() time.Duration { return now }, Readings: fixedReadings{{Name: "cpu", Value: 100, Known: true}, {Name: "memory", Known: true}}})
			admit(t, p.Gate("api"))
			for now < time.Minute {
				now += 10 * time.Millisecond
				p.Step()
			}
			if s := p.Gate("api").Snapshot(); s.Limit != cmp.Or(given, least) {
				t.Errorf("%s, min: %d: limit %d by %q, want %d", word, given, s.Limit, s.Signal, cmp.Or(given, least))
			}
		}
	}
}

// A threshold makes a pressure of any value, and a gate heeds only its own.
func TestThresholdOfAnExternalSignal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		spec := limitSpec(LimitSpec{Limit: 20, Signals: []string{"strict"}})
		spec.Gates["lax"] = GateSpec{Limit: &LimitSpec{Limit: 20, Signals: []string{"load"}}}
		spec.Signals = map[string]SignalSpec{"strict": {Read: "load", Threshold: 0.25}, "load": {}}
		p := must(t, spec, Options{Signals: loadOf(dialled(500))})
		defer p.Close()
		for range 10 {
			admit(t, p.Gate("api"))
			admit(t, p.Gate("lax"))
		}
		time.Sleep(time.Second)
		strict, lax := p.Gate("api").Snapshot(), p.Gate("lax").Snapshot()
		if strict.Limit != 5 || strict.Signal != "strict" || lax.Limit != 20 || lax.Signal != "" {
			t.Errorf("strict %d %q, lax %d %q; want 5 by strict, 20", strict.Limit, strict.Signal, lax.Limit, lax.Signal)
		}
	})
}

// A lag is no pressure: it is its controller's alone, beside signals that are.
func TestLagBesidePressure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lag, load := dialled(55_000_000), dialled(100)
		p := must(t, limitSpec(LimitSpec{
			Controller: "lag", Signals: []string{"load"}, Lag: LagSpec{LagMapConfig: control.LagMapConfig{Signal: "behind"}, Interval: Duration(time.Second)},
		}), Options{Signals: map[string]signal.Signal{"load": load, "behind": lag}})
		defer p.Close()
		g := p.Gate("api")
		time.Sleep(3 * time.Second)
		if s := g.Snapshot(); s.Limit != 505 || s.Signal != "behind" {
			t.Errorf("half way: limit %d, signal %q; want 505 by behind", s.Limit, s.Signal)
		}
		for range 40 {
			admit(t, g)
		}
		load.value.Store(2000)
		time.Sleep(10 * time.Second)
		if s := g.Snapshot(); s.Limit != 20 || s.Signal != "load" {
			t.Errorf("under pressure: limit %d, signal %q; want 20 by load", s.Limit, s.Signal)
		}
		saved := p.Save().Gates["api"]
		if saved.Controller != "lag" || saved.Limit != 505 {
			t.Errorf("saved %+v, want what lag has learned", saved)
		}
	})
}

// Who cannot be read is told of once; then its policy holds.
func TestSignalTrouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		load := dialled(100)
		spec := limitSpec(LimitSpec{Limit: 20, Signals: []string{"load"}})
		spec.Signals = map[string]SignalSpec{"load": {Hold: Duration(2 * time.Second), Then: "safe", SafeValue: 2}}
		var heard []string
		p := must(t, spec, Options{Signals: loadOf(load), SignalHooks: signal.Hooks{
			Trouble:   func(name string, err error) { heard = append(heard, name+": "+err.Error()) },
			Recovered: func(name string) { heard = append(heard, name+" is back") },
		}})
		defer p.Close()
		for range 10 {
			admit(t, p.Gate("api"))
		}
		time.Sleep(time.Second)
		load.value.Store(-1)
		time.Sleep(time.Second)
		if s := p.Signals()[0]; s.State != signal.Stale || p.Gate("api").Snapshot().Limit != 20 {
			t.Errorf("after a second: %v, limit %d; want it held", s, p.Gate("api").Snapshot().Limit)
		}
		time.Sleep(3 * time.Second)
		if s := p.Signals()[0]; s.State != signal.Fallback || p.Gate("api").Snapshot().Limit != 5 {
			t.Errorf("after four: %v, limit %d; want the safe value, 2", s, p.Gate("api").Snapshot().Limit)
		}
		load.value.Store(0)
		time.Sleep(time.Second)
		synctest.Wait()
		if len(heard) != 2 || !strings.Contains(heard[0], "load: the dial is broken") || heard[1] != "load is back" {
			t.Errorf("heard %q", heard)
		}
	})
}

// A new policy with the same signals goes on with the poller; with others it has
// its own, and the old one ends.
func TestThePollerLivesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		load := dialled(100)
		l := LimitSpec{Limit: 20, Signals: []string{"load"}}
		opts := Options{Signals: loadOf(load)}
		old := must(t, limitSpec(l), opts)
		time.Sleep(time.Second)

		l.Limit, opts.Previous = 30, old
		next := must(t, limitSpec(l), opts)
		old.Replace(next)
		old.Close()
		if next.polled != old.polled {
			t.Error("another poller for the same signals")
		}
		if _, err := Compile(Spec{Gates: map[string]GateSpec{"a": {}}}, Options{Previous: next}); err == nil {
			t.Error("no fault")
		}
		if s := next.Signals()[0]; s.State != signal.Fresh {
			t.Errorf("after a reload: %v", s)
		}

		spec := limitSpec(l)
		spec.Signals = map[string]SignalSpec{"load": {Interval: Duration(time.Second)}}
		opts.Previous = next
		last := must(t, spec, opts)
		next.Replace(last)
		if last.polled == next.polled || next.Signals()[0].State != signal.Closed {
			t.Errorf("after another interval the old poller is %v", next.Signals()[0])
		}
		time.Sleep(2 * time.Second)
		if s := last.Signals()[0]; s.State != signal.Fresh {
			t.Errorf("the new poller: %v", s)
		}
		last.Close()
		synctest.Wait() // one may be under way
		before := load.reads.Load()
		time.Sleep(time.Minute)
		if n := load.reads.Load(); n != before {
			t.Errorf("%d readings after the end", n-before)
		}
	})
}

// A new policy reads the signal that it was given, also if the one before had another of that name.
func TestAReloadReadsTheNewSignal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := LimitSpec{Limit: 20, Signals: []string{"load"}}
		old := must(t, limitSpec(l), Options{Signals: loadOf(dialled(100))})
		next := must(t, limitSpec(l), Options{Signals: loadOf(dialled(700)), Previous: old})
		old.Replace(next)
		defer next.Close()
		time.Sleep(time.Second)
		if s := next.Signals()[0]; s.Value != 0.7 {
			t.Errorf("reads %v of the signal before", s.Value)
		}
	})
}

// A gate that is gone is guarded until it closes.
func TestThePollerOutlivesARetiringGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old := must(t, limitSpec(LimitSpec{Limit: 1, Signals: []string{"load"}}), Options{Signals: loadOf(dialled(0))})
		time.Sleep(time.Second)
		next := must(t, Spec{}, Options{Previous: old})
		old.Replace(next)
		if s := old.Signals()[0]; s.State != signal.Fresh {
			t.Errorf("at once: %v", s)
		}
		time.Sleep(time.Hour)
		if s := old.Signals()[0]; s.State != signal.Closed {
			t.Errorf("an hour later: %v", s)
		}
	})
}

// fixedReadings is a source that says always the same.
type fixedReadings []control.Reading

func (r fixedReadings) Readings(into []control.Reading) []control.Reading { return append(into, r...) }

func TestReadingsOfOnesOwn(t *testing.T) {
	var now time.Duration
	l := LimitSpec{Limit: 20, Signals: []string{"cpu"}}
	_, err := Compile(limitSpec(l), Options{Now: func() time.Duration { return now }})
	if got := faultsOf(t, err); len(got) != 1 || !strings.HasPrefix(got[0], "gates.api.limit: signals are read from this machine") || !strings.HasSuffix(got[0], "leave them out") {
		t.Errorf("virtual time without readings: %v", got)
	}
	p := compile(t, limitSpec(l), Options{
		Now:      func() time.Duration { return now },
		Readings: fixedReadings{{Name: "memory", Value: 9, Known: true}, {Name: "cpu", Value: 2, Known: true}},
	})
	for range 10 {
		admit(t, p.Gate("api"))
	}
	for now < time.Second {
		now += 10 * time.Millisecond
		p.Step()
	}
	if s := p.Gate("api").Snapshot(); s.Limit != 5 || s.Signal != "cpu" || p.Signals() != nil {
		t.Errorf("limit %d by %q; want 5 by cpu, whose pressure is 2", s.Limit, s.Signal)
	}
}

func TestNumberIn(t *testing.T) {
	f := func(text, field string, want float64, problem string) {
		t.Helper()
		got, err := numberIn(strings.NewReader(text), field)
		if problem != "" {
			if err == nil || !strings.Contains(err.Error(), problem) {
				t.Errorf("%q at %q: %v, %v; want %q", text, field, got, err, problem)
			}
			return
		}
		if err != nil || got != want {
			t.Errorf("%q at %q: %v, %v; want %v", text, field, got, err, want)
		}
	}
	f(" 12.5\n", "", 12.5, "")
	f(`{"lag": {"orders": [3, "4e2"]}}`, "lag.orders.1", 400, "")
	f(`{"lag": 7}`, "lag", 7, "")
	f("many", "", 0, `"many" is not a number`)
	f(`{"lag": 7}`, "lag.total", 0, `field lag.total: there is no "total"`)
	f(`{"lag": [7]}`, "lag.1", 0, `there is no "1"`)
	f(`{"lag": true}`, "lag", 0, "holds no number")
	f(`{"lag"`, "lag", 0, "no JSON")
	f(strings.Repeat(" ", maxDocument)+"1", "", 0, "longer than")
}

func TestFileAndHTTP(t *testing.T) {
	file := filepath.Join(t.TempDir(), "lag")
	if err := os.WriteFile(file, []byte("41\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if v, err := (SignalSpec{Path: file}).fromFile(t.Context()); v != 41 || err != nil {
		t.Errorf("file: %v, %v", v, err)
	}
	if _, err := (SignalSpec{Path: file + "x"}).fromFile(t.Context()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/lag" {
			w.WriteHeader(http.StatusTeapot)
		}
		_, _ = w.Write([]byte(`{"total": 42}`))
	}))
	defer up.Close()
	if v, err := (SignalSpec{URL: up.URL + "/lag", Field: "total"}).fromHTTP(t.Context()); v != 42 || err != nil {
		t.Errorf("http: %v, %v", v, err)
	}
	if _, err := (SignalSpec{URL: up.URL, Field: "total"}).fromHTTP(t.Context()); err == nil || !strings.Contains(err.Error(), "418") {
		t.Errorf("another status: %v", err)
	}
	up.Close()
	if _, err := (SignalSpec{URL: up.URL}).fromHTTP(t.Context()); err == nil {
		t.Error("nobody there: no error")
	}
}

// Whatever a server does, one question ends with its context, costs no more than a
// bounded read, and asks nobody else.
func TestHTTPThatMeansHarm(t *testing.T) {
	var elsewhere, sent atomic.Int64
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
	defer other.Close()
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		want   string
	}{
		"silent": {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, "deadline exceeded"},
		"endless": {func(w http.ResponseWriter, r *http.Request) {
			tick := time.NewTicker(time.Millisecond) // or it would be long, not endless
			defer tick.Stop()
			for r.Context().Err() == nil {
				_, _ = w.Write([]byte(" "))
				_ = http.NewResponseController(w).Flush()
				select {
				case <-tick.C:
				case <-r.Context().Done():
				}
			}
		}, "deadline exceeded"},
		"a gigabyte": {func(w http.ResponseWriter, _ *http.Request) {
			n, _ := io.CopyN(w, zeros{}, 1<<30)
			sent.Store(n)
		}, "longer than 65536 bytes"},
		"redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, other.URL, http.StatusFound)
		}, "302 Found, not 200 OK"},
		"header": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Much", strings.Repeat("x", 1<<20))
		}, "header"},
		"nothing": {func(http.ResponseWriter, *http.Request) {}, "not a number"},
	} {
		up := httptest.NewServer(c.answer)
		patience := time.Minute
		if c.want == "deadline exceeded" {
			patience = 300 * time.Millisecond
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		v, err := (SignalSpec{URL: up.URL}).fromHTTP(ctx)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, %v; want %q", name, v, err, c.want)
		}
		cancel()
		up.CloseClientConnections()
		up.Close()
	}
	if elsewhere.Load() > 0 {
		t.Error("a redirect was followed")
	}
	if n := sent.Load(); n > 64<<20 {
		t.Errorf("%d bytes of the gigabyte were taken", n)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// A thousand reloads, each with another poller, while signals hang, lie, fail and
// panic: whatever polled before has ended when the policy is closed, or the bubble
// would not.
//
// It runs on one processor. All timers of a bubble share one context of the race
// detector, and two processors that run such timers at the same time crash it in one of
// 25 storms (golang/go#78156).
func TestReloadStormWithSignals(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	synctest.Test(t, func(t *testing.T) {
		var running atomic.Int64
		var say atomic.Uint64 // bits of what the liar says
		counted := func(name string, read func(context.Context) (float64, error)) signal.Signal {
			return signal.Func(name, func(ctx context.Context) (float64, error) {
				running.Add(1)
				defer running.Add(-1)
				return read(ctx)
			})
		}
		signals := map[string]signal.Signal{
			"hangs": counted("hangs", func(ctx context.Context) (float64, error) { <-ctx.Done(); return 0, ctx.Err() }),
			"lies": counted("lies", func(context.Context) (float64, error) {
				return []float64{math.NaN(), math.Inf(1), -1, 0.5, 1e300}[say.Add(1)%5], nil
			}),
			"panics": counted("panics", func(context.Context) (float64, error) { panic("boo") }),
		}
		var p *Policy
		for n := range 1000 {
			spec := limitSpec(LimitSpec{Controller: "knee", Signals: []string{"hangs", "lies", "panics"}})
			spec.Signals = map[string]SignalSpec{"hangs": {Interval: Duration(time.Duration(1+n) * time.Millisecond)}}
			next := must(t, spec, Options{Signals: signals, Previous: p})
			if p != nil {
				p.Replace(next)
			}
			p = next
			if permit, err := p.Gate("api").TryAdmit(weir.Work{}); err == nil {
				permit.Done(weir.OK)
			}
			time.Sleep(time.Duration(n%20) * time.Millisecond)
		}
		synctest.Wait()
		if n := running.Load(); n > 3 {
			t.Errorf("%d readings under way, want one of each signal at most", n)
		}
		if s := p.Gate("api").Snapshot(); s.Limit < 1 || s.Faults > 0 {
			t.Errorf("limit %d, %d faults", s.Limit, s.Faults)
		}
		p.Close()
		synctest.Wait()
		if n := running.Load(); n > 0 {
			t.Errorf("%d readings after the end", n)
		}
	})
}
