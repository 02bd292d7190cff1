package limit_test

import (
	"context"
	"math"
	"reflect"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/limit"
)

// byHand returns a limiter whose clock the test moves.
func byHand(cfg limit.Config) (*limit.Limiter, *time.Duration) {
	now := new(time.Duration)
	cfg.Name, cfg.Now = "t", func() time.Duration { return *now }
	return weir.Must(limit.New(cfg)), now
}

func take(t *testing.T, l *limit.Limiter) weir.Permit {
	t.Helper()
	p, err := l.TryAdmit(weir.Work{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func refused(t *testing.T, l *limit.Limiter, w weir.Work) weir.Rejection {
	t.Helper()
	_, err := l.TryAdmit(w)
	r := weir.AsRejection(err)
	if r == nil {
		t.Fatalf("not refused: %v", err)
	}
	return *r
}

// spy is a controller that keeps what it is shown.
type spy struct {
	limit  int64
	extend bool
	seen   control.Window
}

func (s *spy) Name() string { return "spy" }
func (s *spy) Start() control.Decision {
	return control.Decision{Limit: s.limit, Next: time.Second}
}
func (s *spy) Update(w *control.Window) control.Decision {
	s.seen = *w
	s.seen.Latencies = slices.Clone(w.Latencies)
	s.seen.Samples = slices.Clone(w.Samples)
	return control.Decision{Limit: s.limit, Next: time.Second, Extend: s.extend}
}

const ms = time.Millisecond

func TestWindowsSayWhatHappened(t *testing.T) {
	c := &spy{limit: 2}
	l, now := byHand(limit.Config{Controller: c})
	window := func(want control.Window) {
		t.Helper()
		*now = want.Now
		if at, ok := l.Next(); !ok || at != *now {
			t.Errorf("the window closes at %v, want %v", at, *now)
		}
		l.Step()
		want.Limit = 2
		if len(c.seen.Latencies) == 0 {
			c.seen.Latencies = nil
		}
		if n := int64(len(c.seen.Samples)); n != c.seen.OK+c.seen.Failed+c.seen.Dropped() {
			t.Errorf("%d samples", n)
		}
		c.seen.Samples, c.seen.Readings, c.seen.MeanInFlight = nil, nil, 0 // tested below
		if !reflect.DeepEqual(c.seen, want) {
			t.Errorf("\n got %+v\nwant %+v", c.seen, want)
		}
	}

	p, q := take(t, l), take(t, l)
	refused(t, l, weir.Work{})
	*now = 400 * ms
	p.Sample(weir.OK) // counts once,
	p.Sample(weir.Failed)
	*now = 500 * ms
	p.Done(weir.OK) // and not again
	*now = 700 * ms
	q.Cancel() // never started: no sample
	window(control.Window{Now: time.Second, Elapsed: time.Second, MaxInFlight: 2, Saturated: 500 * ms, Admitted: 2,
		OK: 1, Latencies: []time.Duration{400 * ms}, LatencySum: 400 * ms, Timed: 1, Cost: 1})
	s := l.Snapshot()
	if s.Admitted != 1 || s.Outcomes[weir.OK] != 1 || len(s.Outcomes) != 1 || s.Rejected[weir.ReasonLimit] != 1 || s.Latency != 400*ms {
		t.Errorf("%+v", s)
	}

	// Nothing is left of the first window; the second is extended.
	c.extend = true
	for _, service := range []time.Duration{300 * ms, 10 * ms, 20 * ms} {
		p := take(t, l)
		*now += service
		p.Done(weir.OK)
	}
	second := control.Window{Now: 2 * time.Second, Elapsed: time.Second, MaxInFlight: 1, Admitted: 3, OK: 3,
		Latencies: []time.Duration{10 * ms, 20 * ms, 300 * ms}, LatencySum: 330 * ms, Timed: 3, Cost: 3}
	window(second)
	if s := l.Snapshot(); s.Latency != 20*ms {
		t.Errorf("expects %v of the next", s.Latency)
	}
	c.extend = false
	second.Now, second.Elapsed = 3*time.Second, 2*time.Second
	window(second)
	window(control.Window{Now: 4 * time.Second, Elapsed: time.Second})

}

// A window says what finished work has cost: what costs more than the limit counts as the limit, and what failed does not count.
func TestWindowsKnowWhatWorkCosts(t *testing.T) {
	c := &spy{limit: 4}
	l, now := byHand(limit.Config{Controller: c})
	for _, work := range []struct {
		cost    int64
		outcome weir.Outcome
	}{{3, weir.OK}, {9, weir.Overload}, {2, weir.Failed}, {0, weir.Abandoned}} {
		p := weir.Must(l.TryAdmit(weir.Work{Cost: work.cost}))
		*now += 10 * ms
		p.Done(work.outcome)
	}
	*now = time.Second
	l.Step()
	if c.seen.Cost != 3+4+1 || c.seen.Timed != 3 {
		t.Errorf("%d pieces cost %d, want 3 and 8", c.seen.Timed, c.seen.Cost)
	}
}

// Each sample knows how much was in flight beside it, over its whole life.
func TestSamplesKnowTheirCompany(t *testing.T) {
	c := &spy{limit: 4}
	l, now := byHand(limit.Config{Controller: c})
	p := take(t, l)
	*now = 100 * ms
	q := weir.Must(l.TryAdmit(weir.Work{Cost: 3}))
	*now = 200 * ms
	q.Done(weir.Failed) // 4 of them throughout
	*now = 400 * ms
	p.Done(weir.Overload) // 1 for 300 ms, 4 for 100 ms
	take(t, l).Done(weir.OK)
	*now = time.Second
	l.Step()
	want := []control.Sample{
		{Start: 100 * ms, Latency: 100 * ms, Concurrency: 4, Failed: true},
		{Latency: 400 * ms, Concurrency: 1.75},
		{Start: 400 * ms, Latency: 0, Concurrency: 1, Good: true},
	}
	if !slices.Equal(c.seen.Samples, want) {
		t.Errorf("\n got %v\nwant %v", c.seen.Samples, want)
	}
}

// Who comes under the lock last may have read the clock first. Nobody is in more company for that than the limit lets in.
func TestSamplesOfOneClock(t *testing.T) {
	c := &spy{limit: 2}
	l, now := byHand(limit.Config{Controller: c})
	p, q := take(t, l), take(t, l)
	*now = 100 * ms
	p.Done(weir.OK)
	*now = 40 * ms // read before the line above
	q.Done(weir.OK)
	p = take(t, l)
	*now = 150 * ms
	p.Done(weir.OK)
	p = take(t, l)
	*now = 200 * ms
	take(t, l).Cancel()
	*now = 180 * ms
	p.Sample(weir.OK)
	p.Done(weir.OK)
	*now = time.Second
	l.Step()
	want := []control.Sample{
		{Latency: 100 * ms, Concurrency: 2, Good: true},
		{Latency: 100 * ms, Concurrency: 2, Good: true},
		{Start: 100 * ms, Latency: 50 * ms, Concurrency: 1, Good: true},
		{Start: 150 * ms, Latency: 50 * ms, Concurrency: 1, Good: true},
	}
	if !slices.Equal(c.seen.Samples, want) {
		t.Errorf("\n got %v\nwant %v", c.seen.Samples, want)
	}
}

// A controller that returns nonsense changes nothing, and is told of once.
func TestNonsense(t *testing.T) {
	var told []string
	c := &wild{}
	l, now := byHand(limit.Config{Controller: c, Hooks: weir.Hooks{
		Faulty: func(gate, problem string) { told = append(told, gate+": "+problem) },
	}})
	for i, d := range []control.Decision{
		{Limit: 0, Next: time.Second}, {Limit: -7, Next: time.Second}, {Limit: limit.MaxLimit + 1, Next: time.Second},
		{Limit: 9, Next: -1}, {Reason: "panic"},
	} {
		c.next = d
		*now, _ = l.Next()
		l.Step()
		if s := l.Snapshot(); s.Limit != 5 || s.Faults != uint64(i+1) {
			t.Errorf("%+v: limit %d, %d faults", d, s.Limit, s.Faults)
		}
	}
	if want := `t: controller "wild" wants a limit of 0: it must be from 1 to 1073741824`; len(told) != 1 || told[0] != want {
		t.Errorf("told %q", told)
	}
	c.next = control.Decision{Limit: 6, Next: time.Nanosecond} // asked for too often
	*now, _ = l.Next()
	l.Step()
	if at, _ := l.Next(); at != *now+ms || l.Snapshot().Limit != 6 {
		t.Errorf("next window at %v, limit %d", at, l.Snapshot().Limit)
	}
	c.next = control.Decision{Limit: limit.MaxLimit, Next: ms} // as much as there may be
	*now, _ = l.Next()
	l.Step()
	if at, _ := l.Next(); at != *now+ms || l.Snapshot().Limit != limit.MaxLimit || l.Snapshot().Faults != 5 {
		t.Errorf("next window at %v, %+v", at, l.Snapshot())
	}
}

// A controller whose first decision is nonsense is refused, also in the place of another.
func TestNonsenseAtTheStart(t *testing.T) {
	running, now := byHand(limit.Config{Limit: 5})
	for _, tt := range []struct {
		first control.Decision
		want  string
	}{
		{control.Decision{}, "a limit of 0: it must be from 1 to 1073741824"},
		{control.Decision{Limit: math.MaxInt64}, "a limit of 9223372036854775807: it must be from 1 to 1073741824"},
		{control.Decision{Limit: 5, Fraction: math.NaN()}, "a fraction of NaN: it must be from 0 to below 1"},
		{control.Decision{Limit: 5, Next: -1}, "a window of -1ns: it must not be negative"},
	} {
		cfg := limit.Config{Name: "t", Controller: &lost{first: tt.first}}
		want := `limit: gate "t": Start of controller "lost" wants ` + tt.want
		if _, err := limit.New(cfg); err == nil || err.Error() != want {
			t.Errorf("New: %v, want %s", err, want)
		}
		*now += time.Second
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
	wild
	first control.Decision
}

func (*lost) Name() string              { return "lost" }
func (l *lost) Start() control.Decision { return l.first }

// wild is a controller that returns whatever it is told to.
type wild struct{ next control.Decision }

func (*wild) Name() string { return "wild" }
func (*wild) Start() control.Decision {
	return control.Decision{Limit: 5, Next: time.Second}
}
func (w *wild) Update(*control.Window) control.Decision {
	if w.next.Reason == "panic" {
		panic("at the disco")
	}
	return w.next
}

// The signals' readings reach the controller, and the one that binds reaches
// snapshots and refusals.
func TestSignalsAreNamed(t *testing.T) {
	c := &wild{next: control.Decision{Limit: 1, Next: time.Second, Signal: "cpu"}}
	l, now := byHand(limit.Config{Controller: c, Signals: stuck{{Name: "cpu", Value: 1.5, Known: true}}})
	*now = time.Second
	l.Step()
	take(t, l)
	if r := refused(t, l, weir.Work{}); r.Signal != "cpu" || l.Snapshot().Signal != "cpu" {
		t.Errorf("%v", &r)
	}
	c.next.Signal, c.next.Reason = "memory", "capped, memory at 2"
	*now = 2 * time.Second
	l.Step()
	if s := l.Snapshot(); s.Signal != "memory" || s.LimitReason != "capped, memory at 2" {
		t.Errorf("another signal binds the same limit: %+v", s)
	}
	c.next.Signal = ""
	*now = 3 * time.Second
	l.Step()
	if r := refused(t, l, weir.Work{}); r.Signal != "" {
		t.Errorf("%v", &r)
	}
}

// stuck is a source that always says the same.
type stuck []control.Reading

func (s stuck) Readings(into []control.Reading) []control.Reading { return append(into, s...) }

// A limit set by hand outlives the windows that hooks ask for.
func TestSetLimitStays(t *testing.T) {
	l, now := byHand(limit.Config{Limit: 1, Hooks: weir.Hooks{LimitChanged: func(string, int64, int64, string) {}}})
	if err := l.SetLimit(5); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		*now += time.Second
		l.Step()
	}
	if s := l.Snapshot(); s.Limit != 5 {
		t.Errorf("limit %d", s.Limit)
	}
}

func TestHooksHearOfEverythingOnce(t *testing.T) {
	var waits, services []time.Duration
	l, now := byHand(limit.Config{Limit: 1, Hooks: weir.Hooks{
		Admitted: func(_ string, _ weir.Work, waited time.Duration) { waits = append(waits, waited) },
		Done:     func(_ string, _ weir.Outcome, service time.Duration) { services = append(services, service) },
	}})
	p := take(t, l)
	var q weir.Permit
	if _, _, err := l.Arrive(weir.Work{}, func(p weir.Permit, _ error) { q = p }); err != weir.ErrWaiting {
		t.Fatal(err)
	}
	*now = 30 * ms
	p.Sample(weir.OK)
	*now = 50 * ms
	p.Done(weir.OK)
	*now = 60 * ms
	q.Done(weir.OK)
	take(t, l).Cancel()
	if want := []time.Duration{0, 50 * ms, 0}; !slices.Equal(waits, want) {
		t.Errorf("waited %v, want %v", waits, want)
	}
	if want := []time.Duration{30 * ms, 10 * ms}; !slices.Equal(services, want) {
		t.Errorf("took %v, want %v", services, want)
	}
}

func TestHookHearsHowLongAdmitWaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var waits []time.Duration
		l := weir.Must(limit.New(limit.Config{Name: "t", Limit: 1, Hooks: weir.Hooks{
			Admitted: func(_ string, _ weir.Work, waited time.Duration) { waits = append(waits, waited) },
		}}))
		defer l.Close()
		p := take(t, l)
		time.AfterFunc(50*ms, func() { p.Done(weir.OK) })
		q, err := l.Admit(context.Background(), weir.Work{})
		if err != nil || !slices.Equal(waits, []time.Duration{0, 50 * ms}) {
			t.Errorf("waited %v: %v", waits, err)
		}
		q.Done(weir.OK)
	})
}

// Work that was out before anybody measured has been timed from the moment
// somebody does, not from the start of the process.
func TestServiceTimeAcrossReconfigure(t *testing.T) {
	l, now := byHand(limit.Config{Limit: 2})
	*now = time.Hour
	p := take(t, l)
	var service time.Duration
	hooks := weir.Hooks{Done: func(_ string, _ weir.Outcome, d time.Duration) { service = d }}
	if err := l.Reconfigure(limit.Config{Limit: 2, Hooks: hooks}); err != nil {
		t.Fatal(err)
	}
	*now += 10 * ms
	p.Done(weir.OK)
	if service != 10*ms {
		t.Errorf("took %v", service)
	}
}

func TestRefusalsHaveTheNumbers(t *testing.T) {
	l, now := byHand(limit.Config{Limit: 1, Queue: limit.Queue{Len: 1, MaxWait: 300 * ms}})
	for by, want := range map[time.Duration]float64{0: 0, 2 * time.Second: 2} {
		r := refused(t, l, weir.Work{Deadline: weir.VirtualEpoch.Add(*now - by)})
		if r.Reason != weir.ReasonDeadline || r.Value != want || r.Retryable {
			t.Errorf("late by %v: %+v", by, r)
		}
	}
	take(t, l)
	if r := refused(t, l, weir.Work{}); r.Reason != weir.ReasonLimit || r.Value != 1 || r.Limit != 1 || !r.Retryable {
		t.Errorf("%+v", r)
	}
	if err := l.SetLimit(2); err != nil {
		t.Fatal(err)
	}
	take(t, l)
	if r := refused(t, l, weir.Work{}); r.Value != 2 || r.Limit != 2 {
		t.Errorf("after the change: %+v", r)
	}
	var answer error
	if _, _, err := l.Arrive(weir.Work{}, func(_ weir.Permit, err error) { answer = err }); err != weir.ErrWaiting {
		t.Fatal(err)
	}
	_, err := l.Admit(context.Background(), weir.Work{})
	if r := weir.AsRejection(err); r == nil || r.Reason != weir.ReasonQueueFull || r.Value != 1 || r.Limit != 1 {
		t.Errorf("%+v", r)
	}
	*now = 300 * ms
	l.Step()
	if r := weir.AsRejection(answer); r == nil || r.Reason != weir.ReasonQueueTimeout || r.Value != 0.3 || r.Limit != 0.3 ||
		r.RetryAfter <= 0 || !r.Retryable {
		t.Errorf("%+v", r)
	}
	l.Close()
	if r := refused(t, l, weir.Work{}); r.Reason != weir.ReasonDraining || !r.Retryable {
		t.Errorf("%+v", r)
	}
	want := map[weir.Reason]uint64{weir.ReasonLimit: 2, weir.ReasonDeadline: 2, weir.ReasonQueueFull: 1,
		weir.ReasonQueueTimeout: 1, weir.ReasonDraining: 1}
	if got := l.Snapshot().Rejected; !reflect.DeepEqual(got, want) {
		t.Errorf("counted %v, want %v", got, want)
	}
}

// The time to come back is that of everybody who waits, and one more.
func TestRetryAfterCountsWhoWaits(t *testing.T) {
	l, now := byHand(limit.Config{Limit: 1, Queue: limit.Queue{Len: 3, MaxWait: -1, Order: limit.FIFO}})
	held := take(t, l)
	wake := func(p weir.Permit, _ error) { held = p }
	for range 3 {
		_, _, _ = l.Arrive(weir.Work{}, wake)
	}
	for range 20 { // one slot of 100 ms: 10 a second
		*now += 100 * ms
		held.Done(weir.OK)
		if _, _, err := l.Arrive(weir.Work{}, wake); err != weir.ErrWaiting {
			t.Fatal(err)
		}
	}
	*now += 100 * ms
	l.Step()
	_, _, err := l.Arrive(weir.Work{}, wake)
	if r := weir.AsRejection(err); r == nil || (r.RetryAfter-400*ms).Abs() > ms {
		t.Errorf("%v; want 400ms", err)
	}
}

// A gate with one slot is full whenever it works, and idle in between. How rarely work comes then
// says nothing of how long the next one waits.
func TestRareWorkIsNoSlowSlot(t *testing.T) {
	for _, pause := range []time.Duration{2 * time.Second, 12 * time.Second, time.Hour} {
		l, now := byHand(limit.Config{Limit: 1, Hooks: weir.Hooks{Rejected: func(weir.Work, *weir.Rejection) {}}}) // as in the gateway
		var held weir.Permit
		wake := func(p weir.Permit, _ error) { held = p }
		together := func(n int) {
			held = take(t, l)
			for i := 1; i < n; i++ {
				if _, _, err := l.Arrive(weir.Work{}, wake); err != weir.ErrWaiting {
					t.Errorf("with pauses of %v, behind %d times 50 ms of work: %v", pause, i, err)
					return
				}
			}
			for range n {
				*now += 50 * ms
				held.Done(weir.OK)
			}
			*now += pause
		}
		together(2)
		for range 20 {
			together(1)
		}
		together(4)
	}
}

// The time to come back is that of a priority. While high work takes every slot, what is
// below is told that this goes on, and no longer waits in vain for a slot.
func TestRetryAfterIsOfAPriority(t *testing.T) {
	l, now := byHand(limit.Config{Limit: 1, Queue: limit.Queue{Len: 8, MaxWait: time.Second, Order: limit.FIFO}})
	held := take(t, l)
	wake := func(p weir.Permit, err error) {
		if err == nil {
			held = p
		}
	}
	for range 6 {
		_, _, _ = l.Arrive(weir.Work{Priority: weir.High}, wake)
	}
	told := func(p weir.Priority, wait time.Duration) *weir.Rejection {
		_, waiter, err := l.Arrive(weir.Work{Priority: p, MaxWait: wait}, wake)
		if waiter != nil {
			waiter.Cancel()
			return nil
		}
		return weir.AsRejection(err)
	}
	for range 500 { // one slot of 10 ms: 100 a second, and as many come
		*now += 10 * ms
		held.Done(weir.OK)
		_, _, _ = l.Arrive(weir.Work{Priority: weir.High}, wake)
		told(weir.Normal, 0)
	}
	if r := told(weir.High, 20*ms); r == nil || r.RetryAfter < 60*ms || r.RetryAfter > 100*ms {
		t.Errorf("high: %v; want 70ms or so", r)
	}
	for _, wait := range []time.Duration{0, weir.NoWait} {
		if r := told(weir.Normal, wait); r == nil || r.RetryAfter < 4*time.Second || r.RetryAfter > 5100*ms {
			t.Errorf("normal, which may wait for %v: %v; want as long again as it has lasted", wait, r)
		}
	}
}

// An hour in which nothing was wanted says nothing about how fast slots come
// back.
func TestAnIdleHourIsNoSlowBackend(t *testing.T) {
	l, now := byHand(limit.Config{Limit: 2})
	*now = time.Hour
	for range 2 { // 2 slots of 100 ms each: 20 a second
		a, b := take(t, l), take(t, l)
		refused(t, l, weir.Work{})
		*now += 100 * ms
		a.Done(weir.OK)
		b.Done(weir.OK)
	}
	take(t, l)
	take(t, l)
	*now += 100 * ms // the estimate is made anew that often
	l.Step()
	if r := refused(t, l, weir.Work{}); (r.RetryAfter - 50*ms).Abs() > ms {
		t.Errorf("%v; want 50ms", r.RetryAfter)
	}
}

// Looking for leaks changes nothing about what is sampled.
func TestFindLeaksSamples(t *testing.T) {
	l, now := byHand(limit.Config{Limit: 1, FindLeaks: true})
	p := take(t, l)
	*now = 10 * ms
	p.Sample(weir.Overload)
	p.Done(weir.OK)
	q := take(t, l)
	q.Cancel()
	q.Done(weir.OK)
	if s := l.Snapshot(); s.Admitted != 1 || s.InFlight != 0 || len(s.Outcomes) != 1 || s.Outcomes[weir.Overload] != 1 {
		t.Errorf("%+v", s)
	}
}

// Work that waits because its cost does not fit makes a window one in full use,
// until it leaves, and no longer.
func TestSaturatedByWhatDoesNotFit(t *testing.T) {
	for name, leave := range map[string]func(*limit.Limiter, weir.Waiter, weir.Permit){
		"served":   func(_ *limit.Limiter, _ weir.Waiter, p weir.Permit) { p.Done(weir.OK) },
		"given up": func(_ *limit.Limiter, w weir.Waiter, _ weir.Permit) { w.Cancel() },
		"expired":  func(l *limit.Limiter, _ weir.Waiter, _ weir.Permit) { l.Step() },
	} {
		c := &spy{limit: 4}
		l, now := byHand(limit.Config{Controller: c, Queue: limit.Queue{Len: 2, MaxWait: 400 * ms}})
		p := take(t, l)
		*now = 100 * ms
		_, w, err := l.Arrive(weir.Work{Cost: 4}, func(p weir.Permit, _ error) { p.Done(weir.OK) })
		if err != weir.ErrWaiting {
			t.Fatal(err)
		}
		*now = 500 * ms
		leave(l, w, p)
		*now = time.Second
		l.Step()
		if c.seen.Saturated != 400*ms {
			t.Errorf("%s: %v", name, c.seen.Saturated)
		}
	}
}

// What was admitted in the fast gear is measured from the moment somebody does:
// its company before is not known.
func TestCompanyAcrossReconfigure(t *testing.T) {
	c := &spy{limit: 4}
	l, now := byHand(limit.Config{Limit: 4})
	*now = time.Hour
	p, q := take(t, l), take(t, l)
	if err := l.Reconfigure(limit.Config{Controller: c}); err != nil {
		t.Fatal(err)
	}
	*now += 100 * ms
	q.Done(weir.OK)
	*now += 100 * ms
	p.Done(weir.OK)
	*now, _ = l.Next()
	l.Step()
	want := []control.Sample{
		{Start: time.Hour, Latency: 100 * ms, Concurrency: 2, Good: true},
		{Start: time.Hour, Latency: 200 * ms, Concurrency: 1.5, Good: true},
	}
	if !slices.Equal(c.seen.Samples, want) || c.seen.MeanInFlight != 0.3 {
		t.Errorf("\n got %v\nwant %v, mean %v", c.seen.Samples, want, c.seen.MeanInFlight)
	}
}

func TestSetLimitIsBounded(t *testing.T) {
	for n, want := range map[int64]int64{limit.MaxLimit: limit.MaxLimit, limit.MaxLimit + 1: 8, 1: 1, 0: 8, -1: 8} {
		l, _ := byHand(limit.Config{Limit: 8})
		err := l.SetLimit(n)
		if got := l.Snapshot().Limit; got != want || (err == nil) != (want == n) {
			t.Errorf("SetLimit(%d): %v, the limit is %d, want %d", n, err, got, want)
		}
	}
}

// Settings that change leave a limiter by belief with what it believes. Another controller
// starts from the limit in force.
func TestReloadOfABelief(t *testing.T) {
	l, now := byHand(limit.Config{Controller: weir.Must(control.NewKnee(control.KneeConfig{Initial: 70}))})
	if err := l.Reconfigure(limit.Config{Queue: limit.Queue{Len: 5}}); err != nil {
		t.Fatal(err)
	}
	if s := l.Snapshot(); s.Controller != "belief" || s.Limit != 70 {
		t.Errorf("from knee: %+v", s)
	}
	for range 400 {
		var held []weir.Permit
		for {
			p, err := l.TryAdmit(weir.Work{})
			if err != nil {
				break
			}
			held = append(held, p)
		}
		*now += time.Duration(max(10, len(held)/3)) * ms // a pool of 30
		for _, p := range held {
			p.Done(weir.OK)
		}
		l.Step()
	}
	before := l.Snapshot()
	if before.Estimate == nil || before.Estimate.Low > 40 {
		t.Fatalf("after 400 rounds: %+v", before.Estimate)
	}
	learned, _ := l.Save()
	if err := l.Reconfigure(limit.Config{Queue: limit.Queue{Len: 6}}); err != nil {
		t.Fatal(err)
	}
	again, _ := l.Save()
	if s := l.Snapshot(); s.Limit != before.Limit || again != learned || *s.Estimate != *before.Estimate {
		t.Errorf("%+v became %+v", before.Estimate, s.Estimate)
	}
}
