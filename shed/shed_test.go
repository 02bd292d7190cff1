package shed_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/shed"
)

var classes = []weir.Priority{weir.Background, weir.Normal, weir.High, weir.Critical}

// bench is a gate on virtual time whose pressure is set by hand.
type bench struct {
	*shed.Shedder
	now      time.Duration
	pressure float64
	known    bool
}

func newBench(t testing.TB, cfg shed.Config) *bench {
	t.Helper()
	b := &bench{known: true}
	cfg.Name = "front"
	cfg.Now = func() time.Duration { return b.now }
	if cfg.Signals == nil && cfg.Pressure == nil {
		cfg.Pressure = func() (float64, bool) { return b.pressure, b.known }
	}
	gate, err := shed.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	b.Shedder = gate
	return b
}

// at steps the gate once, with a pressure.
func (b *bench) at(pressure float64) {
	b.pressure = pressure
	next, _ := b.Next()
	b.now = max(b.now, next)
	b.Step()
}

// passes reports which classes are let through now.
func (b *bench) passes() (let string) {
	for _, p := range classes {
		if b.refusal(weir.Work{Priority: p, User: "u"}) == nil {
			let += p.String()[:1]
		}
	}
	return let
}

// refusal is why w is refused, nil if it is let through.
func (b *bench) refusal(w weir.Work) *weir.Rejection {
	_, err := b.TryAdmit(w)
	return weir.AsRejection(err)
}

func TestGateByThresholds(t *testing.T) {
	b := newBench(t, shed.Config{})
	for _, c := range []struct {
		pressure float64
		let      string
	}{{0, "bnhc"}, {0.75, "nhc"}, {0.92, "hc"}, {0.95, "c"}, {1, ""}, {7, ""}, {0.5, "bnhc"}} {
		b.at(c.pressure)
		if got := b.passes(); got != c.let {
			t.Errorf("at %v %q is let through, want %q", c.pressure, got, c.let)
		}
	}
	b.at(9)
	if r := b.refusal(weir.Work{Exempt: true}); r != nil {
		t.Errorf("exempt work is refused above the hard cap: %v", r)
	}
}

func TestRejection(t *testing.T) {
	signals := readings{{Name: "cpu", Value: 0.93, Known: true}, {Name: "lag", Value: 1e6, Known: true}, {Name: "memory", Value: 0.2, Known: true}}
	b := newBench(t, shed.Config{Signals: signals, Heed: []string{"cpu", "memory"}})
	b.Step()
	p, err := b.Admit(context.Background(), weir.Work{})
	if p != (weir.Permit{}) {
		t.Error("a refusal brings a permit")
	}
	r := weir.AsRejection(err)
	want := weir.Rejection{
		Gate: "front", Rule: "below high/0", Reason: weir.ReasonShed, Value: 0.93, Limit: 0.90,
		RetryAfter: time.Second, Retryable: true, Signal: "cpu",
	}
	if r == nil || *r != want {
		t.Errorf("refused with %+v, want %+v", r, want)
	}
	if !errors.Is(err, weir.ErrRejected) {
		t.Error("it does not match ErrRejected")
	}
}

// A gate that refuses all says so.
func TestRuleOfEverything(t *testing.T) {
	b := newBench(t, shed.Config{})
	b.at(2)
	if r := b.refusal(weir.Work{Priority: weir.Critical}); r == nil || r.Rule != "everything" {
		t.Errorf("refused with %+v, want the rule everything", r)
	}
}

type readings []control.Reading

func (r readings) Readings(into []control.Reading) []control.Reading { return append(into, r...) }

// The wait that a refusal names is the truth. With thresholds a pressure that is gone by then
// refuses nobody. A cursor decides the level anew then and not before. (It may decide to wait for a
// calmer window.)
func TestRetryAfterIsTrue(t *testing.T) {
	b := newBench(t, shed.Config{Interval: 250 * time.Millisecond})
	b.at(0.8)
	until := b.now + b.refusal(weir.Work{Priority: weir.Background}).RetryAfter
	for b.now < until {
		b.at(0)
	}
	if b.now != until || b.passes() != "bnhc" {
		t.Errorf("thresholds: %q passes at %v, told to come back at %v", b.passes(), b.now, until)
	}

	b = newBench(t, shed.Config{Interval: 50 * time.Millisecond, Cursor: &shed.Cursor{}})
	for b.Level() == 0 {
		b.passes()
		b.at(5)
	}
	work := weir.Work{Priority: weir.Background, User: "u"}
	until = b.now + b.refusal(work).RetryAfter
	for b.now < until {
		if b.refusal(work) == nil {
			t.Errorf("a cursor: let through at %v, told to come back at %v", b.now, until)
		}
		b.at(0)
	}
	if b.now != until || b.refusal(work) != nil {
		t.Errorf("a cursor: refused at %v, told to come back at %v", b.now, until)
	}
}

// Bad pressures count as none: the last good one holds, then everything opens.
func TestBadPressures(t *testing.T) {
	for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), -1, -1e-300} {
		b := newBench(t, shed.Config{})
		b.at(0.92)
		b.at(bad)
		if got := b.passes(); got != "hc" {
			t.Errorf("after a pressure of %v %q passes, want hc as before", bad, got)
		}
		for range 101 {
			b.at(bad)
		}
		if got := b.passes(); got != "bnhc" || b.Status().Known {
			t.Errorf("a second after %v %q passes, want all", bad, got)
		}
	}
}

func TestPanicOnVirtualTime(t *testing.T) {
	told := []string{}
	b := newBench(t, shed.Config{
		Pressure: func() (float64, bool) { panic("no sensor") },
		Hooks:    weir.Hooks{Faulty: func(gate, problem string) { told = append(told, gate+": "+problem) }},
	})
	b.at(0)
	if len(told) != 1 || !strings.Contains(told[0], "no sensor") || b.passes() != "bnhc" {
		t.Errorf("told %q, %q passes", told, b.passes())
	}
}

// The gate stands first in a chain: its zero permit does no harm, and work that
// is part of admitted work is not refused half-way.
func TestInAChain(t *testing.T) {
	b := newBench(t, shed.Config{})
	c := &counting{}
	gate := weir.All(b.Shedder, c)
	p, err := gate.Admit(context.Background(), weir.Work{})
	if err != nil {
		t.Fatal(err)
	}
	ctx := weir.WithPermit(context.Background(), gate, p)
	b.at(2)
	if _, err := gate.Admit(context.Background(), weir.Work{}); weir.AsRejection(err) == nil || c.asked != 1 {
		t.Errorf("refused with %v, and the next gate was asked %d times; want once", err, c.asked)
	}
	if _, err := b.Admit(ctx, weir.Work{}); err != nil {
		t.Errorf("work within admitted work is refused: %v", err)
	}
	p.Sample(weir.OK)
	p.SetCost("", 3)
	p.Done(weir.OK)
	p.Done(weir.OK)
	if _, err := b.Admit(ctx, weir.Work{}); err == nil {
		t.Error("work after Done is still part of it")
	}
	if p, w, err := b.Arrive(weir.Work{}, nil); err == nil || w != nil || p != (weir.Permit{}) {
		t.Errorf("Arrive returns %v, %v, %v", p, w, err)
	}
}

type counting struct{ asked int }

func (c *counting) Admit(context.Context, weir.Work) (weir.Permit, error) {
	c.asked++
	return weir.Permit{}, nil
}

func TestReconfigure(t *testing.T) {
	b := newBench(t, shed.Config{})
	b.at(0.8)
	if got := b.passes(); got != "nhc" {
		t.Fatalf("%q passes", got)
	}
	pressure := func() (float64, bool) { return b.pressure, true }
	bad := shed.Config{Pressure: pressure, Thresholds: shed.Thresholds{High: 0.5}}
	if err := b.Reconfigure(bad); err == nil || b.passes() != "nhc" {
		t.Errorf("a faulty configuration: %v, and %q passes", err, b.passes())
	}
	live := shed.Config{Pressure: pressure, Thresholds: shed.Thresholds{Background: 0.5, Normal: 0.6, High: 0.7, Critical: 0.9}}
	if err := b.Reconfigure(live); err != nil {
		t.Fatal(err)
	}
	if got := b.passes(); got != "nhc" {
		t.Errorf("%q passes before the next reading, want what did", got)
	}
	b.at(0.8)
	if got := b.passes(); got != "c" {
		t.Errorf("with the new thresholds %q passes, want c", got)
	}
	live.Cursor = &shed.Cursor{}
	if err := b.Reconfigure(live); err != nil {
		t.Fatal(err)
	}
	b.at(0.8)
	if got := b.Status(); got.Classes[3].Admitted == 0 || got.Level == 0 {
		t.Errorf("a cursor forgot the level or the counts: %+v", got)
	}
	b.Close()
	if err := b.Reconfigure(live); !errors.Is(err, weir.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

func TestClose(t *testing.T) {
	b := newBench(t, shed.Config{})
	b.Close()
	b.Close()
	_, err := b.TryAdmit(weir.Work{Exempt: true})
	if r := weir.AsRejection(err); r == nil || r.Reason != weir.ReasonDraining || !r.Retryable {
		t.Errorf("after Close: %v", err)
	}
	if _, pending := b.Next(); pending {
		t.Error("a closed gate has something to do")
	}
	b.Step()
	if n := b.Snapshot().Rejected[weir.ReasonDraining]; n != 1 {
		t.Errorf("%d counted as draining, want 1", n)
	}
}

func TestSnapshot(t *testing.T) {
	var changes []string
	var rejected, admitted int
	b := newBench(t, shed.Config{Hooks: weir.Hooks{
		Admitted: func(string, weir.Work, time.Duration) { admitted++ },
		Rejected: func(weir.Work, *weir.Rejection) { rejected++ },
		LimitChanged: func(gate string, from, to int64, why string) {
			changes = append(changes, fmt.Sprintf("%s: %d to %d, %s", gate, from, to, why))
		},
	}})
	if s := b.Snapshot(); s.Limit != 512 || s.Rejected != nil || s.LimitReason != "everything is let through: the pressure is unknown" {
		t.Errorf("a new gate is %+v", s)
	}
	b.at(0.96)
	b.passes()
	_ = weir.Must(b.TryAdmit(weir.Work{Exempt: true}))
	s := b.Snapshot()
	if s.Name != "front" || s.Kind != "shed" || s.Mode != "enforce" || s.Limit != 128 || s.Admitted != 2 || s.Rejected[weir.ReasonShed] != 3 ||
		s.LimitReason != "critical/0 and above is let through: pressure 0.96" {
		t.Errorf("the snapshot is %+v", s)
	}
	st := b.Status()
	if st.Level != 384 || b.Level() != 384 || st.Exempt != 1 || st.Classes != [4]shed.Count{{0, 1}, {0, 1}, {0, 1}, {1, 0}} || !st.Known || st.Pressure != 0.96 {
		t.Errorf("the status is %+v", st)
	}
	if admitted != 2 || rejected != 3 {
		t.Errorf("hooks heard of %d admitted and %d rejected, want 2 and 3", admitted, rejected)
	}
	if want := "front: 512 to 128, critical/0 and above is let through: pressure 0.96"; len(changes) != 1 || changes[0] != want {
		t.Errorf("changes %q, want %q", changes, want)
	}
}

// Users keep their level for an hour, and then are dealt anew; work that names
// nobody is spread over all levels; 10 KB names are names.
func TestUsersAreDealtAnew(t *testing.T) {
	b := newBench(t, shed.Config{})
	const users = 1000
	levels := func() (l [users]shed.Level) {
		for i := range l {
			l[i] = b.LevelOf(weir.Work{User: fmt.Sprintf("user-%d", i)})
		}
		return l
	}
	first := levels()
	b.now = time.Hour - time.Millisecond
	b.at(0.1)
	if levels() != first {
		t.Error("users changed their levels within the hour")
	}
	b.now = time.Hour
	b.at(0.1)
	same := 0
	for i, l := range levels() {
		if l == first[i] {
			same++
		}
	}
	if same > 4*users*weir.Classes/shed.Levels {
		t.Errorf("%d of %d users have the same level after an hour, want about %d", same, users, users*weir.Classes/shed.Levels)
	}
	seen := map[shed.Level]bool{}
	for range 2000 {
		seen[b.LevelOf(weir.Work{Op: "GET /"})] = true
	}
	if len(seen) < 120 {
		t.Errorf("work that names nobody fell on %d of 128 levels", len(seen))
	}
	long := weir.Work{User: strings.Repeat("é", 5<<10)}
	first[0] = b.LevelOf(long)
	if again := b.LevelOf(long); again != first[0] || again.Class() != 1 {
		t.Errorf("a name of 10 KB has the levels %v and %v", first[0], again)
	}
}

// The order of the classes holds by the level alone: of the work that one verdict
// is about, whatever is refused is below whatever is let through.
func TestRefusedOnlyAfterAllBelow(t *testing.T) {
	for name, cfg := range map[string]shed.Config{"thresholds": {}, "cursor": {Cursor: &shed.Cursor{}}} {
		b := newBench(t, cfg)
		random := rand.New(rand.NewPCG(1, 2))
		cuts := map[int]bool{}
		for range 3000 {
			lowest, highest := shed.Level(shed.Levels), -1 // let through, refused
			for range 10 {
				w := weir.Work{Priority: weir.Priority(random.IntN(8) - 3), User: fmt.Sprint(random.IntN(300))}
				l := b.LevelOf(w)
				if r := b.refusal(w); r == nil {
					lowest = min(lowest, l)
				} else {
					highest = max(highest, int(l))
				}
			}
			if highest >= int(lowest) {
				t.Fatalf("%s: level %v was refused while %v was let through", name, shed.Level(highest), lowest)
			}
			cuts[b.Level().Class()] = true
			b.at(max(0, b.pressure+random.NormFloat64()/5))
		}
		if len(cuts) < weir.Classes {
			t.Errorf("%s: the level was only in classes %v", name, cuts)
		}
	}
}

// Nothing is lost or counted twice while the level moves and many arrive.
func TestCountsAddUp(t *testing.T) {
	b := newBench(t, shed.Config{Cursor: &shed.Cursor{}})
	var wg sync.WaitGroup
	const workers, each = 8, 2000
	for w := range workers {
		wg.Go(func() {
			for i := range each {
				work := weir.Work{Priority: classes[i%4], User: fmt.Sprint("u", w, i%50)}
				b.refusal(work)
			}
		})
	}
	for i := range 200 {
		b.at(float64(i%3) * 0.7)
	}
	wg.Wait()
	for i, c := range b.Status().Classes {
		if got := c.Admitted + c.Refused; got != workers*each/4 || c.Refused == got {
			t.Errorf("%v: %d let through and %d refused of %d", classes[i], c.Admitted, c.Refused, workers*each/4)
		}
	}
	if s := b.Snapshot(); s.Admitted+s.Rejected[weir.ReasonShed] != workers*each {
		t.Errorf("the snapshot has %d and %d of %d", s.Admitted, s.Rejected[weir.ReasonShed], workers*each)
	}
}

// live makes a gate on the bubble's clock.
func live(t *testing.T, cfg shed.Config) *shed.Shedder {
	t.Helper()
	cfg.Name = "front"
	gate, err := shed.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return gate
}

func refuses(gate *shed.Shedder, p weir.Priority) bool {
	_, err := gate.TryAdmit(weir.Work{Priority: p})
	return err != nil
}

// sleep lets the bubble's time pass.
func sleep(d time.Duration) {
	<-time.NewTimer(d).C
	synctest.Wait()
}

func TestReadsByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var pressure atomic.Uint64
		gate := live(t, shed.Config{Pressure: func() (float64, bool) { return math.Float64frombits(pressure.Load()), true }})
		defer gate.Close()
		for _, p := range []float64{0.5, 0.8, 0.5, 0.99} {
			pressure.Store(math.Float64bits(p))
			sleep(10 * time.Millisecond)
			if got := refuses(gate, weir.Background); got != (p >= 0.75) {
				t.Errorf("10ms after a pressure of %v background is refused: %v", p, got)
			}
		}
	})
}

// A pressure that hangs holds its last value for a second. Then everything is
// let through, or nothing changes.
func TestHangingPressure(t *testing.T) {
	for _, blind := range []shed.Blind{shed.Open, shed.Keep} {
		synctest.Test(t, func(t *testing.T) {
			release := make(chan struct{})
			reads := 0
			var troubles atomic.Int64
			gate := live(t, shed.Config{
				Blind: blind,
				Pressure: func() (float64, bool) {
					if reads++; reads > 1 {
						<-release
					}
					return 0.8, true
				},
				Hooks: weir.Hooks{Faulty: func(string, string) { troubles.Add(1) }},
			})
			sleep(900 * time.Millisecond)
			if !refuses(gate, weir.Background) {
				t.Error("the last pressure does not hold")
			}
			sleep(time.Minute)
			if got := refuses(gate, weir.Background); got != (blind == shed.Keep) {
				t.Errorf("blind %v: background is refused: %v", blind, got)
			}
			if reads != 2 || troubles.Load() != 1 {
				t.Errorf("%d readings, %d troubles told; want 2 and 1", reads, troubles.Load())
			}
			if err := gate.Reconfigure(shed.Config{Pressure: func() (float64, bool) { return 0.92, true }}); err != nil {
				t.Fatal(err)
			}
			sleep(20 * time.Millisecond)
			if !refuses(gate, weir.Normal) {
				t.Error("a new pressure is not read while the old one hangs")
			}
			close(release) // what comes late is not taken
			sleep(20 * time.Millisecond)
			if !refuses(gate, weir.Normal) {
				t.Error("the old pressure is taken after all")
			}
			gate.Close()
		})
	}
}

func TestPanickingPressure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Int64
		var told atomic.Value
		gate := live(t, shed.Config{
			Pressure: func() (float64, bool) {
				if n.Add(1)%2 == 0 {
					panic(fmt.Sprint("reading ", n.Load()))
				}
				return 0.8, true
			},
			Hooks: weir.Hooks{Faulty: func(gate, problem string) { told.CompareAndSwap(nil, problem) }},
		})
		sleep(10 * time.Second)
		if !refuses(gate, weir.Background) || refuses(gate, weir.Normal) {
			t.Error("the good readings in between do not count")
		}
		if got, want := told.Load(), "signal: pressure panicked: reading 2"; got != want {
			t.Errorf("told %q, want %q", got, want)
		}
		gate.Close()
	})
}

// Close ends every goroutine: the bubble sees to that. A reading that hangs ends
// when it returns.
func TestCloseEndsTheReadings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reads atomic.Int64
		gate := live(t, shed.Config{Pressure: func() (float64, bool) { return 0, reads.Add(1) > 0 }})
		sleep(100 * time.Millisecond)
		gate.Close()
		before := reads.Load()
		sleep(time.Second)
		if before < 5 || reads.Load() != before {
			t.Errorf("%d readings before Close, %d after", before, reads.Load())
		}
	})
}
