package keyed

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/limit"
)

// line is a gate whose keys have one slot each, taken, and who has been served from
// their rooms, by key.
type line struct {
	now *time.Duration
	*Pools
	t      *testing.T
	holds  map[string]weir.Permit
	served map[string]string
	gone   map[string]*weir.Rejection
}

func newLine(t *testing.T, cfg Config) *line {
	cfg.Limit = 1
	g, now := byHand(t, cfg)
	return &line{Pools: g, t: t, now: now, holds: map[string]weir.Permit{}, served: map[string]string{}, gone: map[string]*weir.Rejection{}}
}

// come has work wait for a key, behind a slot that is taken.
func (l *line) come(key, name string, w weir.Work) {
	l.t.Helper()
	if _, ok := l.holds[key]; !ok {
		l.holds[key] = take(l.t, l.Pools, w)
	}
	_, _, err := l.Arrive(w, func(p weir.Permit, err error) {
		if err != nil {
			l.gone[name] = weir.AsRejection(err)
			return
		}
		l.holds[key] = p
		l.served[key] += name
	})
	if err != weir.ErrWaiting {
		l.gone[name] = weir.AsRejection(err)
	}
}

// finish ends the work of a key n times, and says who came in instead.
func (l *line) finish(key string, n int) string {
	l.served[key] = ""
	for range n {
		l.holds[key].Done(weir.OK)
	}
	return l.served[key]
}

func (l *line) reconfigure(q limit.Queue) {
	l.t.Helper()
	if err := l.Reconfigure(Config{Limit: 1, Queue: q}); err != nil {
		l.t.Fatal(err)
	}
}

// A share is guaranteed to each key by itself, and changes for those that wait: here
// and in a room that was left and is used again.
func TestSharesOfEachKey(t *testing.T) {
	queue := limit.Queue{Order: limit.FIFO, Shares: map[weir.Priority]float64{weir.Background: 0.25}}
	l := newLine(t, Config{Queue: queue})
	fill := func(key string) {
		for range 40 {
			l.come(key, "b", weir.Work{Tenant: key, Priority: weir.Background})
			l.come(key, "h", weir.Work{Tenant: key, Priority: weir.High})
		}
	}
	fill("a")
	fill("c")
	for _, key := range []string{"a", "a", "c"} {
		if got := l.finish(key, 12); strings.Count(got, "b") != 3 {
			t.Errorf("%s: %s, want a quarter of background work", key, got)
		}
	}
	l.reconfigure(limit.Queue{Order: limit.FIFO})
	for _, key := range []string{"a", "c"} {
		if got := l.finish(key, 12); got != "hhhhhhhhhhhh" {
			t.Errorf("%s without shares: %s", key, got)
		}
	}
	l.finish("a", 44)
	queue.Shares[weir.Background] = 0.5
	l.reconfigure(queue)
	fill("a")
	if got := l.finish("a", 12); strings.Count(got, "b") != 6 {
		t.Errorf("in a room used again: %s, want one half of background work", got)
	}
}

// Where the key is the tenant, the weights are of its users.
func TestUsersOfOneTenant(t *testing.T) {
	weights := limit.Weights{Users: map[string]float64{"admin": 3}, Tenants: map[string]float64{"t": 100}}
	l := newLine(t, Config{Queue: limit.Queue{Weights: weights}})
	for range 40 {
		l.come("t", "a", weir.Work{Tenant: "t", User: "admin"})
		l.come("t", "u", weir.Work{Tenant: "t", User: "other"})
	}
	if got := l.finish("t", 12); strings.Count(got, "a") != 9 {
		t.Errorf("3 to 1: %s", got)
	}
	weights.Users["admin"] = 100 // the gate's own do not change
	if got := l.finish("t", 12); strings.Count(got, "a") != 9 {
		t.Errorf("3 to 1: %s", got)
	}
	l.reconfigure(limit.Queue{Weights: limit.Weights{Users: map[string]float64{"other": 3}}})
	if got := l.finish("t", 12); strings.Count(got, "a") != 3 {
		t.Errorf("1 to 3: %s", got)
	}
}

// Where the key is something else, tenants of a user have their weights too.
func TestTenantsOfOneRoute(t *testing.T) {
	l := newLine(t, Config{Key: func(w weir.Work) string { return w.Op },
		Queue: limit.Queue{Weights: limit.Weights{Tenants: map[string]float64{"big": 2}}}})
	for range 30 {
		for _, name := range []string{"big", "small"} {
			l.come("/r", name[:1], weir.Work{Op: "/r", Tenant: name})
			l.come("/r", "m", weir.Work{Op: "/r", Tenant: name, User: "mallory"})
		}
	}
	got := l.finish("/r", 24)
	for name, want := range map[string]int{"b": 8, "s": 4, "m": 12} {
		if n := strings.Count(got, name); n != want {
			t.Errorf("%s was served %d times, want %d: %s", name, n, want, got)
		}
	}
}

// Whose work costs more than it said has to wait the longer for the next turn, which
// is also how who understates gains nothing.
func TestCostKnownAfterwards(t *testing.T) {
	l := newLine(t, Config{Queue: limit.Queue{Order: limit.FIFO}})
	for range 40 {
		l.come("t", "m", weir.Work{Tenant: "t", User: "mallory"})
		l.come("t", "a", weir.Work{Tenant: "t", User: "alice"})
	}
	l.holds["t"].SetCost("", 9) // did not wait: nobody's part was short
	var got string
	for range 16 {
		next := l.finish("t", 1)
		if got += next; next == "m" {
			l.holds["t"].SetCost("", 3)
		}
	}
	if got != "maaamaaamaaamaaa" {
		t.Error(got)
	}
}

// Where parts are parts of time, whose work takes three times as long is served a
// third as often.
func TestPartsOfTime(t *testing.T) {
	l := newLine(t, Config{Queue: limit.Queue{Order: limit.FIFO, MaxWait: -1, ByTime: true}})
	now := l.now
	for range 400 {
		l.come("t", "s", weir.Work{Tenant: "t", User: "slow"})
		l.come("t", "q", weir.Work{Tenant: "t", User: "quick"})
	}
	var got string
	for last := "q"; len(got) < 240; last = l.finish("t", 1) {
		got += last
		*now += map[string]time.Duration{"s": 30 * ms, "q": 10 * ms}[last]
	}
	if n := strings.Count(got[40:], "s"); n < 49 || n > 51 {
		t.Errorf("%d of 200 are slow, want a quarter", n)
	}
	l.reconfigure(limit.Queue{Order: limit.FIFO, MaxWait: -1})
	if got := l.finish("t", 100); strings.Count(got, "s") < 45 {
		t.Errorf("by number: %s", got)
	}
}

// The order, too, changes for those that wait.
func TestOrderChangesLive(t *testing.T) {
	l := newLine(t, Config{Queue: limit.Queue{Order: limit.FIFO}})
	for _, name := range []string{"1", "2", "3", "4", "5"} {
		l.come("a", name, weir.Work{Tenant: "a"})
	}
	if got := l.finish("a", 1); got != "1" {
		t.Error(got)
	}
	l.reconfigure(limit.Queue{Order: limit.LIFO})
	if got := l.finish("a", 4); got != "5432" {
		t.Error(got)
	}
}

// Who loses its place hears by what, and a share keeps its places: half of those
// that a key may have.
func TestDisplaced(t *testing.T) {
	l := newLine(t, Config{Queue: limit.Queue{Len: 8, Order: limit.FIFO, Shares: map[weir.Priority]float64{weir.Background: 0.5}}})
	for _, name := range []string{"n1", "n2", "n3", "n4"} {
		l.come("k", name, weir.Work{Tenant: "k"})
	}
	l.come("k", "high", weir.Work{Tenant: "k", Priority: weir.High})
	l.come("k", "low1", weir.Work{Tenant: "k", Priority: weir.Background})
	l.come("k", "low2", weir.Work{Tenant: "k", Priority: weir.Background})
	l.come("k", "low3", weir.Work{Tenant: "k", Priority: weir.Background})
	l.come("k", "user", weir.Work{Tenant: "k", User: "u"})
	for name, rule := range map[string]string{"n4": "displaced by a higher priority", "n3": "displaced by a guaranteed share",
		"n2": "displaced by a guaranteed share", "low3": "", "user": ""} {
		if r := l.gone[name]; r == nil || r.Rule != rule || r.Reason != weir.ReasonQueueFull {
			t.Errorf("%s: %+v, want %q", name, r, rule)
		}
		delete(l.gone, name)
	}
	if len(l.gone) > 0 {
		t.Errorf("refused as well: %v", l.gone)
	}
}

// Where other keys have left few places, a small share does not take them from higher
// priorities, nor keep one from them.
func TestShareOfFewPlaces(t *testing.T) {
	l := newLine(t, Config{Queue: limit.Queue{Len: 64, Order: limit.FIFO, Shares: map[weir.Priority]float64{weir.Background: 0.05}}})
	for key := range 6 {
		for range 64 {
			l.come(fmt.Sprint(key), "x", weir.Work{Tenant: fmt.Sprint(key)})
		}
	}
	clear(l.gone)
	if n := l.waiting.Load(); n != 63 {
		t.Fatalf("%d wait, one place less than there is", n)
	}
	l.come("k", "background", weir.Work{Tenant: "k", Priority: weir.Background})
	l.come("k", "critical", weir.Work{Tenant: "k", Priority: weir.Critical})
	if r := l.gone["background"]; r == nil || r.Rule != "displaced by a higher priority" || len(l.gone) != 1 {
		t.Errorf("%v", l.gone)
	}
	l.come("k", "background", weir.Work{Tenant: "k", Priority: weir.Background})
	if r := l.gone["background"]; r == nil || r.Rule != "" || len(l.gone) != 1 {
		t.Errorf("%v", l.gone)
	}
}

func TestPartsOutOfRange(t *testing.T) {
	_, err := New(Config{Name: "t", Limit: 1, Queue: limit.Queue{Order: 9,
		Shares:  map[weir.Priority]float64{weir.Background: 0.7, weir.Normal: 0.7, 9: 0.1},
		Weights: limit.Weights{Users: map[string]float64{"a": -1}, Tenants: map[string]float64{"b": 1e9}}}})
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{"Queue.Order: 9", `Queue.Shares["priority(9)"]`, "Queue.Shares: 1.4 will", `Queue.Weights.Users.a: -1`, `Queue.Weights.Tenants.b`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
}

// busy returns a gate with one slot a key, where work of key "t" has taken 100 ms for
// so long that this is known, and which one of them waits for.
func busy(t *testing.T, cfg Config) *line {
	cfg.Queue.MaxWait = -1
	l := newLine(t, cfg)
	for range 12 {
		l.come("t", "x", weir.Work{Tenant: "t"})
	}
	for range 11 {
		*l.now += 100 * ms
		l.finish("t", 1)
	}
	if s := l.Snapshot(); s.Waiting != 1 {
		t.Fatalf("%d wait", s.Waiting)
	}
	return l
}

// Whoever would wait in vain for its key hears so at once, and nobody else does: not
// work that has the time, not the first in line, not work of a key whose own speed is
// not known.
func TestNobodyWaitsInVain(t *testing.T) {
	l := busy(t, Config{Queue: limit.Queue{Order: limit.FIFO}})
	in := func(d time.Duration) time.Time { return weir.VirtualEpoch.Add(*l.now + d) }
	for _, tt := range []struct {
		name, key string
		work      weir.Work
		want      weir.Reason
	}{
		{"time", "t", weir.Work{Deadline: in(time.Second)}, weir.ReasonNone},
		{"late", "t", weir.Work{Deadline: in(350 * ms)}, weir.ReasonDeadline},
		{"impatient", "t", weir.Work{MaxWait: 150 * ms}, weir.ReasonQueueTimeout},
		{"a stranger", "u", weir.Work{MaxWait: 1 * ms}, weir.ReasonNone},
	} {
		tt.work.Tenant = tt.key
		l.come(tt.key, tt.name, tt.work)
		switch r := l.gone[tt.name]; {
		case tt.want == weir.ReasonNone && r != nil:
			t.Errorf("%s: %v", tt.name, r)
		case tt.want != weir.ReasonNone && (r == nil || r.Reason != tt.want || r.Value <= r.Limit || r.RetryAfter == 0):
			t.Errorf("%s: %v", tt.name, r)
		}
	}
	if s := l.Snapshot(); s.Waiting != 3 {
		t.Errorf("%d wait", s.Waiting)
	}
	*l.now += time.Minute // what was measured is old
	l.Step()
	l.come("t", "later", weir.Work{Tenant: "t", MaxWait: 1 * ms})
	if r := l.gone["later"]; r != nil {
		t.Errorf("by an old rate: %v", r)
	}
}

// A waiter leaves when too little is left for the work of its key, by which the
// short work of other keys does not count.
func TestLeavesWhenTooLittleIsLeft(t *testing.T) {
	l := busy(t, Config{Limit: 1})
	for range 100 {
		p := take(t, l.Pools, weir.Work{Tenant: "short"})
		p.Done(weir.OK)
	}
	l.come("t", "w", weir.Work{Tenant: "t", Deadline: weir.VirtualEpoch.Add(*l.now + 500*ms)})
	at, ok := l.Next()
	if left := *l.now + 500*ms - at; !ok || left < 90*ms || left > 110*ms {
		t.Errorf("leaves %v before its deadline", left)
	}
	*l.now = at
	l.Step()
	if r := l.gone["w"]; r == nil || r.Reason != weir.ReasonDeadline {
		t.Error(r)
	}
}

// Where parts are of time, work is charged at once what that of its tenant took
// lately: also before the first of it is done.
func TestPartsOfTimeAreForecast(t *testing.T) {
	l := newLine(t, Config{Queue: limit.Queue{Order: limit.FIFO, MaxWait: -1, ByTime: true}})
	for range 40 {
		l.come("t", "s", weir.Work{Tenant: "t", User: "slow"})
		l.come("t", "q", weir.Work{Tenant: "t", User: "quick"})
	}
	for last := "q"; l.Snapshot().Waiting > 40; last = l.finish("t", 1) {
		*l.now += map[string]time.Duration{"s": 30 * ms, "q": 10 * ms}[last]
	}
	f := l.shards[0].accounts.Forecast
	if slow, quick := f.Expect("slow", "t"), f.Expect("quick", "t"); slow < 2*quick {
		t.Errorf("slow work is expected to take %v medians, quick work %v", slow, quick)
	}
}

// Shares of time need the time of each piece of work.
func TestSharesOfTimeAreTimed(t *testing.T) {
	for _, byTime := range []bool{true, false} {
		g := newGate(t, Config{Limit: 1, Queue: limit.Queue{ByTime: byTime}})
		if timed := g.settings.Load().timed; timed != byTime {
			t.Errorf("ByTime %v: each is timed is %v", byTime, timed)
		}
		g.Close()
	}
}

// Work that costs several slots gives as many back, so a newcomer waits for fewer such works.
func TestToldByCosts(t *testing.T) {
	l := newLine(t, Config{Queue: limit.Queue{Order: limit.FIFO, MaxWait: -1}})
	if err := l.Reconfigure(Config{Limit: 4, Queue: limit.Queue{Order: limit.FIFO, MaxWait: -1}}); err != nil {
		t.Fatal(err)
	}
	for range 200 {
		l.come("t", "x", weir.Work{Tenant: "t", Cost: 4})
	}
	for range 150 {
		*l.now += 100 * ms
		l.finish("t", 1)
	}
	// Fifty are in front, each with all slots for 100 ms.
	if r := refused(t, l.Pools, tenant("t"), weir.ReasonLimit); r.RetryAfter < 4*time.Second || r.RetryAfter > 6*time.Second {
		t.Errorf("told to come back after %v, want 5s", r.RetryAfter)
	}
}

func TestFindLeaks(t *testing.T) {
	found := make(chan string, 2)
	g := weir.Must(New(Config{Name: "t", Limit: 1, FindLeaks: true, Hooks: weir.Hooks{
		Leaked: func(_, site string) { found <- site },
	}}))
	defer g.Close()
	lose(t, g)
	var site string
	for site == "" {
		runtime.GC()
		select {
		case site = <-found:
		default:
		}
	}
	if !strings.Contains(site, "lose") || !strings.Contains(site, "wait_test.go") {
		t.Errorf("leaked at %s", site)
	}
	if s := g.Snapshot(); s.Leaked != 1 || s.InFlight != 0 {
		t.Errorf("leaked %d, in flight %d", s.Leaked, s.InFlight)
	}
}

//go:noinline
func lose(t *testing.T, g *Pools) {
	if _, err := g.Admit(context.Background(), weir.Work{Tenant: "t"}); err != nil {
		t.Fatal(err)
	}
}

func TestDeadlines(t *testing.T) {
	g, now := byHand(t, Config{Limit: 1})
	*now = time.Second
	at := func(d time.Duration) weir.Work { return weir.Work{Deadline: weir.VirtualEpoch.Add(d)} }
	refused(t, g, at(time.Second), weir.ReasonDeadline)
	refused(t, g, at(0), weir.ReasonDeadline)
	take(t, g, at(2*time.Second))
	var got error
	if _, _, err := g.Arrive(at(1500*ms), func(_ weir.Permit, err error) { got = err }); err != weir.ErrWaiting {
		t.Fatal(err)
	}
	*now = 1500 * ms
	g.Step()
	if r := weir.AsRejection(got); r == nil || r.Reason != weir.ReasonDeadline || !errors.Is(got, context.DeadlineExceeded) {
		t.Errorf("%v", got)
	}
	if u, _ := g.Key(""); u.Refused != 1 { // what has come too late never reached the key
		t.Errorf("%d refused, want the one that waited", u.Refused)
	}
}

// The room is shared by dynamic thresholds: who floods it gets half, and there is
// a place for everybody else.
func TestRoomIsShared(t *testing.T) {
	g, _ := byHand(t, Config{Limit: 1, Queue: limit.Queue{Len: 12, Order: limit.FIFO}})
	wait := func(key string) bool {
		_, _, err := g.Arrive(tenant(key), func(weir.Permit, error) {})
		return err == weir.ErrWaiting
	}
	fill := func(key string) (n int) {
		take(t, g, tenant(key))
		for wait(key) {
			n++
		}
		return n
	}
	for i, want := range []int{6, 3, 2, 1, 0} {
		if got := fill(string(rune('a' + i))); got != want {
			t.Errorf("key %d has %d waiting, want %d", i, got, want)
		}
	}
	if r := refused(t, g, tenant("a"), weir.ReasonLimit); r.RetryAfter == 0 {
		t.Errorf("%v", r)
	}
	_, _, err := g.Arrive(tenant("a"), nil)
	if r := weir.AsRejection(err); r == nil || r.Reason != weir.ReasonQueueFull || r.Value != 6 {
		t.Errorf("%v", err)
	}
	take(t, g, tenant("z"))
	_, _, err = g.Arrive(tenant("z"), nil)
	if r := weir.AsRejection(err); r == nil || r.Reason != weir.ReasonQueueFull || r.Value != 12 {
		t.Errorf("%v", err)
	}
	if n := g.Snapshot().Waiting; n != 12 {
		t.Errorf("%d wait", n)
	}
}

// While one key floods the gate, a hundred others are served at once, all of them.
func TestFloodOfOneKey(t *testing.T) {
	g, now := byHand(t, Config{Limit: 3})
	gone := map[string]int{}
	for i := range 3000 {
		*now += ms
		g.Step()
		for range 10 {
			g.Arrive(tenant("flood"), func(p weir.Permit, err error) {
				if err != nil {
					gone[weir.AsRejection(err).Reason.String()]++
				}
			})
		}
		p, err := g.TryAdmit(tenant(string(rune('A' + i%100))))
		if err != nil {
			t.Fatalf("at %v: %v", *now, err)
		}
		p.Done(weir.OK)
	}
	u := g.Usage(1)
	if u.Top[0].Key != "flood" || u.Top[0].InFlight != 3 || u.Waiting > limit.DefaultQueueLen/2 {
		t.Errorf("%+v, gone %v", u, gone)
	}
}

// Waiters leave when their time is up, on the second, and when their context ends.
func TestWaitersLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(t, Config{Limit: 1, Queue: limit.Queue{MaxWait: 3 * time.Second}})
		defer g.Close()
		p := take(t, g, tenant("a"))
		start := time.Now()
		cancelled, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		var wg sync.WaitGroup
		leave := func(ctx context.Context, w weir.Work, want weir.Reason, after time.Duration) {
			wg.Go(func() {
				_, err := g.Admit(ctx, w)
				if r := weir.AsRejection(err); r == nil || r.Reason != want || time.Since(start) != after || !r.Retryable || r.RetryAfter <= 0 {
					t.Errorf("%+v after %v, want %v after %v, and when to come back", r, time.Since(start), want, after)
				}
			})
		}
		leave(t.Context(), tenant("a"), weir.ReasonQueueTimeout, 3*time.Second)
		leave(t.Context(), weir.Work{Tenant: "a", MaxWait: time.Second}, weir.ReasonQueueTimeout, time.Second)
		leave(t.Context(), weir.Work{Tenant: "a", MaxWait: weir.NoWait}, weir.ReasonLimit, 0)
		leave(t.Context(), weir.Work{Tenant: "a", Deadline: start.Add(1500 * ms)}, weir.ReasonDeadline, 1500*ms)
		leave(cancelled, tenant("a"), weir.ReasonDeadline, 2*time.Second)
		wg.Wait()
		p.Done(weir.OK)
		if s := g.Snapshot(); s.Waiting != 0 || s.InFlight != 0 || s.Rejected[weir.ReasonQueueTimeout] != 2 {
			t.Errorf("%+v", s)
		}
	})
}

// Work that does not wait is told how long the overload of its key has lasted, whether it
// would be timed or not.
func TestToldWithoutWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(t, Config{Limit: 1})
		defer g.Close()
		p := take(t, g, tenant("a"))
		for range 1000 { // twice as much comes as is served
			time.Sleep(20 * ms)
			for range 2 {
				_, _, _ = g.Arrive(tenant("a"), func(next weir.Permit, err error) {
					if err == nil {
						p = next
					}
				})
			}
			p.Done(weir.OK)
		}
		for range 100 {
			if r := refused(t, g, tenant("a"), weir.ReasonLimit); r.RetryAfter < 15*time.Second {
				t.Fatalf("told %v after 20s", r.RetryAfter)
			}
		}
	})
}

// The highest priority goes first, then users take turns.
func TestWhoGoesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(t, Config{Limit: 1})
		defer g.Close()
		p := take(t, g, tenant("a"))
		var order []string
		var mu sync.Mutex
		var wg sync.WaitGroup
		for _, w := range []weir.Work{
			{Op: "background", Priority: weir.Background}, {Op: "x1", User: "x"}, {Op: "x2", User: "x"},
			{Op: "y1", User: "y"}, {Op: "critical", Priority: 100},
		} {
			w.Tenant = "a"
			wg.Go(func() {
				p, err := g.Admit(t.Context(), w)
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				order = append(order, w.Op)
				mu.Unlock()
				p.Done(weir.OK)
			})
			synctest.Wait()
		}
		if n := g.Snapshot().WaitingByClass; len(n) != 3 || n[weir.Background] != 1 || n[weir.Normal] != 3 || n[weir.Critical] != 1 {
			t.Errorf("waiting by class: %v", n)
		}
		p.Done(weir.OK)
		wg.Wait()
		if got := fmt.Sprint(order); got != "[critical x1 y1 x2 background]" {
			t.Error(got)
		}
	})
}
