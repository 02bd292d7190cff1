package quota

import (
	"context"
	"errors"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir"
)

// distant is a store elsewhere: each answer takes a while.
type distant struct {
	*Memory
	takes time.Duration

	mu      sync.Mutex
	down    bool
	told    []int64 // the cost of each decision
	refunds float64
	begun   map[string][]time.Time
	under   map[string]int
}

func newDistant(t *testing.T, takes time.Duration) *distant {
	m, err := NewMemory(MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return &distant{Memory: m, takes: takes, begun: map[string][]time.Time{}, under: map[string]int{}}
}

var errGone = errors.New("the store is gone")

func (d *distant) Decide(ctx context.Context, r *Request) (Decision, error) {
	d.mu.Lock()
	d.told = append(d.told, r.Cost)
	d.begun[r.Key] = append(d.begun[r.Key], time.Now())
	d.under[r.Key]++
	if d.under[r.Key] > 1 {
		panic("two questions about one bucket")
	}
	down := d.down
	d.mu.Unlock()
	time.Sleep(d.takes / 2)
	dec, err := d.Memory.Decide(ctx, r)
	time.Sleep(d.takes - d.takes/2)
	d.mu.Lock()
	d.under[r.Key]--
	d.mu.Unlock()
	if down {
		return Decision{}, errGone
	}
	return dec, err
}

func (d *distant) Refund(ctx context.Context, key string, windows []Window, tokens float64) error {
	d.mu.Lock()
	d.refunds += tokens
	d.mu.Unlock()
	return d.Memory.Refund(ctx, key, windows, tokens)
}

// sum is what the store has been told, less what has been given back.
func (d *distant) sum() (n float64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.told {
		n += float64(c)
	}
	return n - d.refunds
}

func (d *distant) decisions() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.told)
}

func aheadOf(t *testing.T, s Store, onError OnStoreError, rate, burst float64) *Quota {
	q, err := New(Config{Name: "bytes", Store: s, OnStoreError: onError, Rules: []Rule{{User: Every, Windows: []Window{{Rate: rate, Burst: burst}}}}})
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// However much is charged, a store is asked at most 50 times a second about a bucket, is told everything once, and nobody waits for it.
func TestAheadBoundsDecisions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newDistant(t, 3*time.Millisecond)
		q := aheadOf(t, s, Local, 1e6, 1e7)
		const users, seconds, each = 3, 10, 5
		begin := time.Now()
		var charged float64
		for time.Since(begin) < seconds*time.Second {
			for u := range users {
				for range each {
					before := time.Now()
					if _, _, err := q.AdmitAhead(t.Context(), weir.Work{User: string(rune('a' + u)), Cost: 100}); err != nil || time.Now() != before {
						t.Fatalf("%v, after %v", err, time.Since(before))
					}
					charged += 100
				}
			}
			time.Sleep(time.Millisecond)
		}
		q.Close()
		if got := s.sum(); got != charged {
			t.Errorf("the store was told of %v tokens, %v were charged", got, charged)
		}
		if len(s.begun) != users {
			t.Errorf("%d buckets", len(s.begun))
		}
		for key, at := range s.begun {
			if most := 50*seconds + 2; len(at) > most || len(at) < 50*seconds-5 { // the last when it closes
				t.Errorf("%s: %d decisions in %d s, want at most %d", key, len(at), seconds, most)
			}
			for i := 1; i < len(at)-1; i++ {
				if pause := at[i].Sub(at[i-1]); pause < tabPace {
					t.Fatalf("%s: two questions within %v", key, pause)
				}
			}
		}
	})
}

// A charge that nothing follows is told at once. What is owed is known when the store has answered, also where others have charged the
// bucket; then each charge knows it.
func TestAheadOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newDistant(t, 2*time.Millisecond)
		q, other := aheadOf(t, s, Local, 1000, 1000), aheadOf(t, s, Local, 1000, 1000)
		w := weir.Work{User: "alice", Cost: 500}
		if _, _, err := other.AdmitIn(t.Context(), Permissive, weir.Work{User: "alice", Cost: 3000}); err != nil {
			t.Fatal(err)
		}
		_, a, _ := q.AdmitAhead(t.Context(), w)
		if a.Wait != 0 || a.Remaining != 500 {
			t.Errorf("before the store has answered: %+v", a)
		}
		time.Sleep(3 * time.Millisecond)
		if s.decisions() != 2 {
			t.Fatalf("%d decisions", s.decisions())
		}
		if got := q.Owed(w); got < 2490*time.Millisecond || got > 2500*time.Millisecond {
			t.Errorf("owed for %v", got)
		}
		_, a, _ = q.AdmitAhead(t.Context(), w)
		if a.Wait < 2990*time.Millisecond || a.Wait > 3000*time.Millisecond || a.Key != "bytes/user=alice" {
			t.Errorf("%+v", a)
		}
		time.Sleep(time.Minute)
		if got := q.Owed(w); got != 0 {
			t.Errorf("owed for %v after a minute", got)
		}
		time.Sleep(time.Second) // which asked the store again
		if n := s.decisions(); n != 4 {
			t.Errorf("%d decisions, want 4", n)
		}
	})
}

// To look at a bucket asks about it, once a second at most, and charges nothing.
func TestOwedAsksMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newDistant(t, 2*time.Millisecond)
		q, other := aheadOf(t, s, Local, 1000, 1000), aheadOf(t, s, Local, 1000, 1000)
		w := weir.Work{User: "alice", Cost: 3000}
		_, _, _ = other.AdmitIn(t.Context(), Permissive, w)
		if got := q.Owed(w); got != 0 {
			t.Errorf("owed for %v, and nobody has asked", got)
		}
		time.Sleep(10 * time.Millisecond)
		for range 50 {
			if got := q.Owed(w); got < 1900*time.Millisecond || got > 2000*time.Millisecond {
				t.Fatalf("owed for %v", got)
			}
			time.Sleep(time.Millisecond)
		}
		if n := s.decisions(); n != 2 || s.sum() != 3000 {
			t.Errorf("%d decisions, of %v tokens", n, s.sum())
		}
		if m, err := New(Config{Name: "m", Rules: []Rule{{Windows: []Window{{Rate: 10, Burst: 10}}}}}); err != nil {
			t.Fatal(err)
		} else if _, _, err := m.AdmitAhead(t.Context(), weir.Work{Cost: 20}); err != nil || m.Owed(weir.Work{Cost: 99}) != time.Second {
			t.Errorf("in memory: %v, owed for %v", err, m.Owed(weir.Work{}))
		}
	})
}

// What is cancelled is given back, whether or not the store has been told, and a cost is corrected.
func TestAheadIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newDistant(t, 2*time.Millisecond)
		q := aheadOf(t, s, Local, 1000, 1000)
		w := weir.Work{User: "alice", Cost: 700}
		var all []weir.Permit
		for range 4 {
			p, _, err := q.AdmitAhead(t.Context(), w)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, p)
		}
		all[3].Cancel()
		time.Sleep(time.Second)
		if s.sum() != 2100 {
			t.Errorf("%v told", s.sum())
		}
		all[0].Cancel()
		all[1].SetCost("", 500)
		all[2].SetCost("", 900)
		time.Sleep(time.Second)
		if s.sum() != 1400 {
			t.Errorf("%v told after a refund", s.sum())
		}
		q.Close()
		all[2].SetCost("", 1000)
		if s.sum() != 1500 {
			t.Errorf("%v told after the end", s.sum())
		}
	})
}

// When the store fails, what the gate says for that case holds for what comes next; and when it is back, the store's word.
func TestAheadOfAStoreThatFails(t *testing.T) {
	for _, c := range []struct {
		onError OnStoreError
		want    time.Duration // owed after two charges of 1500
		reason  weir.Reason   // of the second
		after   time.Duration // owed after a third one, when the store is back
	}{
		{Local, 2 * time.Second, 0, 500 * time.Millisecond},
		{Open, 0, 0, 500 * time.Millisecond},
		{Closed, 0, weir.ReasonStore, 500 * time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newDistant(t, 2*time.Millisecond)
			s.down = true
			q := aheadOf(t, s, c.onError, 1000, 1000)
			w := weir.Work{User: "alice", Cost: 1500}
			_, _, _ = q.AdmitAhead(t.Context(), w)
			time.Sleep(30 * time.Millisecond)
			_, _, err := q.AdmitAhead(t.Context(), w)
			if r := weir.AsRejection(err); (r == nil) != (c.reason == 0) || r != nil && r.Reason != c.reason {
				t.Errorf("%v: %v", c.onError, err)
			}
			time.Sleep(30 * time.Millisecond)
			if got := q.Owed(w); got > c.want || got < c.want-100*time.Millisecond {
				t.Errorf("%v: owed for %v, want %v", c.onError, got, c.want)
			}
			if q.Faults().StoreErrors < 2 {
				t.Errorf("%v: %+v", c.onError, q.Faults())
			}
			s.mu.Lock()
			s.down = false
			s.mu.Unlock()
			s.Purge()
			time.Sleep(10 * time.Second) // the store has forgotten, and the buckets here are full
			_, _, _ = q.AdmitAhead(t.Context(), w)
			time.Sleep(3 * time.Millisecond)
			if got := q.Owed(w); got > c.after || got < c.after-10*time.Millisecond {
				t.Errorf("%v: owed for %v when the store is back, want %v", c.onError, got, c.after)
			}
			q.Close()
		})
	}
}

// What was charged in an outage is not given back by the store that was gone.
func TestAheadOfAnOutageIsNotGivenBack(t *testing.T) {
	for _, onError := range []OnStoreError{Local, Open} {
		synctest.Test(t, func(t *testing.T) {
			s := newDistant(t, 2*time.Millisecond)
			q := aheadOf(t, s, onError, 1, 1000)
			defer q.Close()
			charge := func(cost int64, down bool) weir.Permit {
				s.mu.Lock()
				s.down = down
				s.mu.Unlock()
				p, _, err := q.AdmitAhead(t.Context(), weir.Work{User: "alice", Cost: cost})
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(100 * time.Millisecond)
				return p
			}
			charge(1, false)
			first, second := charge(200, true), charge(300, true)
			last := charge(400, false)
			first.Cancel()
			second.Cancel()
			last.SetCost("", 390)
			time.Sleep(100 * time.Millisecond)
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.refunds != 10 {
				t.Errorf("%v: the store has given back %v, want 10", onError, s.refunds)
			}
		})
	}
}

// What is charged while a question fails is told to nobody, and not given back.
func TestAheadOfAFailingQuestionIsNotGivenBack(t *testing.T) {
	for _, onError := range []OnStoreError{Open, Closed} {
		synctest.Test(t, func(t *testing.T) {
			s := newDistant(t, 2*time.Millisecond)
			q := aheadOf(t, s, onError, 1, 1000)
			defer q.Close()
			s.down = true
			var both [2]weir.Permit
			for i := range both {
				var err error
				if both[i], _, err = q.AdmitAhead(t.Context(), weir.Work{User: "alice", Cost: 300}); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Millisecond)
			}
			s.mu.Lock()
			s.down = false
			s.mu.Unlock()
			time.Sleep(2 * time.Second)
			last, _, err := q.AdmitAhead(t.Context(), weir.Work{User: "alice", Cost: 100})
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(100 * time.Millisecond)
			both[0].Cancel()
			both[1].Cancel()
			last.Cancel()
			time.Sleep(100 * time.Millisecond)
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.refunds != 100 {
				t.Errorf("%v: the store has given back %v, want 100", onError, s.refunds)
			}
		})
	}
}

// An account that was dropped still says where its charges are given back, whatever the next one of the bucket does.
func TestAheadIsGivenBackWithoutAnAccount(t *testing.T) {
	for _, c := range []struct {
		onError     OnStoreError
		down        bool // when it was charged
		again       bool // there is another account
		store, here float64
	}{
		{Local, false, false, 300, 0}, {Local, false, true, 300, 0}, {Open, false, true, 300, 0},
		{Local, true, false, 0, 300}, {Local, true, true, 0, 300}, {Open, true, false, 0, 0}, {Open, true, true, 0, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newDistant(t, 2*time.Millisecond)
			q := aheadOf(t, s, c.onError, 0.001, 1000)
			defer q.Close()
			s.down = c.down
			w := weir.Work{User: "alice", Cost: 300}
			p, _, err := q.AdmitAhead(t.Context(), w)
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(3 * time.Second)
			s.mu.Lock()
			s.down = false
			s.mu.Unlock()
			q.tabs.mu.Lock()
			q.tabs.next = 0 // look for idle ones
			q.tabs.mu.Unlock()
			_ = q.Owed(weir.Work{User: "bob"})
			synctest.Wait()
			if n := len(q.tabs.byKey); n != 1 {
				t.Fatalf("%d accounts, want bob's", n)
			}
			if c.again {
				if _, _, err := q.AdmitAhead(t.Context(), w); err != nil {
					t.Fatal(err)
				}
				time.Sleep(100 * time.Millisecond)
			}
			left := func() float64 {
				m := q.local(true)
				d, err := m.Decide(t.Context(), &Request{Key: "bytes/user=alice", Windows: q.Rules()[0].Windows, Mode: DryRun})
				if err != nil {
					t.Fatal(err)
				}
				return d.Remaining
			}
			before := left()
			p.Cancel()
			time.Sleep(100 * time.Millisecond)
			s.mu.Lock()
			defer s.mu.Unlock()
			if got := math.Round(left() - before); s.refunds != c.store || got != c.here {
				t.Errorf("%+v: the store has given back %v, and the fallback %v", c, s.refunds, got)
			}
		})
	}
}

// There are accounts for so many buckets; about others the store is asked each time. Idle ones make room.
func TestAheadIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newDistant(t, 0)
		q := aheadOf(t, s, Local, 1000, 1000)
		for i := range maxTabs + 100 {
			if _, _, err := q.AdmitAhead(t.Context(), weir.Work{User: string(rune(0x10000 + i)), Cost: 10}); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if n := len(q.tabs.byKey); n != maxTabs {
			t.Errorf("%d accounts", n)
		}
		if s.sum() != 10*(maxTabs+100) {
			t.Errorf("%v told", s.sum())
		}
		time.Sleep(2 * time.Second)
		_, _, _ = q.AdmitAhead(t.Context(), weir.Work{User: "late", Cost: 10})
		synctest.Wait()
		if n := len(q.tabs.byKey); n != 1 {
			t.Errorf("%d accounts after a pause", n)
		}
	})
}

// A reset forgives what is owed here as well.
func TestAheadOfAReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := aheadOf(t, newDistant(t, time.Millisecond), Local, 1000, 1000)
		w := weir.Work{User: "alice", Cost: 5000}
		_, _, _ = q.AdmitAhead(t.Context(), w)
		time.Sleep(time.Second)
		if _, err := q.Reset(t.Context(), w); err != nil {
			t.Fatal(err)
		}
		if got := q.Owed(w); got != 0 {
			t.Errorf("owed for %v", got)
		}
		q.Close()
	})
}

// An account against the store that it stands for: each token is told once, questions keep their distance, and where nobody else
// charges the bucket, what is known here is what a bucket here would say, but for what comes back to a full bucket while nothing is told.
func FuzzTab(f *testing.F) {
	f.Add([]byte{0, 10, 1, 5, 0, 200, 2, 0, 1, 50, 0, 255, 2, 0, 3, 7})
	f.Add([]byte{0, 255, 0, 255, 1, 0, 0, 255, 3, 200, 2, 0, 1, 255, 1, 255})
	f.Fuzz(func(t *testing.T, program []byte) {
		w := Window{Rate: 1000, Burst: 500}
		r := newRule("g", Rule{Windows: []Window{w}})
		var a tab
		store, here := full(&w, moment{}), full(&w, moment{})
		var now, asked time.Duration
		var charged, told, under float64
		begun := false
		for i := 0; i+1 < len(program); i += 2 {
			at := moment{now: now}
			n := float64(program[i+1]) * 4
			switch program[i] % 4 {
			case 0, 3: // a charge, or a refund
				if program[i]%4 == 3 {
					n = -min(n, a.untold)
				}
				d, refused := a.charge(r, n, at)
				charged += n
				here.refill(&w, at)
				here.charge(&w, n)
				if refused != nil || d.Remaining > here.tokens+1e-6 || d.Remaining < here.tokens-w.Rate*1.1 {
					t.Fatalf("step %d: %+v, and the bucket has %v", i, d, here.tokens)
				}
				if owed := w.wait(-here.tokens, at); d.Wait < owed-time.Millisecond {
					t.Fatalf("step %d: to wait %v, and %v is owed", i, d.Wait, owed)
				}
			case 1:
				now += time.Duration(program[i+1]) * time.Millisecond / 4
			case 2:
				if begun {
					store.refill(&w, at)
					store.charge(&w, under)
					told += under
					req := Request{Windows: []Window{w}, Mode: Permissive}
					d := Decision{OK: true}
					req.describe(&d, []bucket{store}, at)
					a.answered(d, inStore, nil, at)
					begun = false
				}
			}
			if wait, ok := a.due(now); ok && wait == 0 {
				if a.begun > 0 && now-asked < tabPace || begun {
					t.Fatalf("step %d: asked again after %v", i, now-asked)
				}
				under, asked, begun = a.begin(now), now, true
			} else if ok && wait > tabPace {
				t.Fatalf("step %d: to be told in %v", i, wait)
			}
		}
		if got := told + a.untold; begun && got+under != charged || !begun && got != charged || math.IsNaN(got) {
			t.Fatalf("%v charged, %v told, %v under way, %v not told", charged, told, under, a.untold)
		}
	})
}

// Whoever decides the questions, an account has a charge only if that was made where the account is now, or is still to be told.
func FuzzTabInOutages(f *testing.F) {
	f.Add([]byte{0, 0, 6, 0, 3, 4}) // a charge while a question fails, and the store is back
	f.Add([]byte{0, 4, 3, 0, 0, 5, 3, 6, 0, 3, 0, 7, 3, 134, 0, 3, 5})
	f.Fuzz(func(t *testing.T, program []byte) {
		r := newRule("g", Rule{Windows: []Window{{Rate: 1000, Burst: 500}}})
		const untold = nowhere + 1
		type charge struct {
			question int
			where    decider
		}
		var a tab
		var all []charge
		var at moment
		told := 0 // how many of all, with those under way
		for i, step := range program {
			switch step % 8 {
			case 0, 1, 2:
				if _, refused := a.charge(r, 7, at); refused == nil {
					all = append(all, charge{a.begun + 1, untold})
				}
			case 3:
				at.now += tabFresh
			default:
				if !a.under {
					break
				}
				where := decider(step % 4 % 3)
				if where == nowhere {
					told = len(all) // nobody is told of the others either
				}
				for j := range all[:told] {
					if all[j].where == untold {
						all[j].where = where
					}
				}
				var refused *weir.Rejection
				if where == nowhere && step >= 128 {
					refused = &weir.Rejection{Reason: weir.ReasonStore}
				}
				a.answered(Decision{OK: true, Remaining: 500}, where, refused, at)
			}
			for _, c := range all {
				if made := c.where == a.where || c.where == untold; a.has(c.question) && !made {
					t.Fatalf("step %d: the account, which is in %d, has a charge of question %d, which was made in %d", i, a.where, c.question, c.where)
				} else if made && a.where != nowhere && c.where == untold && !a.has(c.question) {
					t.Fatalf("step %d: the account does not have a charge that it has to tell", i)
				}
			}
			if wait, ok := a.due(at.now); ok && wait == 0 {
				a.begin(at.now)
				told = len(all)
			}
		}
	})
}

// A rule may lose the window that binds, before the next charge and while the store is asked.
func TestAheadOfFewerWindows(t *testing.T) {
	wide, narrow := Window{Rate: 1e6, Burst: 1e6}, Window{Rate: 1, Burst: 5}
	for _, c := range []struct {
		name string
		wait time.Duration // until the window is gone; the store takes 100 ms
	}{{"before the next charge", time.Second}, {"while the store is asked", 50 * time.Millisecond}} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := newQuota(t, Config{Name: "g", Store: newDistant(t, 100*time.Millisecond), Mode: Permissive, Rules: everyUser(wide, narrow)})
				charge := func() Answer {
					_, a, err := q.AdmitAhead(t.Context(), of(alice, 10))
					if err != nil {
						t.Fatal(err)
					}
					return a
				}
				charge()
				time.Sleep(c.wait)
				if err := q.SetRules(everyUser(wide)); err != nil {
					t.Fatal(err)
				}
				if a := charge(); a.Window != 0 {
					t.Errorf("%+v, of a window that is gone", a)
				}
				time.Sleep(time.Second)
				if a := charge(); a.Window != 0 || a.Wait != 0 {
					t.Errorf("%+v, of a window that is gone", a)
				}
			})
		})
	}
}

// What the fallback was charged is given back there, and not to the store, which never had it.
func TestAheadGivesBackToTheFallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newDistant(t, 0)
		s.down = true
		q := aheadOf(t, s, Local, 1e-6, 100)
		defer q.Close()
		admit := func(cost int64) weir.Permit {
			p, _, err := q.AdmitAhead(t.Context(), of(alice, cost))
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(100 * time.Millisecond)
			return p
		}
		first, second := admit(60), admit(30)
		first.Cancel()
		second.Cancel()
		time.Sleep(time.Second)
		if s.refunds != 0 {
			t.Errorf("the store, which was down, was given back %v tokens", s.refunds)
		}
		admit(1)
		if _, a, _ := q.AdmitAhead(t.Context(), of(alice, 1)); math.Round(a.Remaining) != 98 {
			t.Errorf("%v left in the fallback, want 98", a.Remaining)
		}
	})
}
