package quota

import (
	"math"
	"testing"
	"time"
)

const ms = time.Millisecond

// pail is the buckets of one key with the moment they are looked at.
type pail struct {
	Take
	buckets []bucket
	at      moment
}

func newPail(debt bool, limits ...Limit) *pail {
	p := &pail{Take: Take{Limits: limits, Debt: debt}, at: moment{epoch: time.Unix(0, 0).UTC()}}
	for i := range limits {
		p.buckets = append(p.buckets, full(&limits[i], p.at))
	}
	return p
}

func (p *pail) advance(d time.Duration) { p.at.now += d; p.at.wall += d }

func (p *pail) take(cost int64) Result {
	p.Cost = cost
	return p.decide(p.buckets, p.at)
}

func (p *pail) tokens() float64 {
	b := p.buckets[0]
	b.refill(&p.Limits[0], p.at)
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
		limit Limit
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
		{"K27", Samples(10, 11, time.Second), Strict, []step{{0, 111, true, 0, -1}, {99 * ms, 1, false, ms, -.01}, {ms, 1, true, 0, -1}}},
		{"K30", Samples(.015, 1, 2000*time.Second), Strict, []step{{0, 10, true, 0, 20}, {0, 10, true, 0, 10}, {0, 20, true, 0, -10}, {0, 1, false, 666667 * ms, -10}}},
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
	p.buckets[0].take(&p.Limits[0], -60)
	if got := p.tokens(); got != 100 {
		t.Errorf("%v tokens, want 100", got)
	}
}

// K29: a rate that changes keeps tokens, clipped to the new burst, and debts, which
// are paid back at the new rate.
func TestRateChanges(t *testing.T) {
	p := newPail(true, Samples(10, 11, time.Second))
	p.Limits[0] = Samples(2, 11, time.Second)
	if got := p.tokens(); got != 22 {
		t.Errorf("%v tokens after the rate fell, want 22", got)
	}
	p.take(122)
	p.Limits[0] = Samples(50, 11, time.Second)
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
	newPail(false, Limit{Rate: 10, Burst: 20}).play(t, []step{
		{0, 20, true, 0, 0},
		{0, 1, false, 100 * ms, 0},
		{99 * ms, 1, false, ms, .99},
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
	for _, l := range []Limit{{Rate: 10, Burst: 20}, Each(20, Day, nil)} {
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
	p := newPail(false, Limit{Rate: 4, Burst: 2})
	p.Mode, p.MaxWait = Reserve, time.Second
	p.play(t, []step{
		{0, 1, true, 0, 1}, {0, 1, true, 0, 0},
		{0, 1, true, 250 * ms, -1}, {0, 1, true, 500 * ms, -2}, {0, 2, true, time.Second, -4},
		{0, 1, false, 1250 * ms, -4},
		{0, 3, false, Never, -4},
		{time.Second - 500*time.Microsecond, 1, true, 250*ms + 500*time.Microsecond, -1.002},
	})
	fast := newPail(false, Limit{Rate: 4000, Burst: 1})
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
	slow := newPail(true, Limit{Rate: minRate, Burst: 1})
	slow.take(math.MaxInt64)
	if r := slow.take(1); r.OK || r.Wait != Never {
		t.Errorf("at the slowest rate: %+v", r)
	}
}
