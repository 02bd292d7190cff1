package throttle

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-go/weir"
)

func breakerOf(t testing.TB, cfg BreakerConfig) *breaker {
	t.Helper()
	cfg, err := cfg.complete()
	if err != nil {
		t.Fatal(err)
	}
	b := newBreaker(&cfg)
	return &b
}

// A breaker step by step: each call, and the state afterwards.
func TestBreakerSteps(t *testing.T) {
	const (
		admit = iota
		refuse
		ok
		fail
		unknown
		lose // work in flight never ends
	)
	type step struct {
		at    time.Duration
		do    int
		state State
	}
	for _, tt := range []struct {
		name  string
		cfg   BreakerConfig
		steps []step
	}{
		{"a run opens, probes close", BreakerConfig{Run: 3, Probes: 2}, []step{
			{0, admit, Closed}, {0, fail, Closed},
			{0, admit, Closed}, {0, fail, Closed},
			{0, admit, Closed}, {time.Second, fail, Open},
			{2 * time.Second, refuse, Open},
			{5999 * time.Millisecond, refuse, Open},
			{6 * time.Second, admit, HalfOpen}, {6 * time.Second, admit, HalfOpen},
			{6 * time.Second, refuse, HalfOpen}, // both places are taken
			{7 * time.Second, ok, HalfOpen}, {7 * time.Second, ok, Closed},
		}},
		{"a success ends the run", BreakerConfig{Run: 2}, []step{
			{0, admit, Closed}, {0, fail, Closed}, {0, admit, Closed}, {0, ok, Closed}, {0, admit, Closed}, {0, fail, Closed},
		}},
		{"a rate needs enough results", BreakerConfig{Least: 4}, []step{
			{0, admit, Closed}, {0, fail, Closed}, {0, admit, Closed}, {0, fail, Closed}, {0, admit, Closed}, {0, ok, Closed},
			{0, admit, Closed}, {0, fail, Open},
		}},
		{"the rate itself is enough", BreakerConfig{Least: 4}, []step{
			{0, admit, Closed}, {0, ok, Closed}, {0, admit, Closed}, {0, ok, Closed}, {0, admit, Closed}, {0, fail, Closed},
			{0, admit, Closed}, {0, fail, Open},
		}},
		{"old results do not count", BreakerConfig{Least: 2}, []step{
			{0, admit, Closed}, {0, fail, Closed},
			{11 * time.Second, admit, Closed}, {11 * time.Second, fail, Closed},
		}},
		{"a failed probe opens again", BreakerConfig{Run: 1, Probes: 2}, []step{
			{0, admit, Closed}, {0, fail, Open},
			{5 * time.Second, admit, HalfOpen}, {5 * time.Second, fail, Open},
			{9 * time.Second, refuse, Open}, {10 * time.Second, admit, HalfOpen},
		}},
		{"good probes before a failed one do not count", BreakerConfig{Run: 1, Probes: 2}, []step{
			{0, admit, Closed}, {0, fail, Open},
			{5 * time.Second, admit, HalfOpen}, {5 * time.Second, ok, HalfOpen}, {5 * time.Second, admit, HalfOpen}, {5 * time.Second, fail, Open},
			{10 * time.Second, admit, HalfOpen}, {10 * time.Second, ok, HalfOpen}, {10 * time.Second, admit, HalfOpen}, {10 * time.Second, ok, Closed},
		}},
		{"a probe without a result gives its place back", BreakerConfig{Run: 1, Probes: 1}, []step{
			{0, admit, Closed}, {0, fail, Open},
			{5 * time.Second, admit, HalfOpen}, {5 * time.Second, refuse, HalfOpen},
			{6 * time.Second, unknown, HalfOpen}, {6 * time.Second, admit, HalfOpen}, {6 * time.Second, ok, Closed},
		}},
		{"a probe without a result breaks no row", BreakerConfig{Run: 1, Probes: 2}, []step{
			{0, admit, Closed}, {0, fail, Open},
			{5 * time.Second, admit, HalfOpen}, {5 * time.Second, ok, HalfOpen}, {5 * time.Second, admit, HalfOpen}, {5 * time.Second, unknown, HalfOpen},
			{5 * time.Second, admit, HalfOpen}, {5 * time.Second, ok, Closed},
		}},
		{"good probes may be far apart", BreakerConfig{Run: 1, Probes: 2}, []step{
			{0, admit, Closed}, {0, fail, Open},
			{5 * time.Second, admit, HalfOpen}, {5 * time.Second, ok, HalfOpen}, {time.Hour, admit, HalfOpen}, {time.Hour, ok, Closed},
		}},
		{"beside a probe that never ends, others close it", BreakerConfig{Run: 1, Probes: 2}, []step{
			{0, admit, Closed}, {0, fail, Open},
			{5 * time.Second, admit, HalfOpen}, {5 * time.Second, lose, HalfOpen},
			{5 * time.Second, admit, HalfOpen}, {5 * time.Second, ok, HalfOpen}, {5 * time.Second, admit, HalfOpen}, {5 * time.Second, ok, Closed},
		}},
		{"what was under way when it opened prolongs nothing", BreakerConfig{Run: 1}, []step{
			{0, admit, Closed}, {0, admit, Closed}, {0, fail, Open}, {4 * time.Second, fail, Open},
			{5 * time.Second, admit, HalfOpen},
		}},
		{"the second failed probe prolongs nothing", BreakerConfig{Run: 1, Probes: 2}, []step{
			{0, admit, Closed}, {0, fail, Open},
			{5 * time.Second, admit, HalfOpen}, {5 * time.Second, admit, HalfOpen}, {5 * time.Second, fail, Open}, {9 * time.Second, fail, Open},
			{10 * time.Second, admit, HalfOpen},
		}},
		{"a probe that ends once it is closed says nothing", BreakerConfig{Run: 1, Probes: 2}, []step{
			{0, admit, Closed}, {0, fail, Open},
			{5 * time.Second, admit, HalfOpen}, {5 * time.Second, admit, HalfOpen}, {5 * time.Second, ok, HalfOpen}, {5 * time.Second, admit, HalfOpen},
			{5 * time.Second, ok, Closed}, {5 * time.Second, fail, Closed},
		}},
		{"closed again, it begins anew", BreakerConfig{Least: 2, Probes: 1}, []step{
			{0, admit, Closed}, {0, fail, Closed}, {0, admit, Closed}, {0, fail, Open},
			{5 * time.Second, admit, HalfOpen}, {5 * time.Second, ok, Closed},
			{5 * time.Second, admit, Closed}, {5 * time.Second, fail, Closed}, {5 * time.Second, admit, Closed}, {5 * time.Second, fail, Open},
		}},
	} {
		b := breakerOf(t, tt.cfg)
		var eras []uint32 // of what is under way
		for i, s := range tt.steps {
			switch s.do {
			case admit, refuse:
				if _, admitted := b.admit(s.at); admitted != (s.do == admit) {
					t.Fatalf("%s: step %d: admitted %v", tt.name, i, admitted)
				}
				if s.do == admit {
					eras = append(eras, b.era)
				}
			default:
				if s.do != lose {
					b.sample(s.at, eras[0], s.do == fail, s.do != unknown)
				}
				eras = eras[1:]
			}
			if b.state != s.state {
				t.Fatalf("%s: step %d: %v (%s), want %v", tt.name, i, b.state, b.reason, s.state)
			}
		}
	}
}

// The rate itself is enough, whatever its digits: 7 of 100 at a rate of 0.07.
func TestBreakerOpensAtItsRate(t *testing.T) {
	for percent := 1; percent <= 100; percent++ {
		for failures, want := range map[int]State{percent - 1: Closed, percent: Open} {
			b := breakerOf(t, BreakerConfig{Rate: float64(percent) / 100, Least: 100})
			for i := range 100 {
				b.sample(0, b.era, i >= 100-failures, true)
			}
			if b.state != want {
				t.Errorf("%d of 100 results failed, at a rate of %v: %v, want %v", failures, b.cfg.Rate, b.state, want)
			}
		}
	}
}

// An open breaker says when to come back. A half-open one cannot tell.
func TestBreakerSaysWhen(t *testing.T) {
	b := breakerOf(t, BreakerConfig{Run: 1, Probes: 1})
	b.sample(0, b.era, true, true)
	for _, tt := range []struct {
		at, want time.Duration
		admitted bool
	}{
		{0, 5 * time.Second, false},
		{2 * time.Second, 3 * time.Second, false},
		{5*time.Second - 1, 1, false},
		{5 * time.Second, 0, true},
		{5 * time.Second, 0, false},
	} {
		if retry, ok := b.admit(tt.at); retry != tt.want || ok != tt.admitted {
			t.Errorf("at %v: admitted %v, to come back in %v; want %v, %v", tt.at, ok, retry, tt.admitted, tt.want)
		}
	}
}

// Work that was sent before the breaker opened says nothing about the probes, also when other probes have their
// places.
func TestBreakerForgetsEarlierWork(t *testing.T) {
	b := breakerOf(t, BreakerConfig{Run: 1, Probes: 1})
	for range 3 {
		b.admit(0)
	}
	before := b.era
	b.sample(0, before, true, true)
	if _, ok := b.admit(5 * time.Second); !ok || b.state != HalfOpen {
		t.Fatalf("no probe: %v", b.state)
	}
	for _, now := range []time.Duration{5 * time.Second, 10 * time.Second} {
		b.sample(now, before, false, true)
		b.sample(now, before, true, true)
		b.admit(now)
		if b.state != HalfOpen || b.probes != 1 {
			t.Errorf("earlier work has moved it: %v with %d probes", b.state, b.probes)
		}
	}
}

// Probes that never return do not keep the breaker half-open for ever. A late result counts, and gives back no
// place that its probe has lost.
func TestBreakerProbesThatNeverReturn(t *testing.T) {
	for _, tt := range []struct {
		name           string
		failure, known bool
		want           State
	}{
		{"fails", true, true, Open},
		{"succeeds", false, true, Closed},
		{"says nothing", false, false, HalfOpen},
	} {
		b := breakerOf(t, BreakerConfig{Run: 1, Probes: 1})
		b.admit(0)
		b.sample(0, b.era, true, true)
		b.admit(5 * time.Second)
		lost := b.era
		if _, ok := b.admit(9 * time.Second); ok {
			t.Error("a second probe beside the first")
		}
		if _, ok := b.admit(10 * time.Second); !ok {
			t.Error("the place of a lost probe is not free after 5s")
		}
		b.sample(11*time.Second, lost, tt.failure, tt.known)
		if b.state != tt.want {
			t.Errorf("a lost probe %s: %v, want %v", tt.name, b.state, tt.want)
		}
		if _, ok := b.admit(11 * time.Second); ok != (tt.want == Closed) {
			t.Errorf("a lost probe %s: then another is admitted: %v", tt.name, ok)
		}
	}
}

// Calls may take longer than Open. If the server answers, they close the breaker; if they end by a time-out,
// they open it.
func TestBreakerSlowCalls(t *testing.T) {
	type call struct {
		end time.Duration
		era uint32
	}
	for _, probes := range []int{1, 3} {
		for _, fails := range []bool{false, true} {
			b := breakerOf(t, BreakerConfig{Run: 1, Probes: probes, Open: time.Second})
			b.sample(0, b.era, true, true)
			var calls []call // under way
			opened := 0
			for now := time.Second; now < 30*time.Second; now += 100 * time.Millisecond {
				for ; len(calls) > 0 && calls[0].end <= now; calls = calls[1:] {
					before := b.state
					if b.sample(now, calls[0].era, fails, true); b.state == Open && before != Open {
						opened++
					}
				}
				if _, ok := b.admit(now); ok {
					calls = append(calls, call{now + 2*time.Second, b.era})
				}
			}
			switch {
			case fails && opened < 5:
				t.Errorf("%d probes: opened %d times in 30s of calls that fail after 2s", probes, opened)
			case !fails && b.state != Closed:
				t.Errorf("%d probes: %v after 30s of calls that succeed after 2s", probes, b.state)
			}
		}
	}
}

// A jump of the clock forward is time that has passed; a jump back is no time.
func TestBreakerClockJumps(t *testing.T) {
	const year = 365 * 24 * time.Hour
	b := breakerOf(t, BreakerConfig{Run: 1, Probes: 1})
	b.admit(0)
	b.sample(0, b.era, true, true)
	if _, ok := b.admit(-year); ok {
		t.Error("open, and a step back has let work through")
	}
	if _, ok := b.admit(year); !ok || b.state != HalfOpen {
		t.Errorf("%v after a year", b.state)
	}
	b.sample(-year, b.era, true, true)
	if retry, ok := b.admit(0); ok || retry != 5*time.Second {
		t.Errorf("open again, and admitted %v, to come back in %v; want 5s, as after no time", ok, retry)
	}
	b.admit(math.MaxInt64)
	b.sample(math.MaxInt64, b.era, false, true)
	if _, ok := b.admit(math.MinInt64); !ok || b.state != Closed {
		t.Errorf("%v after a good probe", b.state)
	}
}

// Whatever happens, the places of probes are neither lost nor doubled, and no state lasts for ever.
func TestBreakerModel(t *testing.T) {
	for seed := range uint64(30) {
		random := rand.New(rand.NewPCG(seed, 5))
		b := breakerOf(t, BreakerConfig{Run: 2 + random.IntN(3), Least: 5, Probes: 1 + random.IntN(4)})
		driveBreaker(t, b, 3000, func(n int) int { return random.IntN(n) })
	}
}

func FuzzBreaker(f *testing.F) {
	f.Add([]byte{0, 0, 2, 2, 9, 0, 1})
	f.Fuzz(func(t *testing.T, ops []byte) {
		b := breakerOf(t, BreakerConfig{Run: 2, Least: 5, Probes: 2})
		driveBreaker(t, b, len(ops), func(n int) int {
			if len(ops) == 0 {
				return 0
			}
			op := ops[0]
			ops = ops[1:]
			return int(op) % n
		})
	})
}

func driveBreaker(t *testing.T, b *breaker, steps int, pick func(n int) int) {
	t.Helper()
	var under []uint32 // eras of what is under way
	var now time.Duration
	for range steps {
		switch op := pick(8); op {
		case 0, 1, 2:
			if _, ok := b.admit(now); ok {
				under = append(under, b.era)
			}
		case 3, 4, 5:
			if len(under) > 0 {
				i := pick(len(under))
				b.sample(now, under[i], op == 4, op != 5)
				under = append(under[:i], under[i+1:]...)
			}
		case 6:
			now += time.Duration(pick(2000)) * time.Millisecond
		case 7:
			now -= time.Duration(pick(100)) * time.Millisecond
		}
		probes := 0
		for _, era := range under {
			if b.state == HalfOpen && era == b.era {
				probes++
			}
		}
		if b.probes != probes || b.probes > b.cfg.Probes {
			t.Fatalf("%v: counts %d probes of at most %d, and %d are under way", b.state, b.probes, b.cfg.Probes, probes)
		}
	}
	// After a long pause, the breaker admits work.
	if _, ok := b.admit(max(now, b.last) + time.Minute); !ok {
		t.Fatalf("%v a minute later, with %d probes", b.state, b.probes)
	}
}

// However much work comes at once after Open, the breaker admits no more than Probes, and the state changes
// once.
func TestProbesAtOnce(t *testing.T) {
	const rounds, callers, probes = 100, 32, 3
	var now atomic.Int64
	var begun, closed atomic.Int32
	b, err := NewBreaker(BreakerConfig{Run: 1, Probes: probes, Now: func() time.Duration { return time.Duration(now.Load()) },
		Hooks: weir.Hooks{LimitChanged: func(_ string, _, to int64, _ string) {
			switch to {
			case probes:
				begun.Add(1)
			case -1:
				closed.Add(1)
			}
		}}})
	if err != nil {
		t.Fatal(err)
	}
	for range rounds {
		mustAdmit(t, b, weir.Work{}).Done(weir.Failed)
		now.Add(int64(5 * time.Second))
		admitted := make(chan weir.Permit, callers)
		var group sync.WaitGroup
		for range callers {
			group.Go(func() {
				if p, err := b.TryAdmit(weir.Work{}); err == nil {
					admitted <- p
				}
			})
		}
		group.Wait()
		close(admitted)
		if len(admitted) != probes {
			t.Fatalf("%d of %d are let through, want %d", len(admitted), callers, probes)
		}
		for p := range admitted {
			group.Go(func() { p.Done(weir.OK) })
		}
		group.Wait()
	}
	if begun.Load() != rounds || closed.Load() != rounds {
		t.Errorf("half-open %d times, and closed %d times; want %d", begun.Load(), closed.Load(), rounds)
	}
}

// Hooks may ask the breaker that calls them.
func TestBreakerHooksMayAsk(t *testing.T) {
	var b *Breaker
	var saw []State
	ask := func() { saw = append(saw, b.State()) }
	b, err := NewBreaker(BreakerConfig{Run: 1, Hooks: weir.Hooks{
		Admitted:     func(string, weir.Work, time.Duration) { ask() },
		Rejected:     func(weir.Work, *weir.Rejection) { ask() },
		Done:         func(string, weir.Outcome, time.Duration) { ask() },
		LimitChanged: func(string, int64, int64, string) { ask() },
	}, Now: func() time.Duration { return 0 }})
	if err != nil {
		t.Fatal(err)
	}
	mustAdmit(t, b, weir.Work{}).Done(weir.Failed)
	if _, err := b.TryAdmit(weir.Work{}); err == nil {
		t.Error("an open breaker admits")
	}
	if want := []State{Closed, Open, Open, Open}; !slices.Equal(saw, want) {
		t.Errorf("the hooks saw %v, want %v", saw, want)
	}
}

// The shell: refusals have numbers, the hook is told of the state, panics give places back.
func TestBreakerGate(t *testing.T) {
	var now time.Duration
	var heard []string
	b, err := NewBreaker(BreakerConfig{Name: "db", Run: 2, Probes: 1, Now: func() time.Duration { return now },
		Hooks: weir.Hooks{LimitChanged: func(_ string, _, _ int64, reason string) { heard = append(heard, reason) }}})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		mustAdmit(t, b, weir.Work{}).Done(weir.Overload)
	}
	_, err = b.TryAdmit(weir.Work{})
	r := weir.AsRejection(err)
	if r == nil || r.Reason != weir.ReasonThrottled || !r.Retryable || r.RetryAfter != 5*time.Second || r.Rule != "open" {
		t.Fatalf("open: %+v", r)
	}
	if p, err := b.TryAdmit(weir.Work{Exempt: true}); err != nil {
		t.Errorf("exempt work is refused: %v", err)
	} else {
		p.Done(weir.OK)
	}
	now = 5 * time.Second
	func() {
		defer func() { _ = recover() }()
		_ = weir.Do(t.Context(), b, weir.Work{}, panics)
	}()
	mustAdmit(t, b, weir.Work{}).Cancel() // the own limit refused
	mustAdmit(t, b, weir.Work{}).Done(weir.Abandoned)
	p := mustAdmit(t, b, weir.Work{})
	p.Sample(weir.OK)
	p.Done(weir.Failed) // sampled already
	if b.State() != Closed {
		t.Errorf("%v after a good probe: %s", b.State(), b.Snapshot().LimitReason)
	}
	if want := "2 failures in a row|open for 5s: 1 probes|1 probes in a row succeeded"; strings.Join(heard, "|") != want {
		t.Errorf("the hook heard %q, want %q", strings.Join(heard, "|"), want)
	}
	if s := b.Snapshot(); s.Kind != "breaker" || s.Limit != -1 || s.InFlight != 0 || s.Rejected[weir.ReasonThrottled] != 1 || s.ExemptAdmitted != 1 {
		t.Errorf("snapshot %+v", s)
	}
}
