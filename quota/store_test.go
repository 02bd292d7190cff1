package quota

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir"
)

const ms = time.Millisecond

// pail is the buckets of one key with the moment they are looked at.
type pail struct {
	Request
	buckets []bucket
	at      moment
}

func newPail(debt bool, limits ...Window) *pail {
	p := &pail{Request: Request{Windows: limits, Debt: debt}, at: moment{epoch: time.Unix(0, 0).UTC()}}
	for i := range limits {
		p.buckets = append(p.buckets, full(&limits[i], p.at))
	}
	return p
}

func (p *pail) advance(d time.Duration) { p.at.now += d; p.at.wall += d }

func (p *pail) take(cost int64) Decision {
	p.Cost = cost
	return p.decide(p.buckets, p.at)
}

func (p *pail) tokens() float64 {
	b := p.buckets[0]
	b.refill(&p.Windows[0], p.at)
	return b.tokens
}

// step is one take: what it costs, how much later than the one before, and what
// comes of it.
type step struct {
	after time.Duration
	cost  int64
	ok    bool
	wait  time.Duration
	left  float64
}

// The vectors of Kafka's controller mutation quota: K7 and so on are the numbers
// they go by in our notes on KIP-599.
func TestKafkaVectors(t *testing.T) {
	for _, c := range []struct {
		name  string
		limit Window
		mode  Mode
		steps []step
	}{
		{"K1-K2", Samples(5, 10, 2*time.Second), Strict, []step{{0, 0, true, 0, 100}, {0, 60, true, 0, 40}}},
		{"K7-K8", Samples(10, 10, time.Second), Strict, []step{{0, 90, true, 0, 10}, {0, 90, true, 0, -80}, {0, 90, false, 8 * time.Second, -80}}},
		{"K10", Samples(10, 10, time.Second), Permissive, []step{{0, 90, true, 0, 10}, {0, 90, true, 8 * time.Second, -80}, {0, 90, true, 17 * time.Second, -170}}},
		{"K12", Samples(10, 11, time.Second), Permissive, []step{{0, 110, true, 0, 0}, {0, 5, true, 500 * ms, -5}, {0, 5, true, 1000 * ms, -10}}},
		{"K17, S24", Samples(5, 100, time.Second), Strict, []step{{0, 560, true, 0, -60}, {0, 1, false, 12 * time.Second, -60}, {12*time.Second - time.Microsecond, 1, false, ms, -5e-6}, {time.Microsecond, 1, true, 0, -1}}},
		{"K20, K23", Samples(2, 10, time.Second), Strict, []step{{0, 30, true, 0, -10}, {0, 30, false, 5 * time.Second, -10}}},
		{"K25", Samples(10, 11, time.Second), Strict, []step{{0, 60, true, 0, 50}, {0, 60, true, 0, -10}, {0, 1, false, time.Second, -10}}},
		{"K27", Samples(10, 11, time.Second), Strict, []step{{0, 111, true, 0, -1}, {99 * ms, 1, false, ms, -0.01}, {ms, 1, true, 0, -1}}},
		{"K30", Samples(0.015, 1, 2000*time.Second), Strict, []step{{0, 10, true, 0, 20}, {0, 10, true, 0, 10}, {0, 20, true, 0, -10}, {0, 1, false, 666667 * ms, -10}}},
		{"zero is no debt", Per(1, time.Second), Strict, []step{{0, 1, true, 0, 0}, {0, 1, true, 0, -1}, {0, 1, false, time.Second, -1}}},
		{"a debt too small for a millisecond", Samples(1e6, 1, time.Second), Strict, []step{{0, 1e6 + 1, true, 0, -1}, {0, 1, false, ms, -1}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPail(true, c.limit)
			p.Mode = c.mode
			p.play(t, c.steps)
		})
	}
}

func (p *pail) play(t *testing.T, steps []step) {
	t.Helper()
	for i, s := range steps {
		p.advance(s.after)
		r := p.take(s.cost)
		if r.OK != s.ok || r.Wait != s.wait || math.Abs(r.Remaining-s.left) > 1e-8 {
			t.Errorf("step %d: take %d: ok %v, wait %v, %v left; want %v, %v, %v", i, s.cost, r.OK, r.Wait, r.Remaining, s.ok, s.wait, s.left)
		}
	}
}

// K13: ten a second for ten seconds is never throttled at a rate of ten.
func TestAtTheRate(t *testing.T) {
	p := newPail(true, Samples(10, 10, time.Second))
	for i := range 10 {
		if r := p.take(10); !r.OK || r.Wait != 0 {
			t.Errorf("second %d: %+v", i, r)
		}
		p.advance(time.Second)
	}
}

// K5: what is given back is capped at the burst.
func TestGiveIsCapped(t *testing.T) {
	p := newPail(true, Samples(5, 10, 2*time.Second))
	p.buckets[0].charge(&p.Windows[0], -60)
	if got := p.tokens(); got != 100 {
		t.Errorf("%v tokens, want 100", got)
	}
}

// K29: a rate that changes keeps tokens, clipped to the new burst, and debts, which
// are paid back at the new rate.
func TestRateChanges(t *testing.T) {
	p := newPail(true, Samples(10, 11, time.Second))
	p.Windows[0] = Samples(2, 11, time.Second)
	if got := p.tokens(); got != 22 {
		t.Errorf("%v tokens after the rate fell, want 22", got)
	}
	p.take(122)
	p.Windows[0] = Samples(50, 11, time.Second)
	if r := p.take(1); r.OK || r.Wait != 2*time.Second {
		t.Errorf("a debt of 100 at 50/s: %+v, want a wait of 2s", r)
	}
	p.advance(2 * time.Second)
	if got := p.tokens(); math.Abs(got) > 1e-6 {
		t.Errorf("%v tokens after 2s, want 0: a larger burst is no gift", got)
	}
}

// Without debts there must be as many tokens as the work costs.
func TestStrictBucket(t *testing.T) {
	newPail(false, Window{Rate: 10, Burst: 20}).play(t, []step{
		{0, 20, true, 0, 0},
		{0, 1, false, 100 * ms, 0},
		{99 * ms, 1, false, ms, 0.99},
		{ms, 1, true, 0, 0},
		{2 * time.Second, 21, false, Never, 20},
		{0, 20, true, 0, 0},
		{0, 0, true, 0, 0},
		{0, 1, false, 100 * ms, 0},
	})
}

// The clock steps back: no tokens are lost or won, and the bucket goes on filling
// from there.
func TestClockStepsBack(t *testing.T) {
	for _, l := range []Window{{Rate: 10, Burst: 20}, PerCalendar(20, Day, nil)} {
		p := newPail(false, l)
		p.advance(30 * 24 * time.Hour)
		p.take(15)
		p.advance(-20 * 24 * time.Hour)
		if got := p.tokens(); got != 5 {
			t.Errorf("%v: %v tokens after the clock went back, want 5", l, got)
		}
		p.take(5)
		p.advance(24 * time.Hour)
		if got := p.tokens(); got != 20 {
			t.Errorf("%v: %v tokens a day later, want 20", l, got)
		}
	}
}

func TestDryRunTakesNothing(t *testing.T) {
	p := newPail(true, Per(10, time.Second))
	p.Mode = DryRun
	for range 3 {
		if r := p.take(100); !r.OK || r.Remaining != 10 {
			t.Errorf("%+v, want ok with 10 left", r)
		}
	}
	p.buckets[0].tokens = -10
	if r := p.take(1); r.OK || r.Wait != time.Second {
		t.Errorf("in debt: %+v", r)
	}
}

// A reservation takes now and starts later; what would wait too long takes nothing.
func TestReserve(t *testing.T) {
	p := newPail(false, Window{Rate: 4, Burst: 2})
	p.Mode, p.MaxWait = Reserve, time.Second
	p.play(t, []step{
		{0, 1, true, 0, 1}, {0, 1, true, 0, 0},
		{0, 1, true, 250 * ms, -1}, {0, 1, true, 500 * ms, -2}, {0, 2, true, time.Second, -4},
		{0, 1, false, 1250 * ms, -4},
		{0, 3, false, Never, -4},
		{time.Second - 500*time.Microsecond, 1, true, 250*ms + 500*time.Microsecond, -1.002},
	})
	fast := newPail(false, Window{Rate: 4000, Burst: 1})
	fast.Mode = Reserve
	fast.play(t, []step{{0, 1, true, 0, 0}, {0, 1, true, 0, -1}, {0, 1, true, 0, -2}, {0, 1, true, 0, -3}, {0, 1, false, ms, -3}})
}

// All windows or none, and the one that binds most speaks.
func TestSeveralWindows(t *testing.T) {
	p := newPail(false, Per(10, time.Second), Per(15, time.Hour))
	if r := p.take(10); !r.OK || r.Window != 0 || r.Remaining != 0 {
		t.Errorf("first: %+v", r)
	}
	if r := p.take(1); r.OK || r.Window != 0 || r.Wait != 100*ms {
		t.Errorf("second: %+v", r)
	}
	p.advance(time.Second)
	if r := p.take(6); r.OK || r.Window != 1 || r.Wait < 3*time.Minute || r.Remaining < 5 {
		t.Errorf("the hour binds: %+v", r)
	}
	if got := p.tokens(); got != 10 {
		t.Errorf("the second lost %v tokens to a refusal by the hour", 10-got)
	}
	if r := p.take(5); !r.OK || r.Window != 1 {
		t.Errorf("what is left of the hour: %+v", r)
	}
}

// No cost, however absurd, makes a debt that is not a number, or an unlimited key.
func TestAbsurdCosts(t *testing.T) {
	p := newPail(true, Per(10, time.Second))
	p.take(math.MaxInt64)
	if r := p.take(math.MaxInt64); r.OK || r.Remaining != -MaxTokens || r.Wait < 0 {
		t.Errorf("%+v", r)
	}
	p.Mode = Permissive
	if r := p.take(math.MaxInt64); r.Remaining != -MaxTokens || r.Wait <= 0 {
		t.Errorf("permissive: %+v", r)
	}
	slow := newPail(true, Window{Rate: MinRate, Burst: 1})
	slow.take(math.MaxInt64)
	if r := slow.take(1); r.OK || r.Wait != Never {
		t.Errorf("at the slowest rate: %+v", r)
	}
}

// The vectors of other systems' rate limiters that no other table has. K is Kafka
// (bucket_test.go has the rest), P its precedence (rules_test.go), M the limiters of
// MongoDB (quota_test.go has M60, M61 and M64). K15 and K32 are about who mutes a
// connection for how long, which is for an adapter of that protocol: nothing here
// holds a connection.

// K34, K36: the quotas of bytes that Kafka keeps are rates over the last S samples, not
// buckets. What such a window takes at once is the burst of a bucket with a sample
// less; and what it says of a load that never lets it run empty is what a bucket says
// that began empty. A bucket that began full has its burst on top.
func TestRatesOverAWindow(t *testing.T) {
	if l := Samples(10, 4-1, time.Second); l.Burst != 30 {
		t.Errorf("K36: a burst of %v, want 30", l.Burst)
	}
	for name, c := range map[string]struct {
		before int64
		wait   time.Duration
	}{"K34": {5500, 2100 * ms}, "began full": {0, 0}} {
		p := newPail(true, Samples(500, 11, time.Second))
		p.Mode = Permissive
		p.take(c.before)
		for range 10 {
			p.advance(time.Second)
			p.take(400)
		}
		p.advance(500 * ms)
		if r := p.take(2300); r.Wait != c.wait {
			t.Errorf("%s: a wait of %v, want %v", name, r.Wait, c.wait)
		}
	}
}

// P6, P8, P10: where a rule that goes, or comes, changes whose bucket it is, usage
// begins anew.
func TestPrecedenceChangesTheBucket(t *testing.T) {
	noBoth := without(kafka(), "user=*,client=*")
	noUser := without(noBoth, "user=*")
	withOne := append(slices.Clip(kafka()), Rule{User: Named("userA"), Client: Named("client6"), Windows: samples(11_000)})
	for name, c := range map[string]struct {
		before, after []Rule
		who           weir.Work
		was, is       float64 // rates
	}{
		"P6":  {kafka(), noBoth, weir.Work{User: "userD", Client: "client1"}, 3000, 1000},
		"P8":  {noBoth, noUser, weir.Work{User: "userF", Client: "client4"}, 1000, 2000},
		"P10": {kafka(), withOne, weir.Work{User: "userA", Client: "client6"}, 4000, 11_000},
	} {
		r := newRig(t, Config{Debt: true, Rules: c.before})
		r.admit(of(c.who, int64(11*c.was)+1))
		if got := r.refused(c.who); got.Limit != 11*c.was {
			t.Errorf("%s, exhausted: %+v, want a burst of %v", name, *got, 11*c.was)
		}
		if err := r.SetRules(c.after); err != nil {
			t.Fatal(err)
		}
		if got := r.left(c.who); got != 11*c.is {
			t.Errorf("%s, anew: %v left, want %v", name, got, 11*c.is)
		}
		r.admit(c.who)
	}
}

// M64, an operation with 5 ms left: elsewhere it waits, and hears of its deadline. Here
// it hears at once that the wait is longer, and nothing has been taken.
func TestDeadlineBeforeTheTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQuota(t, Config{Name: "q", Rules: everyUser(Window{Rate: 0.01, Burst: 1}), Queue: Queue{Len: 1, MaxWait: -1}})
		if _, err := q.Admit(ctx, alice); err != nil {
			t.Fatal(err)
		}
		short, cancel := context.WithTimeout(ctx, 5*ms)
		defer cancel()
		began := time.Now()
		_, err := q.Admit(short, alice)
		if r := weir.AsRejection(err); r == nil || r.Reason != weir.ReasonQuota || r.RetryAfter != 100*time.Second || time.Since(began) != 0 {
			t.Errorf("%v after %v, want a refusal at once with a wait of 100s", err, time.Since(began))
		}
		if d, _ := q.Peek(ctx, of(alice, 0)); d.Remaining != 0 || q.Snapshot().Waiting != 0 {
			t.Errorf("%v left, %d waiting; want 0 and 0", d.Remaining, q.Snapshot().Waiting)
		}
	})
}

// M66: no burst is a fault, when the gate is made and when it is changed.
func TestNoBurst(t *testing.T) {
	none := everyUser(Window{Rate: 4})
	if _, err := New(Config{Name: "q", Rules: none}); err == nil || !strings.Contains(err.Error(), "Windows[0].Burst: 0 will not do; must be above 0") {
		t.Errorf("made: %v", err)
	}
	r := newRig(t, Config{Rules: everyUser(Per(4, time.Second))})
	for name, err := range map[string]error{"Reconfigure": r.Reconfigure(Config{Rules: none}), "SetRules": r.SetRules(none)} {
		if err == nil || !strings.Contains(err.Error(), "Windows[0].Burst: 0 will not do; must be above 0") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := r.left(alice); got != 4 {
		t.Errorf("%v left after changes that were refused, want 4", got)
	}
}

// M67, M70: who goes at once has waited 0, which counts; at a rate of 20 the last of 199
// that wait has waited 9.95 s, and one more finds no place.
func TestTimeInTheQueue(t *testing.T) {
	var waited []time.Duration
	r := newRig(t, Config{
		Rules: []Rule{{Windows: []Window{{Rate: 20, Burst: 1}}}}, Queue: Queue{Len: 199, MaxWait: time.Minute},
		Hooks: weir.Hooks{Admitted: func(_ string, _ weir.Work, d time.Duration) { waited = append(waited, d) }},
	})
	for range 200 {
		if _, _, err := r.Arrive(alice, func(weir.Permit, error) {}); err != nil && err != weir.ErrWaiting {
			t.Fatal(err)
		}
	}
	if len(waited) != 1 || waited[0] != 0 {
		t.Errorf("M67: who went at once waited %v, want 0", waited)
	}
	if _, _, err := r.Arrive(alice, nil); r.rejection(err).Reason != weir.ReasonQuota {
		t.Errorf("one too many: %v", err)
	}
	for at, ok := r.Next(); ok; at, ok = r.Next() {
		r.clock.advance(at - r.clock.now())
		r.Step()
	}
	if last := waited[len(waited)-1]; len(waited) != 200 || last != 9950*ms {
		t.Errorf("M70: %d went, the last after %v; want 200 and 9.95s", len(waited), last)
	}
}

// A reservation that is given back pulls nobody forward, but who comes next finds it.
func TestGivenBackReservation(t *testing.T) {
	r := newRig(t, Config{Rules: everyUser(Window{Rate: 4, Burst: 1}), Queue: Queue{Len: 9, MaxWait: time.Minute}})
	due := func() time.Duration { at, _ := r.Next(); return at }
	r.admit(alice)
	_, first, _ := r.Arrive(alice, func(weir.Permit, error) {})
	_, second, _ := r.Arrive(alice, func(weir.Permit, error) {})
	if first.Cancel(); due() != 500*ms {
		t.Errorf("the second's turn is at %v, want 500ms", due())
	}
	if second.Cancel(); r.left(alice) != 0 {
		t.Errorf("%v left, want 0", r.left(alice))
	}
	if _, _, err := r.Arrive(alice, func(weir.Permit, error) {}); err != weir.ErrWaiting || due() != 250*ms {
		t.Errorf("%v, the next turn is at %v, want 250ms", err, due())
	}
}

const year = 365 * 24 * time.Hour

// A time is read as it was written, however long after the epoch, and never as one
// before that.
func TestNear(t *testing.T) {
	for _, now := range []time.Duration{0, time.Microsecond, year, 8 * year, 9 * year, 56 * year, 200 * year} {
		for _, ago := range []time.Duration{0, time.Microsecond, time.Hour, 8 * year, -time.Hour, -40 * 24 * time.Hour} {
			last := max(now-ago, 0).Truncate(time.Microsecond)
			kept, _ := unpack(0, pack(bucket{last: last}, 7))
			if got := near(kept.last, now); got != last {
				t.Errorf("%v, %v ago: %v, want %v", now, ago, got, last)
			}
		}
	}
	for kept := time.Duration(0); kept < timeSpan; kept += timeSpan / 97 {
		if got := near(kept, 0); got != kept {
			t.Errorf("at the epoch: %v, want %v", got, kept)
		}
	}
}

// However a clock jumps, no more is let through than what it has moved on brings back:
// also not where it was set by more years than a bucket's time holds.
func TestClockJumps(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	jumps := []time.Duration{0, 1, time.Millisecond, time.Second, time.Hour, 25 * time.Hour, 40 * 24 * time.Hour, year, 5 * year, 9 * year, 56 * year}
	for name, tt := range map[string]struct {
		limits []Window
		back   func(from, to time.Duration) float64 // tokens that come back
	}{
		"rate": {[]Window{Per(10, time.Hour)}, func(from, to time.Duration) float64 { return min(10*(to-from).Hours(), 10) }},
		"day":  {[]Window{PerCalendar(10, Day, nil)}, func(from, to time.Duration) float64 { return 10 * min(float64(days(to)-days(from)), 1) }},
		"both": {[]Window{Per(10, time.Minute), PerCalendar(10, Day, nil)}, func(from, to time.Duration) float64 { return 10 * min(float64(days(to)-days(from)), 1) }},
	} {
		var now time.Duration
		m := newMemory(t, MemoryConfig{Now: func() time.Duration { return now }})
		through, most := 0., 10.
		for range 3000 {
			from := now
			if jump := jumps[random.IntN(len(jumps))]; random.IntN(3) == 0 {
				now = max(now-jump, 0)
			} else if now+jump < 200*year {
				now += jump
			}
			switch {
			case now > from:
				most += tt.back(from, now)
			case from-now > timeSlack: // may be taken for the years to the next time with these bits
				most += 10
			}
			for range random.IntN(15) {
				if r, err := m.Decide(t.Context(), &Request{Key: "k", Windows: tt.limits, Cost: 1}); err != nil {
					t.Fatal(err)
				} else if r.OK {
					through++
				}
			}
			if through > most+1e-6 {
				t.Fatalf("%s: %v let through until %v, at most %v", name, through, now, most)
			}
		}
		if through < 100 {
			t.Errorf("%s: only %v let through", name, through)
		}
	}
}

// days counts the days since the epoch of a clock given as Now.
func days(at time.Duration) int64 { return weir.VirtualEpoch.Add(at).Unix() / 86400 }

// A token is told to come back when it does, and is there then, however often it is
// asked for meanwhile: what a float64 is off by costs nobody a millisecond more, and
// brings nobody one less.
func TestWholeWaits(t *testing.T) {
	for _, unit := range []time.Duration{ms, time.Minute, time.Hour} {
		for n := range 200 {
			wait := time.Duration(n+1) * unit
			p := newPail(false, Window{Rate: 1 / wait.Seconds(), Burst: 1})
			p.take(1)
			for left := wait; left > 0; left -= unit {
				if got := p.take(1); got.OK || got.Wait != left {
					t.Fatalf("%v of %v before its time: %+v, want a refusal for as long", left, wait, got)
				}
				p.advance(unit)
			}
			if got := p.take(1); !got.OK {
				t.Fatalf("after %v: %+v, want it let through", wait, got)
			}
		}
	}
}

// A debt of whole periods is paid back by as many, not by one more.
func TestDebtOfWholePeriods(t *testing.T) {
	for periods := range 5 {
		p := newPail(true, PerCalendar(100, Hour, nil))
		p.take(100)
		p.take(int64(100 * periods))
		if periods == 0 {
			continue
		}
		want := time.Duration(periods) * time.Hour
		if got := p.take(1); got.OK || got.Wait != want {
			t.Errorf("a debt of %d periods: %+v, want a refusal for %v", periods, got, want)
		}
		p.advance(want)
		if got := p.take(1); !got.OK {
			t.Errorf("a debt of %d periods, after %v: %+v, want it let through", periods, want, got)
		}
	}
}

// Of several debts the longest is told, wherever it stands.
func TestPermissiveSeveralWindows(t *testing.T) {
	fast, slow := Window{Rate: 10, Burst: 10}, Window{Rate: 1, Burst: 10}
	for _, limits := range [][]Window{{fast, slow}, {slow, fast}, {fast, slow, fast}} {
		for mode, want := range map[Mode]time.Duration{Permissive: 20 * time.Second, Reserve: 15 * time.Second} {
			p := newPail(true, limits...)
			p.Mode, p.MaxWait = mode, time.Minute
			p.take(25)
			p.buckets[slices.Index(limits, fast)].tokens -= 5
			if got := p.take(5); !got.OK || got.Wait != want || limits[got.Window] != slow {
				t.Errorf("%v, %v: %+v, want %v for %v", limits, mode, got, want, slow)
			}
		}
	}
}

// Many who share a bucket come at once, and obey a Retry-After in whole seconds: they
// come back at once, too, and find no more than a burst. One that holds what comes back
// in a second serves them at the rate; with a queue it is every other second.
func TestThoseWhoComeBackTogether(t *testing.T) {
	const clients = 400
	for _, test := range []struct {
		name  string
		burst float64
		queue Queue
		last  time.Duration // when the last one is served
	}{
		{"a fifth of a second's worth", 20, Queue{}, 19 * time.Second},
		{"a second's worth", 100, Queue{}, 3 * time.Second},
		{"a fifth, and a queue", 20, Queue{Len: 100, MaxWait: time.Second}, 6200 * time.Millisecond},
	} {
		r := newRig(t, Config{Rules: []Rule{{Windows: []Window{{Rate: 100, Burst: test.burst}}}}, Queue: test.queue})
		var last time.Duration
		tries, served := 0, 0
		back := map[time.Duration]int{0: clients} // by the second
		serve := func(weir.Permit, error) { served, last = served+1, r.clock.now() }
		for served < clients && r.clock.now() < time.Minute {
			for range back[r.clock.now()] {
				tries++
				switch _, _, err := r.Arrive(weir.Work{}, serve); {
				case err == nil:
					serve(weir.Permit{}, nil)
				case err != weir.ErrWaiting:
					after := (r.rejection(err).RetryAfter + time.Second - 1).Truncate(time.Second)
					back[r.clock.now()+after]++
				}
			}
			second := r.clock.now() + time.Second
			for at, ok := r.Next(); ok && at < second; at, ok = r.Next() {
				r.clock.advance(at - r.clock.now())
				r.Step()
			}
			r.clock.advance(second - r.clock.now())
			r.Step()
		}
		t.Logf("%s: the last of %d is served after %v, by %d tries", test.name, clients, last, tries)
		if served != clients || last != test.last {
			t.Errorf("%s: %d served, the last after %v; want %v", test.name, served, last, test.last)
		}
	}
}
