package live

import (
	"context"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/loadgen"
)

func TestDraw(t *testing.T) {
	for _, dist := range []string{"", "bimodal", "lognormal"} {
		l := Load{
			Phases:   []phase{{Load: 0.5, For: 10 * time.Second}, {Load: 3, For: 10 * time.Second}},
			Capacity: 1000, Mean: ms(10), Dist: dist, Seed: 7,
		}
		all := l.draw()
		first := len(due(all, 0, 10*time.Second))
		if math.Abs(float64(first)-5000) > 5*math.Sqrt(5000) || math.Abs(float64(len(all)-first)-30000) > 5*math.Sqrt(30000) {
			t.Errorf("%q: %d and %d requests, want about 5000 and 30000", dist, first, len(all)-first)
		}
		work := 0.0
		for i, r := range all {
			if i > 0 && r.Due < all[i-1].Due {
				t.Fatalf("%q: request %d is due before the one before it", dist, i)
			}
			work += r.Work.Seconds()
		}
		// Five standard errors of the widest distribution, of variation 4.
		if mean := work / float64(len(all)); math.Abs(mean/0.01-1) > 5*4/math.Sqrt(float64(len(all))) {
			t.Errorf("%q: mean work %v s, want 0.01", dist, mean)
		}
		again := l.draw()
		if len(again) != len(all) || again[len(all)-1] != all[len(all)-1] {
			t.Errorf("%q: the same seed gave another load", dist)
		}
	}
}

func TestRoundTrip(t *testing.T) {
	hold := make(chan struct{})
	defer close(hold)
	mux := http.NewServeMux()
	statuses := []int{200, 429, 503, 500, 200}
	next := 0
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(workHeader) != "1500" {
			t.Errorf("work %q, want 1500 µs", r.Header.Get(workHeader))
		}
		if next == len(statuses) {
			<-hold
			return
		}
		w.WriteHeader(statuses[next])
		next++
		_, _ = w.Write([]byte("some text"))
	})
	srv := httptest.NewServer(mux)
	defer srv.CloseClientConnections()
	addr := srv.Listener.Addr().String()
	var c conn
	defer c.Close()
	for i, want := range []loadgen.Answer{loadgen.OK, loadgen.Refused, loadgen.Refused, loadgen.Failed, loadgen.OK} {
		if got := c.roundTrip(addr, head("/", ""), 1500*time.Microsecond, time.Now().Add(time.Minute)); got != want {
			t.Errorf("status %d is answer %d, want %d", statuses[i], got, want)
		}
		if !c.Open() {
			t.Error("the connection was not kept")
		}
	}
	if got := c.roundTrip(addr, head("/", ""), 1500*time.Microsecond, time.Now().Add(ms(20))); got != loadgen.GaveUp || c.Open() {
		t.Errorf("no answer in time is %d, connection %v; want %d and none", got, c.Conn, loadgen.GaveUp)
	}
}

// More requests than connections stay unsent, and everything ends.
func TestUnsent(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0") // accepts nothing
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	load := &Load{Patience: ms(500)}
	all := make([]record, 3)
	loop := load.loop(ln.Addr().String(), time.Now(), all)
	loop.Most = 2
	loop.Run(t.Context())
	if all[0].Answer != loadgen.GaveUp || all[1].Answer != loadgen.GaveUp || all[2].Answer != loadgen.Unsent {
		t.Errorf("answers %v, want two that gave up and one unsent", all)
	}
}

// With Again a phase has the requests of the one before it, at the same times and with
// the same work, as far as both go.
func TestDrawAgain(t *testing.T) {
	l := Load{Phases: []phase{{Load: 1, For: 5 * time.Second}, {Load: 1, For: 8 * time.Second}}, Capacity: 100, Mean: ms(10), Seed: 3, Again: true}
	all := l.draw()
	first, second := due(all, 0, 5*time.Second), due(all, 5*time.Second, 10*time.Second)
	if len(first) < 300 || len(first) != len(second) {
		t.Fatalf("%d and %d requests, want the same number of about 500", len(first), len(second))
	}
	for i := range first {
		apart := second[i].Due - first[i].Due - 5*time.Second
		if apart.Abs() > time.Microsecond || first[i].Work != second[i].Work { // times are sums of floats
			t.Fatalf("request %d: %v of %v, then %v of %v", i, first[i].Due, first[i].Work, second[i].Due, second[i].Work)
		}
	}
	if l.Again = false; len(due(l.draw(), 5*time.Second, 10*time.Second)) == len(first) && l.draw()[len(first)].Work == first[0].Work {
		t.Error("the same without Again")
	}
}

// A task's calls follow one another while they are answered, each with its own head
// and work, and the task ends with the first that is not.
func TestTask(t *testing.T) {
	var asked []string
	works := map[string]bool{}
	refuse := 0
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.Path)
		works[r.Header.Get(workHeader)] = true
		if len(asked) == refuse {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer srv.Close()
	load := Load{Patience: time.Minute, Mean: ms(10), Heads: []string{head("/first", "")}, Calls: 3, Later: head("/later", "")}
	do := func() record {
		asked = nil
		all := []record{{Work: ms(1)}}
		load.loop(srv.Listener.Addr().String(), time.Now(), all).Run(t.Context())
		return all[0]
	}
	if r := do(); r.Answer != loadgen.OK || r.Calls != 3 || !slices.Equal(asked, []string{"/first", "/later", "/later"}) || len(works) != 3 {
		t.Errorf("%+v after %q of work %v", r, asked, works)
	}
	refuse = 2
	if r := do(); r.Answer != loadgen.Refused || r.Calls != 1 || len(asked) != 2 {
		t.Errorf("the second call was refused: %+v after %q", r, asked)
	}
	if a, b := load.laterWork(5, 1), load.laterWork(5, 1); a != b || a == load.laterWork(6, 1) || a == load.laterWork(5, 2) {
		t.Errorf("work of a later call: %v, %v", a, b)
	}
}

func TestPlan(t *testing.T) {
	bad := Plan{Rounds: 0, Pace: 100, Parts: []string{"gateway", "other"}}
	err := bad.check()
	if err == nil {
		t.Fatal("a bad plan passes")
	}
	full := Plan{Rounds: 3, Pace: 1, Weir: "weir", Parts: hour}
	if err := full.check(); err != nil {
		t.Error(err)
	}
	t.Logf("the whole scoreboard takes about %v", full.duration())
	if d := full.duration(); d > time.Hour {
		t.Errorf("the whole scoreboard takes %v, more than an hour", d)
	}
	order := Plan{Rounds: 3, Pace: 1, Weir: "weir", Parts: []string{partOrder}}
	t.Logf("who goes first takes about %v", order.duration())
	if d := order.duration(); d > 20*time.Minute {
		t.Errorf("who goes first takes %v, more than 20 minutes", d)
	}
	quick := quickPlan("weir")
	if d := quick.duration(); d > 90*time.Second {
		t.Errorf("the quick one takes %v", d)
	}
}

// Each client of a batch has one request under way at a time, and rests after a
// refusal.
func TestBatch(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var served atomic.Int64
	inside := make(chan struct{}, 3)
	refuse := make(chan struct{}, 1)
	refuse <- struct{}{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		select {
		case inside <- struct{}{}:
			defer func() { <-inside }()
		default:
			t.Error("more requests than clients at a time")
		}
		if served.Add(1) == 20 {
			cancel()
		}
		select {
		case <-refuse:
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
		}
	}))
	defer srv.Close()
	b := batch{head: head("/", ""), clients: 3, patience: time.Minute, mean: ms(1), seed: 1, end: time.Minute}
	records := b.run(ctx, srv.Listener.Addr().String(), time.Now())
	refused, calls := 0, 0
	for _, r := range records {
		calls += int(r.Calls)
		if r.Answer == loadgen.Refused {
			refused++
		}
	}
	if refused != 1 || calls != len(records)-1 || len(records) < 20 {
		t.Errorf("%d refused and %d answered of %d", refused, calls, len(records))
	}
	if !slices.IsSortedFunc(records, func(a, b record) int { return int(a.Due - b.Due) }) {
		t.Error("not in the order in which they were sent")
	}
}
