package keyed

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/internal/keys"
	"github.com/weir-go/weir/limit"
)

// flying is a source whose lag is what is in flight: work keeps its slot until it
// has been applied.
type flying struct{ g *Pools }

func (f *flying) Readings(into []control.Reading) []control.Reading {
	return append(into, control.Reading{Name: "lag", Value: float64(f.g.Snapshot().InFlight), Known: true})
}

// Fifty databases that are always full, and one queue: the loop settles where the
// documentation of control.LagMap says, at a lag of 35,806 and 716 slots each, from
// the first window on full pools.
func TestLagLoopSettles(t *testing.T) {
	const databases = 50
	source := &flying{}
	g, now := byHand(t, Config{Controller: weir.Must(control.NewLagMap(control.LagMapConfig{})), Signals: source, Queue: limit.Queue{Len: -1}})
	source.g = g
	held := make([][]weir.Permit, databases)
	fill := func() {
		for db := range held {
			w := tenant(fmt.Sprint("db-", db))
			for u, _ := g.Key(w.Tenant); u.InFlight > u.Limit; u, _ = g.Key(w.Tenant) {
				last := len(held[db]) - 1
				held[db][last].Done(weir.OK)
				held[db] = held[db][:last]
			}
			for {
				p, err := g.TryAdmit(w)
				if err != nil {
					break
				}
				held[db] = append(held[db], p)
			}
		}
	}
	for range 40 {
		fill()
		*now += 5 * time.Second
		g.Step()
	}
	fill()
	s := g.Snapshot()
	if s.Limit < 714 || s.Limit > 718 || s.InFlight < 35_700 || s.InFlight > 35_900 {
		t.Errorf("settled at %d slots and a lag of %d", s.Limit, s.InFlight)
	}
}

// A limit of 2.25 is 3 for a quarter of the keys, another quarter each window, and whoever waits
// for a slot gets it with its key's turn.
func TestFraction(t *testing.T) {
	c := &spy{limit: 2, fraction: 0.25}
	g, now := byHand(t, Config{Controller: c, Overrides: map[string]Override{"own": {Limit: 2}}, Queue: limit.Queue{Len: 1000, MaxWait: time.Hour}})
	names := []string{"own"}
	for i := range 64 {
		names = append(names, fmt.Sprint("db-", i))
	}
	had, waiting := map[string]int{}, 0
	for _, name := range names {
		for range 6 {
			if _, _, err := g.Arrive(tenant(name), func(weir.Permit, error) { had[name]++ }); err == nil {
				had[name]++
			}
		}
	}
	limits := func() (two, three int) {
		for _, name := range names {
			switch u, _ := g.Key(name); {
			case u.Limit == 2 || name == "own":
				two++
			case u.Limit == 3:
				three++
			}
		}
		return two, three
	}
	for window := range 4 {
		if two, three := limits(); two != 49 || three != 16 {
			t.Errorf("window %d: %d keys with 2 slots and %d with 3", window, two, three)
		}
		*now += time.Second
		g.Step()
	}
	for _, name := range names {
		if want := map[bool]int{true: 2, false: 3}[name == "own"]; had[name] != want {
			t.Errorf("%s has had %d slots, want %d: each had its turn", name, had[name], want)
		}
		waiting += 6 - had[name]
	}
	if s := g.Snapshot(); s.Limit != 2 || s.Waiting != int64(waiting) {
		t.Errorf("%+v, want %d waiting", s, waiting)
	}
	for _, tt := range []struct {
		settings
		fraction float64
		want     uint8
	}{
		{settings{limit: 2}, 0.3, 4}, {settings{limit: 2, more: 4}, 0, 0}, {settings{limit: 2}, math.NaN(), 0}, {settings{limit: 2}, 1, 0},
		{settings{limit: limit.MaxLimit}, 0.5, 0},
	} {
		if tt.share(tt.fraction); tt.more != tt.want {
			t.Errorf("%+v: %d groups have one more, want %d", tt, tt.more, tt.want)
		}
	}
}

// Who has one slot more has it last again, also when the fraction has grown meanwhile.
func TestFractionGoesRound(t *testing.T) {
	s, waited := settings{limit: 2}, [keys.Groups]int{}
	for window, fraction := range []float64{0.25, 0.5, 0.125, 0.75, 0.25, 0.25, 0.5, 0.375, 0.125} {
		s.share(fraction)
		least, most := math.MaxInt, -1 // of how long those have waited who have it now, and those who have not
		for group := range waited {
			if (uint8(group)+s.turn)%keys.Groups < s.more {
				least = min(least, waited[group])
			} else {
				most = max(most, waited[group])
			}
		}
		if least < most {
			t.Errorf("window %d: a group has waited for %d windows, and one that has waited for %d has the slot", window, most, least)
		}
		for group := range waited {
			if waited[group]++; (uint8(group)+s.turn)%keys.Groups < s.more {
				waited[group] = 0
			}
		}
	}
}

// Fifty databases share a lag of a hundred: with whole slots for all, control.Drain would go from
// two to three and back, and the lag from 25 to 190. It does not, so nobody waits for much
// longer than the mean.
func TestDrainOfFewSlots(t *testing.T) {
	for _, largest := range []bool{false, true} {
		drainOfFewSlots(t, largest)
	}
}

func drainOfFewSlots(t *testing.T, largest bool) {
	const databases, capacity, offered, settled = 50, 500, 1500, 30 * time.Second
	source := &flying{}
	drain := weir.Must(control.NewDrain(control.DrainConfig{Min: 1, Max: 20, Target: 200, Interval: time.Second}))
	g, now := byHand(t, Config{Controller: drain, LargestFirst: largest, Signals: source, Queue: limit.Queue{Len: -1}})
	source.g = g
	type batch struct {
		weir.Permit
		since time.Duration
	}
	var (
		queue             []batch
		times             []time.Duration
		arrivals          = rand.New(rand.NewPCG(1, 2))
		low, peak, lagSum = math.MaxInt, 0, 0
	)
	for *now < 2*time.Minute {
		*now += 2 * ms
		for range 2 * capacity / 1000 {
			if len(queue) > 0 {
				queue[0].Done(weir.OK)
				times = append(times, *now-queue[0].since)
				queue = queue[1:]
			}
		}
		for range 2 * offered / 1000 {
			if p, err := g.TryAdmit(tenant(fmt.Sprint("db-", arrivals.IntN(databases)))); err == nil {
				queue = append(queue, batch{p, *now})
			}
		}
		if *now%time.Second == 0 {
			g.Step()
		}
		if *now <= settled {
			times = times[:0]
			continue
		}
		low, peak, lagSum = min(low, len(queue)), max(peak, len(queue)), lagSum+len(queue)
	}
	slices.Sort(times)
	p99, applied := times[len(times)*99/100], float64(len(times))/(*now-settled).Seconds()
	lag := float64(lagSum) / float64((*now-settled)/(2*ms))
	t.Logf("largest first %v: lag %.0f, from %d to %d; p99 %v, %.2f of lag over capacity; %.0f applied a second", largest, lag, low, peak, p99, p99.Seconds()/(lag/capacity), applied)
	if low < 50 || peak > 150 || p99.Seconds() > 1.5*lag/capacity || applied < 0.99*capacity {
		t.Errorf("largest first %v: want a lag from 50 to 150, at most 1.5, and 500", largest)
	}
}

// What is in flight when the limit shrinks stays, and nothing is granted until it
// is below the new limit. What grows wakes as many as there are slots.
func TestResize(t *testing.T) {
	g, now := byHand(t, Config{Limit: 5})
	var held []weir.Permit
	for range 5 {
		held = append(held, take(t, g, tenant("a")))
	}
	for i, want := range []int64{3, 3, 3} { // three times the same changes nothing
		if err := g.Reconfigure(Config{Limit: want}); err != nil {
			t.Fatal(err)
		}
		if u, _ := g.Key("a"); u.InFlight != 5 || u.Limit != want {
			t.Errorf("%d: %+v", i, u)
		}
	}
	woken := 0
	wait := func() {
		if _, _, err := g.Arrive(tenant("a"), func(p weir.Permit, err error) {
			if err == nil {
				woken++
			}
		}); err != weir.ErrWaiting {
			t.Fatal(err)
		}
	}
	for range 4 {
		wait()
	}
	held[0].Done(weir.OK)
	held[1].Done(weir.OK)
	if woken != 0 {
		t.Errorf("%d woken with 3 of 3 in flight", woken)
	}
	held[2].Done(weir.OK)
	if woken != 1 {
		t.Errorf("%d woken by one that came back", woken)
	}
	if err := g.Reconfigure(Config{Limit: 5}); err != nil || woken != 3 {
		t.Errorf("%d woken: %v", woken, err)
	}
	*now += limit.DefaultMaxWait
	if at, ok := g.Next(); !ok || at != *now {
		t.Errorf("next at %v", at)
	}
	g.Step()
	if s := g.Snapshot(); s.Waiting != 0 || s.InFlight != 5 || s.Rejected[weir.ReasonQueueTimeout] != 1 {
		t.Errorf("%+v", s)
	}
}

// valued is a controller that is no pointer, and cannot be compared.
type valued struct {
	control.Fixed
	told []float64
}

func (v valued) Save() control.State { return control.State{Limit: 1} }

func (v valued) Restore(s control.State) { v.told[0] = s.Limit }

func TestControllerThatCannotBeCompared(t *testing.T) {
	c := valued{7, make([]float64, 1)}
	g, _ := byHand(t, Config{Controller: c})
	if err := g.Reconfigure(Config{Controller: c}); err != nil || c.told[0] != 1 {
		t.Errorf("%v, told %v", err, c.told)
	}
}

// lagging is a source of one lag.
type lagging struct{ lag float64 }

func (l *lagging) Readings(into []control.Reading) []control.Reading {
	return append(into, control.Reading{Name: "lag", Value: l.lag, Known: l.lag >= 0})
}

// Every pool follows lag: those in use, those that wait and those to come.
func TestAllFollowLag(t *testing.T) {
	lag := &lagging{}
	c := weir.Must(control.NewLagMap(control.LagMapConfig{}))
	g, now := byHand(t, Config{Controller: c, Signals: lag, Overrides: map[string]Override{"half": {Scale: 0.5}}})
	for _, step := range []struct {
		lag        float64
		want, half int64
	}{{0, 1000, 500}, {10_000, 1000, 500}, {55_000, 505, 252}, {78_181, 250, 125}, {100_000, 10, 5}, {-1, 10, 5}, {9999, 1000, 500}} {
		lag.lag = step.lag
		at, ok := g.Next()
		if !ok || at != *now+5*time.Second {
			t.Fatalf("next at %v", at)
		}
		*now = at
		g.Step()
		for _, key := range []string{"old", "half"} {
			take(t, g, tenant(key)).Done(weir.OK)
		}
		u, _ := g.Key("old")
		h, _ := g.Key("half")
		if u.Limit != step.want || h.Limit != step.half {
			t.Errorf("lag %v: limits %d and %d, want %d and %d", step.lag, u.Limit, h.Limit, step.want, step.half)
		}
	}
	lag.lag = 100_000
	*now += 5 * time.Second
	g.Step()
	if s := g.Snapshot(); s.Controller != "lag" || s.LimitReason != "lag 100000" || s.Signal != "lag" || s.Limit != 10 {
		t.Errorf("%+v", s)
	}
}

// What a controller is shown is the mean key in use, and of the busiest its peak.
func TestWindowIsOfOneKey(t *testing.T) {
	c := &spy{limit: 10}
	g, now := byHand(t, Config{Controller: c})
	var held []weir.Permit
	for i := range 6 {
		held = append(held, take(t, g, tenant(string(rune('a'+i/4)))))
	}
	*now = 400 * ms
	for i, p := range held[:3] {
		p.Done([]weir.Outcome{weir.OK, weir.OK, weir.Overload}[i])
	}
	*now = time.Second
	g.Step()
	w := c.seen
	if w.Limit != 10 || w.InFlight != 2 || w.MeanInFlight != 1.5 || w.MaxInFlight != 4 || w.Admitted != 3 || w.OK != 1 ||
		w.Overload != 1 || w.LatencySum != 600*ms || w.Elapsed != time.Second {
		t.Errorf("%+v", w)
	}
	*now = 2 * time.Second
	g.Step()
	if w := c.seen; w.Admitted != 0 || w.MaxInFlight != 2 || w.Timed != 0 || w.InFlight != 2 {
		t.Errorf("%+v", w)
	}
}

// Only how long useful work took, or what was given up, says something of the speed.
func TestWhichOutcomesAreTimed(t *testing.T) {
	for o, timed := range map[weir.Outcome]float64{weir.OK: 1, weir.Overload: 1, weir.Abandoned: 1, weir.Failed: 0, weir.NoSample: 0} {
		c := &spy{limit: 10}
		g, now := byHand(t, Config{Controller: c})
		p := take(t, g, tenant("a"))
		*now = 100 * ms
		p.Done(o)
		*now = time.Second
		g.Step()
		if w := c.seen; float64(w.Timed) != timed || w.LatencySum.Seconds() != timed/10 {
			t.Errorf("%v: %v timed, %v in all", o, w.Timed, w.LatencySum)
		}
	}
}

// A signal that binds the same limit as another one did is named all the same.
func TestSignalChangesAlone(t *testing.T) {
	c := &spy{limit: 1, signal: "cpu"}
	g, now := byHand(t, Config{Controller: c})
	take(t, g, tenant("a"))
	for i, signal := range []string{"cpu", "memory", ""} {
		c.signal = signal
		*now = time.Duration(i+1) * time.Second
		g.Step()
		r := refused(t, g, tenant("a"), weir.ReasonLimit)
		if s := g.Snapshot(); s.Signal != signal || r.Signal != signal {
			t.Errorf("the snapshot names %q and the refusal %q, want %q", s.Signal, r.Signal, signal)
		}
	}
}

type spy struct {
	limit    int64
	fraction float64
	signal   string
	seen     control.Window
}

func (s *spy) Name() string { return "spy" }

func (s *spy) Start() control.Decision {
	return control.Decision{Limit: s.limit, Fraction: s.fraction, Signal: s.signal, Next: time.Second}
}

func (s *spy) Update(w *control.Window) control.Decision {
	s.seen = *w
	if s.limit < 0 {
		panic("at the disco")
	}
	return s.Start()
}

func TestNonsense(t *testing.T) {
	var told []string
	c := &spy{limit: 4}
	g, now := byHand(t, Config{Controller: c, Hooks: weir.Hooks{Faulty: func(_, problem string) { told = append(told, problem) }}})
	for _, n := range []int64{0, -1, limit.MaxLimit + 1} {
		c.limit = n
		*now += time.Second
		g.Step()
	}
	c.limit = 5
	for _, f := range []float64{math.NaN(), -0.1, 1, math.Inf(1)} {
		c.fraction = f
		*now += time.Second
		g.Step()
	}
	if s := g.Snapshot(); s.Limit != 4 || s.Faults != 7 || len(told) != 1 {
		t.Errorf("%+v, told %q", s, told)
	}
}

// A gate on the real clock asks its controller by itself, and stops when closed.
func TestTicksByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lag := &lagging{lag: 55_000}
		g := newGate(t, Config{Controller: weir.Must(control.NewLagMap(control.LagMapConfig{})), Signals: lag})
		time.Sleep(5*time.Second + 1)
		if s := g.Snapshot(); s.Limit != 505 {
			t.Errorf("%+v", s)
		}
		if err := g.Reconfigure(Config{Limit: 3}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if s := g.Snapshot(); s.Limit != 3 || s.Controller != "fixed" {
			t.Errorf("%+v", s)
		}
		g.Close()
		if err := g.Reconfigure(Config{Limit: 3}); !errors.Is(err, weir.ErrClosed) {
			t.Error(err)
		}
	})
}

// stuck is a controller that does not return.
type stuck struct{ in, out chan struct{} }

func (stuck) Name() string            { return "stuck" }
func (stuck) Start() control.Decision { return control.Decision{Limit: 2, Next: time.Millisecond} }
func (c stuck) Update(*control.Window) control.Decision {
	close(c.in)
	<-c.out
	return control.Decision{Limit: 2, Next: time.Millisecond}
}

// A controller whose first decision is nonsense is refused, also in the place of another.
func TestNonsenseAtTheStart(t *testing.T) {
	running, _ := byHand(t, Config{Limit: 5})
	for _, first := range []int64{0, -1, math.MaxInt64} {
		cfg := Config{Name: "t", Controller: lost{first: first}}
		want := fmt.Sprintf(`keyed: gate "t": Start of controller "stuck" wants a limit of %d: it must be from 1 to 1073741824`, first)
		if _, err := New(cfg); err == nil || err.Error() != want {
			t.Errorf("New: %v, want %s", err, want)
		}
		if err := running.Reconfigure(cfg); err == nil || err.Error() != want {
			t.Errorf("Reconfigure: %v, want %s", err, want)
		}
		if s := running.Snapshot(); s.Limit != 5 || s.Controller != "fixed" {
			t.Errorf("after a refused change: %+v", s)
		}
	}
}

// lost is a controller that does not know where to start.
type lost struct {
	stuck
	first int64
}

func (l lost) Start() control.Decision { return control.Decision{Limit: l.first} }

// A gate closes at once, whatever its controller does, and its drain ends with its context.
func TestCloseBesideAStuckController(t *testing.T) {
	c := stuck{make(chan struct{}), make(chan struct{})}
	g := weir.Must(New(Config{Controller: c}))
	<-c.in
	p, err := g.TryAdmit(weir.Work{Tenant: "a"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	drained := make(chan error, 1)
	go func() { drained <- g.Drain(ctx) }()
	select {
	case err := <-drained:
		if err == nil {
			t.Error("a drain with work in flight has ended")
		}
	case <-time.After(time.Minute):
		t.Fatal("the drain waits for the controller")
	}
	if _, err := g.TryAdmit(weir.Work{Tenant: "a"}); err == nil {
		t.Error("a closed gate admits")
	}
	p.Done(weir.OK)
	close(c.out)
}
