package weir_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/limit"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/slot"
)

// scribe is a gate that writes down what becomes of its permits. It can do no
// more than a Gate must: it is no TryAdmitter.
type scribe struct {
	name   string
	diary  *[]string
	refuse error
	broken bool // it panics when it gets a permit back

	slot  slot.Slot
	group slot.Group
}

func newScribe(name string, diary *[]string) *scribe {
	s := &scribe{name: name, diary: diary}
	s.group.Holder = s
	s.group.Attention.Store(1)
	s.slot.Init(&s.group, 0)
	return s
}

func (s *scribe) note(format string, args ...any) {
	*s.diary = append(*s.diary, s.name+" "+fmt.Sprintf(format, args...))
}

func (s *scribe) Admit(_ context.Context, w weir.Work) (weir.Permit, error) {
	if s.refuse != nil {
		return weir.Permit{}, s.refuse
	}
	s.note("admit %v", w.MaxWait)
	return weir.NewPermit(s.slot.Issue()), nil
}

func (s *scribe) Done(t slot.Ticket, outcome uint8) {
	s.note("done %v", weir.Outcome(outcome))
	t.Recall()
	s.panics()
}

func (s *scribe) Cancel(t slot.Ticket) {
	s.note("cancel")
	t.Recall()
	s.panics()
}

func (s *scribe) panics() {
	if s.broken {
		panic(s.name)
	}
}

func (s *scribe) Sample(_ slot.Ticket, outcome uint8) { s.note("sample %v", weir.Outcome(outcome)) }

func (s *scribe) SetCost(_ slot.Ticket, gate string, n int64) { s.note("cost %q %d", gate, n) }

func expect(t *testing.T, diary *[]string, want ...string) {
	t.Helper()
	if !slices.Equal(*diary, want) {
		t.Errorf("\n got %q\nwant %q", *diary, want)
	}
	*diary = nil
}

// Everything that is said about a chain's permit reaches each gate in it, the
// last one first where something ends; and a chain's second use says nothing
// about its first.
func TestAllPassesEverythingOn(t *testing.T) {
	var diary []string
	a, b := newScribe("a", &diary), newScribe("b", &diary)
	all := weir.All(a, b)
	w := weir.Work{MaxWait: time.Second}
	for range 2 {
		p, err := all.Admit(context.Background(), w)
		if err != nil {
			t.Fatal(err)
		}
		expect(t, &diary, "a admit "+weir.NoWait.String(), "b admit 1s")
		p.Sample(weir.Overload)
		p.Sample(weir.OK)
		expect(t, &diary, "a sample overload", "b sample overload")
		p.SetCost("b", 7)
		expect(t, &diary, `a cost "b" 7`, `b cost "b" 7`)
		p.Done(weir.Abandoned)
		p.SetCost("", 9)
		expect(t, &diary, "b done abandoned", "a done abandoned")
	}
	p, _ := all.Admit(context.Background(), w)
	diary = nil
	p.Cancel()
	expect(t, &diary, "b cancel", "a cancel")
}

func TestAllCancelsInReverse(t *testing.T) {
	var diary []string
	a, b, c := newScribe("a", &diary), newScribe("b", &diary), newScribe("c", &diary)
	c.refuse = errors.New("full")
	all := weir.All(a, b, c)
	if _, err := all.Admit(context.Background(), weir.Work{}); err != c.refuse {
		t.Error(err)
	}
	if diary = diary[2:]; len(diary) != 2 {
		t.Fatalf("%q", diary)
	}
	expect(t, &diary, "b cancel", "a cancel")
}

// panics is a gate that panics, or ends its goroutine.
type panics struct{ exit bool }

func (g panics) Admit(context.Context, weir.Work) (weir.Permit, error) {
	if g.exit {
		runtime.Goexit()
	}
	panic("a gate of the user")
}

func (g panics) Arrive(w weir.Work, _ func(weir.Permit, error)) (weir.Permit, weir.Waiter, error) {
	p, err := g.Admit(context.Background(), w)
	return p, nil, err
}

// A gate that panics keeps no grant of the gates before it.
func TestAllGivesBackWhenAGatePanics(t *testing.T) {
	for _, exit := range []bool{false, true} {
		for place := range 2 {
			var diary []string
			gates := []weir.Gate{newScribe("a", &diary), newScribe("b", &diary), newScribe("c", &diary)}
			gates[1+place] = panics{exit}
			all := weir.All(gates...)
			for name, admit := range map[string]func(){
				"Admit":    func() { all.Admit(context.Background(), weir.Work{}) },
				"TryAdmit": func() { all.(weir.TryAdmitter).TryAdmit(weir.Work{}) },
				"Arrive":   func() { all.(weir.Arriver).Arrive(weir.Work{}, nil) },
			} {
				diary = nil
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					defer func() { recover() }()
					admit()
				}()
				<-ended
				var got []string
				for _, line := range diary {
					if !strings.Contains(line, "admit") {
						got = append(got, line)
					}
				}
				want := []string{"b cancel", "a cancel"}[1-place:]
				if !slices.Equal(got, want) {
					t.Errorf("%s, gate %d panics (Goexit %v): %q, want %q", name, 1+place, exit, got, want)
				}
			}
		}
	}
}

// A gate that panics when it gets its permit back keeps no permit of the others. The panic
// goes on, and the bundle serves again.
func TestAllGivesBackAllWhenDonePanics(t *testing.T) {
	var diary []string
	a, b, c := newScribe("a", &diary), newScribe("b", &diary), newScribe("c", &diary)
	all := weir.All(a, b, c)
	for _, broken := range [][]*scribe{{c}, {b}, {a}, {a, b, c}, {}} {
		for _, tt := range []struct {
			end  func(weir.Permit)
			want []string
		}{
			{func(p weir.Permit) { p.Done(weir.OK) }, []string{"c done ok", "b done ok", "a done ok"}},
			{weir.Permit.Cancel, []string{"c cancel", "b cancel", "a cancel"}},
		} {
			for _, s := range broken {
				s.broken = true
			}
			p, err := all.Admit(context.Background(), weir.Work{})
			if err != nil {
				t.Fatal(err)
			}
			diary = nil
			var panicked any
			func() {
				defer func() { panicked = recover() }()
				tt.end(p)
			}()
			if (panicked != nil) != (len(broken) > 0) {
				t.Errorf("%d gates panic: recovered %v", len(broken), panicked)
			}
			if p.Live() {
				t.Error("the permit is live")
			}
			expect(t, &diary, tt.want...)
			for _, s := range broken {
				s.broken = false
			}
		}
	}
}

// However the last gate says no, at once or after a wait, the grants of the
// others come back.
// Release gives slots back and leaves the charge open: it is corrected, or given back, by the permit that is left.
func TestReleaseKeepsTheCharge(t *testing.T) {
	var diary []string
	q := weir.Must(quota.New(quota.Config{Name: "tokens", Rules: []quota.Rule{{Windows: []quota.Window{quota.Per(100, time.Hour)}}}}))
	defer q.Close()
	slots := weir.Must(limit.New(limit.Config{Name: "slots", Limit: 1}))
	defer slots.Close()
	left := func() int {
		d, err := q.Peek(t.Context(), weir.Work{})
		if err != nil {
			t.Fatal(err)
		}
		return int(d.Remaining + 0.5)
	}
	for _, g := range []weir.Gate{weir.All(q, newScribe("a", &diary), slots), weir.All(weir.All(newScribe("b", &diary), q), slots), q} {
		diary = nil
		for _, end := range []func(weir.Permit){weir.Permit.Cancel, func(p weir.Permit) { p.SetCost("", 7); p.Done(weir.OK); p.SetCost("", 9) }} {
			before := left()
			p, err := g.Admit(t.Context(), weir.Work{Cost: 40, MaxWait: weir.NoWait})
			if err != nil {
				t.Fatal(err)
			}
			rest := p.Release(weir.NoSample)
			if n := slots.Snapshot().InFlight; n != 0 || left() != before-40 || !rest.Live() {
				t.Errorf("released: %d in flight, %d left of %d, live %v", n, left(), before, rest.Live())
			}
			if g != weir.Gate(q) && (p.Live() || p.Release(weir.OK) != (weir.Permit{})) {
				t.Error("the permit holds something still")
			}
			end(rest)
			if used := before - left(); used != 0 && used != 7 || q.Snapshot().InFlight != 0 {
				t.Errorf("at the end: %d used, %d in flight", used, q.Snapshot().InFlight)
			}
			if rest.Release(weir.OK) != (weir.Permit{}) {
				t.Error("an ended permit leaves something")
			}
		}
	}
	diary = nil
	p, err := weir.All(newScribe("a", &diary), newScribe("b", &diary)).Admit(t.Context(), weir.Work{})
	if err != nil || p.Release(weir.OK) != (weir.Permit{}) || (weir.Permit{}).Release(weir.OK) != (weir.Permit{}) {
		t.Errorf("something is left of slots, or %v", err)
	}
	expect(t, &diary, "a admit "+weir.NoWait.String(), "b admit 0s", "b done ok", "a done ok")
}

// Without a panic nothing of a chain stays behind, and with one nothing either.
func TestReleaseGivesBackAllWhenDonePanics(t *testing.T) {
	var diary []string
	q := weir.Must(quota.New(quota.Config{Name: "tokens", Rules: []quota.Rule{{Windows: []quota.Window{quota.Per(100, time.Hour)}}}}))
	defer q.Close()
	broken := newScribe("broken", &diary)
	p, err := weir.All(q, broken, newScribe("last", &diary)).Admit(t.Context(), weir.Work{})
	if err != nil {
		t.Fatal(err)
	}
	broken.broken = true
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic is gone")
			}
		}()
		p.Release(weir.OK)
	}()
	if q.Snapshot().InFlight != 0 {
		t.Error("the quota keeps a permit")
	}
}

func TestAllArriveRefused(t *testing.T) {
	now := time.Duration(0)
	a := newLimit(t, "a", 5)
	last := weir.Must(limit.New(limit.Config{Name: "last", Limit: 1, Queue: limit.Queue{Len: 1, MaxWait: time.Second},
		Now: func() time.Duration { return now }}))
	all := weir.All(a, last).(weir.Arriver)
	first, _, _ := all.Arrive(weir.Work{}, nil)
	var answer error
	if _, _, err := all.Arrive(weir.Work{}, func(_ weir.Permit, err error) { answer = err }); err != weir.ErrWaiting {
		t.Fatal(err)
	}
	_, _, err := all.Arrive(weir.Work{}, nil)
	if r := weir.AsRejection(err); r == nil || r.Reason != weir.ReasonQueueFull || inFlight(a) != 2 {
		t.Errorf("refused at once: %v, a has %d", err, inFlight(a))
	}
	now = time.Second
	last.Step()
	if r := weir.AsRejection(answer); r == nil || r.Reason != weir.ReasonQueueTimeout || inFlight(a) != 1 {
		t.Errorf("refused after a wait: %v, a has %d", answer, inFlight(a))
	}
	first.Done(weir.OK)
	if inFlight(a, last) != 0 {
		t.Errorf("%d in flight", inFlight(a, last))
	}
}

// A Cancel that comes after the answer takes nothing from the permit it brought.
func TestAllCancelAfterTheAnswer(t *testing.T) {
	a, last := newLimit(t, "a", 5), newLimit(t, "last", 1)
	all := weir.All(a, last).(weir.Arriver)
	first, _, _ := all.Arrive(weir.Work{}, nil)
	var p weir.Permit
	_, w, err := all.Arrive(weir.Work{}, func(granted weir.Permit, _ error) { p = granted })
	if err != weir.ErrWaiting {
		t.Fatal(err)
	}
	first.Done(weir.OK)
	if !p.Live() || w.Cancel() || !p.Live() || inFlight(a, last) != 2 {
		t.Errorf("live %v, %d in flight", p.Live(), inFlight(a, last))
	}
	p.Done(weir.OK)
	if inFlight(a, last) != 0 {
		t.Errorf("%d in flight", inFlight(a, last))
	}
}

// oracle refuses nothing by itself; it says what it is told to.
type oracle struct {
	weir.Gate
	says  *weir.Rejection
	asked int
}

func (o *oracle) Predict(context.Context, weir.Work) *weir.Rejection {
	o.asked++
	return o.says
}

// no is a gate that refuses.
type no struct{ with error }

func (g no) Admit(context.Context, weir.Work) (weir.Permit, error) { return weir.Permit{}, g.with }

// Who is refused by a quota is told of the one that keeps it waiting longest, also
// in chains of chains; other refusals stand as they are, and nobody is asked.
func TestAllTellsTheLongestWait(t *testing.T) {
	after := func(gate string, reason weir.Reason, wait time.Duration) *weir.Rejection {
		return &weir.Rejection{Gate: gate, Reason: reason, RetryAfter: wait, Retryable: wait > 0}
	}
	var (
		second  = after("second", weir.ReasonQuota, time.Second)
		shorter = after("shorter", weir.ReasonQuota, time.Millisecond)
		longer  = after("longer", weir.ReasonQuota, time.Minute)
		never   = after("never", weir.ReasonBlocked, 0)
		full    = after("full", weir.ReasonQueueFull, time.Second)
		other   = errors.New("no rejection")
	)
	for _, test := range []struct {
		first error
		later []*weir.Rejection
		want  error
		asked int
	}{
		{second, []*weir.Rejection{nil, nil}, second, 1},
		{second, []*weir.Rejection{shorter, nil}, second, 1},
		{second, []*weir.Rejection{second, nil}, second, 1},
		{second, []*weir.Rejection{longer, shorter}, longer, 1},
		{second, []*weir.Rejection{shorter, longer}, longer, 1},
		{second, []*weir.Rejection{never, longer}, never, 1},
		{second, []*weir.Rejection{longer, never}, never, 1},
		{full, []*weir.Rejection{longer, never}, full, 0},
		{other, []*weir.Rejection{longer, never}, other, 0},
	} {
		var diary []string
		open := newScribe("open", &diary)
		var later []*oracle
		for _, says := range test.later {
			later = append(later, &oracle{Gate: open, says: says})
		}
		all := weir.All(open, no{test.first}, open, later[0], weir.All(open, later[1]))
		if _, err := all.Admit(context.Background(), weir.Work{}); err != test.want {
			t.Errorf("%v, then %v: got %v, want %v", test.first, test.later, err, test.want)
		}
		for i, o := range later {
			if o.asked != test.asked {
				t.Errorf("%v, then %v: number %d was asked %d times, want %d", test.first, test.later, i, o.asked, test.asked)
			}
		}
		if len(diary) != 2 || diary[1] != "open cancel" {
			t.Errorf("%v: %q, want the first grant alone, cancelled", test.first, diary)
		}
	}
}

// The queue of a later quota counts only where work may wait in it: at the last gate, unless the chain is only tried.
func TestAllTellsTheLongestWaitWithoutAQueue(t *testing.T) {
	admit := func(g weir.Gate) error {
		_, err := g.Admit(context.Background(), weir.Work{})
		return err
	}
	try := func(g weir.Gate) error {
		_, err := g.(weir.TryAdmitter).TryAdmit(weir.Work{})
		return err
	}
	for _, test := range []struct {
		name string
		last bool // the quota with the queue is the last gate
		ask  func(weir.Gate) error
		want string
	}{
		{"in the middle", false, admit, "queued"},
		{"in the middle, tried", false, try, "queued"},
		{"at the end", true, admit, "first"},
		{"at the end, tried", true, try, "queued"},
	} {
		still := func() time.Duration { return 0 }
		newQuota := func(name string, rate float64, q quota.Queue) *quota.Quota {
			return weir.Must(quota.New(quota.Config{Name: name, Now: still, Queue: q,
				Rules: []quota.Rule{{Windows: []quota.Window{{Rate: rate, Burst: 1}}}}}))
		}
		first := newQuota("first", 10, quota.Queue{})
		queued := newQuota("queued", 1, quota.Queue{Len: 10, MaxWait: 2 * time.Second})
		chain := weir.All(first, queued, newLimit(t, "l", 10))
		if test.last {
			chain = weir.All(first, weir.All(newLimit(t, "l", 10), queued))
		}
		if err := test.ask(chain); err != nil {
			t.Fatal(err)
		}
		if r := weir.AsRejection(test.ask(chain)); r == nil || r.Gate != test.want {
			t.Errorf("%s: told %v, want the wait for gate %q", test.name, r, test.want)
		}
	}
}

// A later gate that a permit in the context covers keeps nobody waiting.
func TestAllAsksNoGateThatIsHeld(t *testing.T) {
	var diary []string
	open := newScribe("open", &diary)
	held := &oracle{Gate: open, says: &weir.Rejection{Reason: weir.ReasonQuota, RetryAfter: time.Hour, Retryable: true}}
	p, err := held.Admit(context.Background(), weir.Work{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Done(weir.OK)
	ctx := weir.WithPermit(context.Background(), held, p)
	first := &weir.Rejection{Reason: weir.ReasonQuota, RetryAfter: time.Second, Retryable: true}
	if _, err := weir.All(no{first}, held).Admit(ctx, weir.Work{}); err != first || held.asked != 0 {
		t.Errorf("got %v after %d questions, want %v and none", err, held.asked, first)
	}
}

func TestNestedCallTakesNoSecondSlot(t *testing.T) {
	l := newLimit(t, "l", 1)
	err := weir.Do(context.Background(), l, weir.Work{}, func(ctx context.Context) error {
		return weir.Do(ctx, l, weir.Work{MaxWait: weir.NoWait}, func(ctx context.Context) error {
			if n := inFlight(l); n != 1 {
				return fmt.Errorf("%d in flight", n)
			}
			return nil
		})
	})
	if err != nil {
		t.Error(err)
	}
	if inFlight(l) != 0 {
		t.Error("not given back")
	}
}

func TestNestedCallAfterDoneNeedsItsOwnSlot(t *testing.T) {
	l := newLimit(t, "l", 1)
	p, _ := l.TryAdmit(weir.Work{})
	ctx := weir.WithPermit(context.Background(), l, p)
	p.Done(weir.OK)
	other, _ := l.TryAdmit(weir.Work{}) // the same slot, another generation
	defer other.Done(weir.OK)
	if _, err := l.Admit(ctx, weir.Work{MaxWait: weir.NoWait}); err == nil {
		t.Error("admitted on a permit that is done")
	}
}

// A call that rides on a permit carries nothing on, once that permit is done.
func TestNestedCallOfARideAfterDone(t *testing.T) {
	l := newLimit(t, "l", 1)
	p, _ := l.TryAdmit(weir.Work{})
	ctx := weir.WithPermit(context.Background(), l, p)
	ride, err := l.Admit(ctx, weir.Work{MaxWait: weir.NoWait})
	if err != nil {
		t.Fatal(err)
	}
	defer ride.Done(weir.OK)
	deep := weir.WithPermit(ctx, l, ride)
	p.Done(weir.OK)
	other, err := l.TryAdmit(weir.Work{})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Done(weir.OK)
	if _, err := l.Admit(deep, weir.Work{MaxWait: weir.NoWait}); err == nil {
		t.Error("admitted on a ride whose permit is done")
	}
}

// maxNested is how many nested calls may ride on one permit.
const maxNested = 64

func TestNestedCallsAreBounded(t *testing.T) {
	l := newLimit(t, "l", 1)
	p, _ := l.TryAdmit(weir.Work{})
	defer p.Done(weir.OK)
	ctx := weir.WithPermit(context.Background(), l, p)
	var riding []weir.Permit
	for range maxNested {
		r, err := l.Admit(ctx, weir.Work{MaxWait: weir.NoWait})
		if err != nil {
			t.Fatal(err)
		}
		riding = append(riding, r)
	}
	if _, err := l.Admit(ctx, weir.Work{MaxWait: weir.NoWait}); err == nil {
		t.Error("no bound")
	}
	riding[0].Done(weir.OK)
	riding[0].Done(weir.OK)
	if _, err := l.Admit(ctx, weir.Work{MaxWait: weir.NoWait}); err != nil {
		t.Error(err)
	}
	if _, err := l.Admit(ctx, weir.Work{MaxWait: weir.NoWait}); err == nil {
		t.Error("Done twice made two places")
	}
}

func TestNestedFindsTheRightGate(t *testing.T) {
	a, b := newLimit(t, "a", 1), newLimit(t, "b", 1)
	ctx := context.Background()
	pa, _ := a.TryAdmit(weir.Work{})
	pb, _ := b.TryAdmit(weir.Work{})
	defer pa.Done(weir.OK)
	defer pb.Done(weir.OK)
	ctx = weir.WithPermit(weir.WithPermit(ctx, a, pa), b, pb)
	for _, g := range []weir.Gate{a, b} {
		if _, err := g.Admit(ctx, weir.Work{MaxWait: weir.NoWait}); err != nil {
			t.Error(err)
		}
	}
}

// A gate that two chains share takes no second slot either, wherever it stands.
func TestNestedThroughChains(t *testing.T) {
	a, b, c, d := newLimit(t, "a", 1), newLimit(t, "b", 1), newLimit(t, "c", 1), newLimit(t, "d", 1)
	outer := weir.All(a, b)
	for _, inner := range []weir.Gate{outer, a, b, weir.All(a, c), weir.All(c, b),
		weir.All(weir.All(a, c), b), weir.All(weir.All(c, a), b), weir.All(weir.All(b, weir.All(c, a)), d),
		weir.All(passing{a}, c), weir.All(weir.All(passing{a}, c), b),
	} {
		err := weir.Do(context.Background(), outer, weir.Work{}, func(ctx context.Context) error {
			return weir.Do(ctx, inner, weir.Work{MaxWait: weir.NoWait}, func(context.Context) error { return nil })
		})
		if err != nil {
			t.Error(err)
		}
		if inFlight(a, b, c, d) != 0 {
			t.Error("not all given back")
		}
	}
}

// passing is a gate that only passes on.
type passing struct{ to weir.Gate }

func (g passing) Admit(ctx context.Context, w weir.Work) (weir.Permit, error) {
	return g.to.Admit(ctx, w)
}

// The context reaches a gate of one's own wherever it stands in a chain.
func TestAllTellsTheContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	own, free := passing{newLimit(t, "own", 1)}, newLimit(t, "free", 3)
	for _, g := range []weir.Gate{weir.All(own, free), weir.All(weir.All(own, free), free), weir.All(weir.All(free, own), free)} {
		if _, err := g.Admit(ctx, weir.Work{}); !errors.Is(err, context.Canceled) || weir.AsRejection(err).Gate != "own" {
			t.Error("the first gate that looks at the context:", err)
		}
	}
}

// What rides on one slot is bounded however deep the calls go, and whichever
// chains they take.
func TestNestedCallsShareOneBound(t *testing.T) {
	a, b, c, d := newLimit(t, "a", 1), newLimit(t, "b", 1), newLimit(t, "c", 1), newLimit(t, "d", 1)
	noWait := weir.Work{MaxWait: weir.NoWait}
	tests := map[string]struct{ first, then weir.Gate }{
		"a gate":            {a, a},
		"a chain":           {weir.All(b, a), a},
		"a chain of chains": {weir.All(c, weir.All(b, a)), a},
		"through a chain":   {a, weir.All(c, a)},
		"through two":       {a, weir.All(c, weir.All(a, d))},
	}
	for name, tt := range tests {
		p, err := tt.first.Admit(t.Context(), noWait)
		if err != nil {
			t.Fatal(name, err)
		}
		ctx := weir.WithPermit(t.Context(), tt.first, p)
		var riding []weir.Permit
		for { // each call from within the one before
			r, err := tt.then.Admit(ctx, noWait)
			if err != nil {
				break
			}
			ctx = weir.WithPermit(ctx, tt.then, r)
			riding = append(riding, r)
		}
		if len(riding) != maxNested || inFlight(a) != 1 {
			t.Errorf("%s: %d calls rode on one permit, want %d; %d in flight", name, len(riding), maxNested, inFlight(a))
		}
		p.Done(weir.OK)
		if r, ok := weir.Nested(ctx, a); ok {
			t.Errorf("%s: rides on a permit that is done", name)
			r.Done(weir.OK)
		}
		for _, r := range riding {
			r.Done(weir.OK)
		}
		if n := inFlight(a, b, c, d); n != 0 {
			t.Errorf("%s: %d not given back", name, n)
		}
	}
}

// Carrying the same permit twice makes no second bound.
func TestNestedPermitCarriedTwice(t *testing.T) {
	l := newLimit(t, "l", 1)
	p, _ := l.TryAdmit(weir.Work{})
	defer p.Done(weir.OK)
	ctx := weir.WithPermit(t.Context(), l, p)
	for i := range maxNested + 1 {
		ctx = weir.WithPermit(ctx, l, p)
		if _, ok := weir.Nested(ctx, l); ok != (i < maxNested) {
			t.Fatalf("call %d: %v", i, ok)
		}
	}
}

// A ride that is done carries nothing, although the permit that it rode on is still live.
func TestNestedInARideThatIsDone(t *testing.T) {
	a, b := newLimit(t, "a", 1), newLimit(t, "b", 1)
	both := weir.All(a, b)
	p, _ := a.TryAdmit(weir.Work{})
	defer p.Done(weir.OK)
	inner, err := both.Admit(weir.WithPermit(t.Context(), a, p), weir.Work{})
	if err != nil {
		t.Fatal(err)
	}
	ctx := weir.WithPermit(t.Context(), both, inner) // without the permit of a
	if r, ok := weir.Nested(ctx, b); !ok {
		t.Error("does not ride while the chain's permit is live")
	} else {
		r.Done(weir.OK)
	}
	inner.Done(weir.OK)
	if r, ok := weir.Nested(ctx, b); ok {
		t.Error("rides on a slot that was given back")
		r.Done(weir.OK)
	}
}

// A chain may ride in part. Once the permit that it rode on has ended, a nested call needs a slot
// of its own at that gate, and rides on the chain's own slots as before.
func TestNestedInAChainThatRodeInPart(t *testing.T) {
	noWait := weir.Work{MaxWait: weir.NoWait}
	open := gateFunc(func(weir.Work) (weir.Permit, error) { return weir.Permit{}, nil })
	for name, chain := range map[string]func(a, b, c weir.Gate) weir.Gate{
		"a chain":           func(a, b, _ weir.Gate) weir.Gate { return weir.All(open, a, b) },
		"a chain in itself": func(a, b, c weir.Gate) weir.Gate { return weir.All(weir.All(open, a), weir.All(b, c)) },
		"inside a gate":     func(a, b, _ weir.Gate) weir.Gate { return passing{weir.All(open, a, b)} },
	} {
		a, b, c := newLimit(t, "a", 1), newLimit(t, "b", 1), newLimit(t, "c", 1)
		both := chain(a, b, c)
		outer, err := a.TryAdmit(noWait)
		if err != nil {
			t.Fatal(err)
		}
		ctx := weir.WithPermit(t.Context(), a, outer)
		p, err := both.Admit(ctx, noWait)
		if err != nil {
			t.Fatal(name, err)
		}
		ctx = weir.WithPermit(ctx, both, p)
		outer.Done(weir.OK)

		for _, g := range []weir.Gate{b, both, weir.All(b, c), weir.All(c, both)} {
			if r, err := g.Admit(ctx, noWait); err != nil {
				t.Errorf("%s: a nested call waits for its own caller: %v", name, err)
			} else {
				r.Done(weir.OK)
			}
		}
		other, err := a.TryAdmit(noWait)
		if err != nil {
			t.Fatal(name, err)
		}
		for _, g := range []weir.Gate{a, both} {
			if r, err := g.Admit(ctx, noWait); err == nil {
				t.Errorf("%s: admitted on a permit that has ended", name)
				r.Done(weir.OK)
			}
		}
		other.Done(weir.OK)
		p.Done(weir.OK)
		if r, ok := weir.Nested(ctx, b); ok {
			t.Errorf("%s: rides on a slot that was given back", name)
			r.Done(weir.OK)
		}
		if n := inFlight(a, b, c); n != 0 {
			t.Errorf("%s: %d not given back", name, n)
		}
	}
}

// A fan-out from many goroutines keeps the bound, and gives back what it took.
func TestNestedFanOut(t *testing.T) {
	l := newLimit(t, "l", 1)
	p, _ := l.TryAdmit(weir.Work{})
	ctx := weir.WithPermit(t.Context(), l, p)
	var now, most atomic.Int64
	var wg sync.WaitGroup
	for range 200 {
		wg.Go(func() {
			r, err := l.Admit(ctx, weir.Work{MaxWait: weir.NoWait})
			if err != nil {
				return
			}
			n := now.Add(1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			runtime.Gosched()
			now.Add(-1)
			r.Done(weir.OK)
		})
	}
	wg.Wait()
	if m := most.Load(); m < 1 || m > maxNested || inFlight(l) != 1 {
		t.Errorf("%d at once, %d in flight", m, inFlight(l))
	}
	if p.Done(weir.OK); inFlight(l) != 0 {
		t.Error("not given back")
	}
}

// gateFunc is a gate of a type that cannot be compared.
type gateFunc func(weir.Work) (weir.Permit, error)

func (f gateFunc) Admit(_ context.Context, w weir.Work) (weir.Permit, error) { return f(w) }

func TestNestedGatesThatCannotBeCompared(t *testing.T) {
	open := gateFunc(func(weir.Work) (weir.Permit, error) { return weir.Permit{}, nil })
	slots := newLimit(t, "slots", 1)
	outer, inner := weir.All(open, slots), weir.All(open, slots)
	err := weir.Do(t.Context(), outer, weir.Work{}, func(ctx context.Context) error {
		return weir.Do(ctx, inner, weir.Work{MaxWait: weir.NoWait}, func(context.Context) error { return nil })
	})
	if err != nil || inFlight(slots) != 0 {
		t.Errorf("%v, %d in flight", err, inFlight(slots))
	}
}

// The gates of a policy, and chains of them, are covered like any others, and so
// is a gate that a nested call reaches by another route.
func TestNestedThroughAPolicy(t *testing.T) {
	one := policy.GateSpec{Limit: &policy.LimitSpec{Limit: 1}}
	p, err := policy.Compile(policy.Spec{
		Gates: map[string]policy.GateSpec{"a": one, "b": one},
		Routes: []policy.RouteSpec{
			{Name: "a", Match: []string{"/a"}, Gates: []string{"a"}},
			{Name: "ab", Match: []string{"/ab"}, Gates: []string{"a", "b"}},
			{Name: "ba", Match: []string{"/ba"}, Gates: []string{"b", "a"}},
		},
	}, policy.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	noWait := weir.Work{MaxWait: weir.NoWait}
	for _, outer := range []string{"ab", "ba"} {
		for _, inner := range []string{"a", "ab", "ba"} {
			err := weir.Do(t.Context(), p.Route(outer).Gate(), noWait, func(ctx context.Context) error {
				return weir.Do(ctx, p.Route(inner).Gate(), noWait, func(context.Context) error {
					if a, b := p.Gate("a").Snapshot().InFlight, p.Gate("b").Snapshot().InFlight; a != 1 || b != 1 {
						return fmt.Errorf("%d and %d in flight", a, b)
					}
					return nil
				})
			})
			if err != nil {
				t.Errorf("%s from within %s: %v", inner, outer, err)
			}
		}
	}
	if a, b := p.Gate("a").Snapshot().InFlight, p.Gate("b").Snapshot().InFlight; a != 0 || b != 0 {
		t.Errorf("%d and %d not given back", a, b)
	}
}
