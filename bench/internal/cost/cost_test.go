package cost

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/bench/internal/kit"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/limit"
)

// TestSubjects: each subject does what it is measured for, on one goroutine and
// on two, and can be set up afresh.
func TestSubjects(t *testing.T) {
	for _, g := range Groups() {
		for _, s := range g.All() {
			t.Run(g.Name+"/"+s.Name, func(t *testing.T) {
				for _, workers := range []int{1, 2} {
					if g.Pair && workers > 1 {
						continue
					}
					loop, stop := s.New()
					if _, _, err := run(loop, 2000, workers); err != nil {
						t.Errorf("%d workers: %v", workers, err)
					}
					stop()
				}
			})
		}
	}
}

// On one key the peers are asked for the same one as weir, without a ring of keys between.
func TestOneKeyHasNoRing(t *testing.T) {
	asks := map[string]int{}
	loop, stop := asked(0, func(context.Context) (decide, func()) {
		return func(key string) error {
			asks[key]++
			return nil
		}, func() {}
	})()
	defer stop()
	if err := loop(5); err != nil || len(asks) != 1 || asks[theOne] != 6 {
		t.Errorf("%v, %v; want six for %q", err, asks, theOne)
	}
}

func TestMeasure(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	// So much more than a look at the clock takes, and so many turns that a busy machine leaves one of them alone.
	floor := Subject{Name: "floor", New: ready(func() Loop { return spinning(8 * time.Microsecond) })}
	triple := Subject{Name: "triple", Goal: goal{Ratio: 1.5}, New: ready(func() Loop { return spinning(24 * time.Microsecond) })}
	figures, err := Measure(group{Floor: floor, Peers: []Subject{triple}},
		Plan{Procs: 1, Rounds: 3, Turns: 30, Turn: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if r := figures[0].Ratio; r.Min != 1 || r.Max != 1 {
		t.Errorf("the floor's ratio to itself is %v", r)
	}
	if r := figures[1].Ratio.Median; r < 2 || r > 4.5 {
		t.Errorf("three times the work measured as %.2f times the floor", r)
	}
	if v, judged := figures[1].Verdict(1); v.Reached || !judged {
		t.Errorf("3x against a goal of 1.5x: %v, judged %v", &v, judged)
	}
	if now := runtime.GOMAXPROCS(0); now != before {
		t.Errorf("GOMAXPROCS was %d and is %d", before, now)
	}
}

// spinning keeps the processor busy for d an operation.
func spinning(d time.Duration) Loop {
	return func(n int) error {
		for range n {
			for begin := time.Now(); time.Since(begin) < d; {
			}
		}
		return nil
	}
}

func TestMeasureReportsFaults(t *testing.T) {
	bad := Subject{Name: "bad", New: ready(func() Loop { return func(int) error { return errFull } })}
	_, err := Measure(group{Name: "group", Floor: bad}, Plan{Procs: 1, Rounds: 1, Turns: 1, Turn: time.Millisecond})
	if err == nil || !strings.Contains(err.Error(), "group: bad") {
		t.Errorf("error %v, want one that names group and subject", err)
	}
	if _, err := Measure(group{Floor: bad}, Plan{}); err == nil {
		t.Error("an empty plan gave no error")
	}
}

func TestGoals(t *testing.T) {
	for _, tt := range []struct {
		goal          goal
		procs         int
		ratio, extra  float64
		reached, have bool
		text          string
	}{
		{goal{}, 1, 9, 9, false, false, ""},
		{goal{Ratio: 1.5}, 1, 1.5, 9, true, true, "ratio 1.5 ≤ 1.5 ✓"},
		{goal{Ratio: 1.5}, 2, 1.6, 9, false, true, "ratio 1.6 ≤ 1.5 ✗"},
		{goal{Ratio: 1.5, Shared: 1.3}, 2, 1.4, 9, false, true, "ratio 1.4 ≤ 1.3 ✗"},
		{goal{Extra: 30}, 1, 99, 30, true, true, "ns above 30 ≤ 30 ✓"},
		{goal{Extra: 30}, 2, 1, 31, false, true, "ns above 31 ≤ 30 ✗"},
	} {
		f := figure{Subject: Subject{Goal: tt.goal}, Ratio: kit.Spread{Median: tt.ratio}, Extra: kit.Spread{Median: tt.extra}}
		v, judged := f.Verdict(tt.procs)
		if v.Reached != tt.reached || judged != tt.have {
			t.Errorf("%+v on %d cores at %vx +%v: %v, %v", tt.goal, tt.procs, tt.ratio, tt.extra, &v, judged)
		}
		if judged && v.String() != tt.text {
			t.Errorf("%+v on %d cores reads %q, want %q", tt.goal, tt.procs, &v, tt.text)
		}
	}
}

// Benchmark offers the subjects to benchstat and to profilers:
//
//	go test -run - -bench ./fixed/weir -cpu 1,2 -cpuprofile cpu.out
func Benchmark(b *testing.B) {
	for _, g := range Groups() {
		for _, s := range g.All() {
			b.Run(g.Name+"/"+s.Name, func(b *testing.B) {
				loop, stop := s.New()
				defer stop()
				workers := runtime.GOMAXPROCS(0)
				if g.Pair {
					workers = 1
				}
				b.ReportAllocs()
				b.ResetTimer()
				if _, _, err := run(loop, b.N, workers); err != nil {
					b.Fatal(err)
				}
			})
		}
	}
}

// BenchmarkTick tells the median of what closing a full window costs the gate,
// filling it left out; the goal is 50 µs, however many permits are out. What it allocates are the refusals
// that all share, made anew when the limit has changed.
func BenchmarkTick(b *testing.B) {
	t, err := newTick()
	if err != nil {
		b.Fatal(err)
	}
	var all []float64
	for b.Loop() {
		took, err := t.once()
		if err != nil {
			b.Fatal(err)
		}
		all = append(all, float64(took.Nanoseconds()))
	}
	b.ReportAllocs()
	b.ReportMetric(kit.SpreadOf(all).Median, "ns/tick")
	b.ReportMetric(float64(len(t.held)), "permits")
}

// TestQuotaSubjects: each does what it is measured for, on one goroutine and on
// two.
func TestQuotaSubjects(t *testing.T) {
	for _, g := range quotaGroups(10_000) {
		for _, s := range g.All() {
			t.Run(g.Name+"/"+s.Name, func(t *testing.T) {
				loop, stop := s.New()
				defer stop()
				for _, workers := range []int{1, 2} {
					if _, _, err := run(loop, 2000, workers); err != nil {
						t.Errorf("%d workers: %v", workers, err)
					}
				}
			})
		}
	}
}

// A tick's window: as many samples as a gate keeps at most, and permits out.
const (
	tickSamples = 512
	tickOut     = 10_000
)

// tick closes windows of the default controller, full of samples, with permits
// out, and returns how long that took. Filling the windows is not in it.
type tick struct {
	limiter *limit.Limiter
	now     atomic.Int64
	held    []weir.Permit
}

// newTick sets up a gate on a clock of its own with so many permits out, all that
// the limit allows.
func newTick() (*tick, error) {
	c, err := control.NewBelief(control.BeliefConfig{})
	if err != nil {
		return nil, err
	}
	c.Restore(control.State{Limit: tickOut}) // which it compares with its neighbours
	t := &tick{}
	t.limiter, err = limit.New(limit.Config{Name: "bench", Controller: c, Now: func() time.Duration { return time.Duration(t.now.Load()) }})
	if err != nil {
		return nil, err
	}
	t.fill()
	return t, nil
}

// fill takes all that the limit allows.
func (t *tick) fill() {
	for {
		p, err := t.limiter.TryAdmit(weir.Work{})
		if err != nil {
			return
		}
		t.held = append(t.held, p)
	}
}

// once fills a window and returns how long closing it took.
func (t *tick) once() (time.Duration, error) {
	at, ok := t.limiter.Next()
	if !ok {
		return 0, errors.New("cost: no window is open")
	}
	step := (int64(at) - t.now.Load()) / (tickSamples + 1)
	for range tickSamples {
		t.now.Add(step)
		last := len(t.held) - 1
		t.held[last].Done(weir.OK)
		t.held = t.held[:last]
		t.fill() // unless the limit has gone down
	}
	t.now.Store(int64(at))
	began := time.Now()
	t.limiter.Step()
	return time.Since(began), nil
}
