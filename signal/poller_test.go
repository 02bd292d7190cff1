package signal

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir/control"
)

const ms = time.Millisecond

// script is a signal that answers as it is told; by default 0.5 at once.
type script struct {
	name  string
	say   func(ctx context.Context) (float64, error)
	calls atomic.Int64
	busy  atomic.Int64
	most  atomic.Int64 // readings at a time
}

func (s *script) Name() string { return s.name }

func (s *script) Read(ctx context.Context) (float64, error) {
	s.calls.Add(1)
	s.most.Store(max(s.most.Load(), s.busy.Add(1)))
	defer s.busy.Add(-1)
	if s.say == nil {
		return 0.5, nil
	}
	return s.say(ctx)
}

// number is a value that a test changes while a poller reads it.
type number struct{ bits atomic.Uint64 }

func (n *number) set(v float64) { n.bits.Store(math.Float64bits(v)) }

func (n *number) read(context.Context) (float64, error) {
	return math.Float64frombits(n.bits.Load()), nil
}

// ear notes what the hooks are told.
type ear struct{ heard chan string }

func newEar() ear { return ear{make(chan string, 1000)} }

func (e ear) hooks() Hooks {
	return Hooks{
		Trouble:   func(s string, err error) { e.heard <- s + ": " + err.Error() },
		Recovered: func(s string) { e.heard <- s + " recovered" },
	}
}

func (e ear) all() []string {
	var all []string
	for len(e.heard) > 0 {
		all = append(all, <-e.heard)
	}
	return all
}

func poller(t *testing.T, hooks Hooks, watches ...Watch) *Poller {
	t.Helper()
	p, err := NewPoller(Config{Watches: watches, Hooks: hooks})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestPollerReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var v number
		v.set(0.25)
		first := make(chan struct{})
		a := &script{name: "a", say: func(ctx context.Context) (float64, error) { <-first; return v.read(ctx) }}
		b := &script{name: "b", say: func(context.Context) (float64, error) { return 0, ErrNoValue }}
		p := poller(t, Hooks{}, Watch{Signal: a}, Watch{Signal: b, Interval: 10 * ms})
		defer p.Close()
		if got := p.Readings(nil); got[0].Known || p.Snapshot()[0].State != Starting {
			t.Errorf("before the first reading: %+v", got)
		}
		close(first)
		synctest.Wait()
		want := []control.Reading{{Name: "a", Value: 0.25, Known: true}, {Name: "b"}}
		if got := p.Readings(nil); !slices.Equal(got, want) {
			t.Errorf("%+v, want %+v", got, want)
		}
		v.set(3)
		time.Sleep(1050 * ms)
		synctest.Wait()
		if got := p.Readings(nil)[0]; got.Value != 3 {
			t.Errorf("%+v, want 3", got)
		}
		if a.calls.Load() != 11 || b.calls.Load() != 106 {
			t.Errorf("read %d and %d times in 1050 ms", a.calls.Load(), b.calls.Load())
		}
		if s := p.Snapshot(); s[0].State != Fresh || s[0].Age != 50*ms || s[0].Reads != 11 || s[1].State != Unknown || s[1].Failures != 0 {
			t.Errorf("%+v", s)
		}
	})
}

func TestPollerPolicies(t *testing.T) {
	for _, tt := range []struct {
		watch Watch
		state State
		want  control.Reading
	}{
		{Watch{}, Unknown, control.Reading{Name: "a"}},
		{Watch{Fallback: 2}, Fallback, control.Reading{Name: "a", Value: 2, Known: true}},
	} {
		t.Run(string(tt.state), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var broken atomic.Bool
				tt.watch.Signal = Func("a", func(context.Context) (float64, error) {
					if !broken.Load() {
						return 0.5, nil
					}
					return 7, errors.New("broken")
				})
				tt.watch.Hold = 500 * ms
				e := newEar()
				p := poller(t, e.hooks(), tt.watch)
				defer p.Close()
				synctest.Wait()
				broken.Store(true)
				time.Sleep(500 * ms)
				if s := p.Snapshot()[0]; s.State != Stale || s.Value != 0.5 || !s.Known || s.Err == nil {
					t.Errorf("at the end of Hold: %+v", s)
				}
				time.Sleep(ms)
				if s := p.Snapshot()[0]; s.State != tt.state || p.Readings(nil)[0] != tt.want {
					t.Errorf("after Hold: %+v, %+v", s, p.Readings(nil))
				}
				time.Sleep(time.Minute)
				broken.Store(false)
				time.Sleep(101 * ms)
				if s := p.Snapshot()[0]; s.State != Fresh || s.Err != nil {
					t.Errorf("well again: %+v", s)
				}
				if got := e.all(); !slices.Equal(got, []string{"a: broken", "a recovered"}) {
					t.Errorf("told %q", got)
				}
			})
		})
	}
}

// A signal that never answered is unknown until Hold has passed.
func TestPollerSafeFromTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := poller(t, Hooks{}, Watch{Signal: Func("a", nil), Hold: time.Second, Fallback: 1.5})
		defer p.Close()
		time.Sleep(time.Second)
		if got := p.Readings(nil)[0]; got.Known {
			t.Errorf("within Hold: %+v", got)
		}
		time.Sleep(ms)
		if got := p.Readings(nil)[0]; !got.Known || got.Value != 1.5 {
			t.Errorf("after Hold: %+v", got)
		}
	})
}

func TestPollerTakesNoNonsense(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var v number
		v.set(0.5)
		e := newEar()
		p := poller(t, e.hooks(), Watch{Signal: Func("a", v.read), Hold: time.Minute})
		defer p.Close()
		synctest.Wait()
		for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), -1} {
			v.set(bad)
			time.Sleep(100 * ms)
			synctest.Wait()
			if s := p.Snapshot()[0]; s.State != Stale || s.Value != 0.5 {
				t.Errorf("%v: %+v", bad, s)
			}
		}
		if s := p.Snapshot()[0]; s.Bad != 4 || s.Failures != 0 || s.Reads != 5 {
			t.Errorf("%+v", s)
		}
		if got := e.all(); len(got) != 1 || !strings.Contains(got[0], "NaN") {
			t.Errorf("told %q, want once, of NaN", got)
		}
	})
}

func TestPollerHanging(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		a := &script{name: "a"}
		a.say = func(context.Context) (float64, error) { // deaf to its context
			if a.calls.Load() == 2 {
				<-release
			}
			return 0.5, nil
		}
		b := &script{name: "b"}
		e := newEar()
		p := poller(t, e.hooks(), Watch{Signal: a, Timeout: 300 * ms, Hold: time.Second}, Watch{Signal: b})
		time.Sleep(350 * ms) // read at 0, hangs since 100 ms
		if s := p.Snapshot()[0]; s.State != Fresh || s.Running != 250*ms {
			t.Errorf("within the time-out: %+v", s)
		}
		time.Sleep(100 * ms)
		synctest.Wait()
		if s := p.Snapshot()[0]; s.State != Stale || s.Value != 0.5 || s.Err == nil {
			t.Errorf("hanging: %+v", s)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if s := p.Snapshot()[0]; s.State != Unknown || a.calls.Load() != 2 || a.most.Load() != 1 {
			t.Errorf("hanging: %+v, %d readings, %d at a time", s, a.calls.Load(), a.most.Load())
		}
		if got := p.Readings(nil)[1]; !got.Known || b.calls.Load() < 100 {
			t.Errorf("the other signal: %+v, read %d times", got, b.calls.Load())
		}
		close(release)
		synctest.Wait()
		if s := p.Snapshot()[0]; s.State != Unknown || s.Err != nil {
			t.Errorf("what it says is as old as the question: %+v", s)
		}
		time.Sleep(150 * ms)
		synctest.Wait()
		if s := p.Snapshot()[0]; s.State != Fresh {
			t.Errorf("well again: %+v", s)
		}
		if got := e.all(); len(got) != 2 || !strings.Contains(got[0], "has not answered for 300ms") || got[1] != "a recovered" {
			t.Errorf("told %q", got)
		}
		p.Close()
	})
}

// A signal that gives up when its context ends is told of once, as hanging.
func TestPollerTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEar()
		p := poller(t, e.hooks(), Watch{Timeout: 50 * ms, Signal: Func("a", func(ctx context.Context) (float64, error) {
			<-ctx.Done()
			return 0, ctx.Err()
		})})
		time.Sleep(10 * time.Second)
		p.Close()
		synctest.Wait()
		if got := e.all(); len(got) != 1 || !strings.Contains(got[0], "50ms") && !strings.Contains(got[0], "deadline") {
			t.Errorf("told %q", got)
		}
		if s := p.Snapshot()[0]; s.Failures < 60 || s.Failures > s.Reads {
			t.Errorf("%+v", s)
		}
	})
}

func TestPollerUnsupported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		missing := &script{name: "a", say: func(context.Context) (float64, error) { return 0, unsupported("no such thing") }}
		e := newEar()
		p := poller(t, e.hooks(), Watch{Signal: missing, Fallback: 9}, Watch{Signal: &script{name: "b"}})
		defer p.Close()
		time.Sleep(10*time.Minute + ms)
		if s := p.Snapshot()[0]; s.State != Unsupported || s.Known {
			t.Errorf("%+v", s)
		}
		if got := p.Readings(nil)[1]; !got.Known {
			t.Errorf("the rest does not go on: %+v", got)
		}
		if got := e.all(); len(got) != 1 || missing.calls.Load() != 11 {
			t.Errorf("told %q, read %d times in 10 min", got, missing.calls.Load())
		}
	})
}

func TestPollerPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEar()
		p := poller(t, e.hooks(), Watch{Signal: Func("a", func(context.Context) (float64, error) { panic("boom") })})
		time.Sleep(time.Second)
		p.Close()
		if got := e.all(); len(got) != 1 || !strings.Contains(got[0], "boom") {
			t.Errorf("told %q", got)
		}
	})
}

// Trouble that comes and goes is told of once a minute at most, and is news
// again after a quiet one.
func TestPollerToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n int
		var quiet atomic.Bool
		e := newEar()
		p := poller(t, e.hooks(), Watch{Signal: Func("a", func(context.Context) (float64, error) {
			if n++; n%2 == 0 && !quiet.Load() {
				return 0, fmt.Errorf("failure %d", n)
			}
			return 1, nil
		})})
		defer p.Close()
		time.Sleep(10 * time.Minute)
		if got := e.all(); len(got) != 2 {
			t.Errorf("told %q in ten minutes of flapping", got)
		}
		quiet.Store(true)
		time.Sleep(62 * time.Second)
		quiet.Store(false)
		time.Sleep(time.Minute)
		if got := e.all(); len(got) != 2 {
			t.Errorf("told %q after a quiet minute", got)
		}
	})
}

func TestPollerSmooths(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var v number
		p := poller(t, Hooks{}, Watch{Signal: Func("a", v.read), Smooth: time.Second})
		defer p.Close()
		synctest.Wait()
		v.set(1)
		time.Sleep(time.Second)
		synctest.Wait()
		if got := p.Readings(nil)[0].Value; math.Abs(got-(1-1/math.E)) > 1e-9 {
			t.Errorf("after one time constant: %v", got)
		}
	})
}

func TestPollerClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		e := newEar()
		p := poller(t, e.hooks(), Watch{Signal: &script{name: "a"}}, Watch{
			Fallback: 3, Signal: Func("hung", func(context.Context) (float64, error) { <-release; return 1, errors.New("late") })})
		time.Sleep(100 * ms)
		began := time.Now()
		p.Close()
		p.Close()
		if time.Since(began) != 0 {
			t.Error("Close waits")
		}
		for _, r := range p.Readings(nil) {
			if r.Known {
				t.Errorf("known after Close: %+v", r)
			}
		}
		close(release) // the bubble ends only if every goroutine does
		synctest.Wait()
		if got := e.all(); len(got) != 0 {
			t.Errorf("told %q after Close", got)
		}
	})
}

func TestPollerFaults(t *testing.T) {
	_, err := NewPoller(Config{Watches: []Watch{
		{},
		{Signal: Func("a", nil), Interval: 1, Timeout: -1, Hold: -1, Fallback: math.NaN(), Smooth: -1},
		{Signal: Func("a", nil), Fallback: -2},
		{Signal: Func("", nil)},
	}})
	for _, want := range []string{"Watches[0]: there is no Signal", "Watches.a.Interval: is 1ns", "a.Timeout: is -1ns", "a.Hold: -1ns", "a.Fallback: NaN", "a.Smooth: is -1ns",
		`Watches[2]: another signal is called "a", too`, "a.Fallback: is -2", "Watches[3]: the signal's name is empty"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want it to say %q", err, want)
		}
	}
	if _, err := NewPoller(Config{}); err == nil {
		t.Error("no signals, no error")
	}
}

func TestReadingsAllocateNothing(t *testing.T) {
	p := poller(t, Hooks{}, Watch{Signal: &script{name: "a"}}, Watch{Signal: &script{name: "b"}})
	defer p.Close()
	into := make([]control.Reading, 0, 2)
	if n := testing.AllocsPerRun(100, func() { into = p.Readings(into[:0]) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkReadings(b *testing.B) {
	var watches []Watch
	for _, s := range Default() {
		watches = append(watches, Watch{Signal: s})
	}
	p, err := NewPoller(Config{Watches: watches})
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	into := make([]control.Reading, 0, len(watches))
	b.ReportAllocs()
	for b.Loop() {
		into = p.Readings(into[:0])
	}
}
