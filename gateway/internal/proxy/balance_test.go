package proxy

import (
	"context"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/policy"
)

// TestLeastLoadedModel holds the choice against its definition, over random comings and goings: the
// fewest requests in progress among the targets that are healthy, equal ones in turn.
func TestLeastLoadedModel(t *testing.T) {
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 0))
		u := makeUpstream(t, config.Upstream{
			Targets: []string{"http://a", "http://b", "http://c", "http://d", "http://e"}, Balance: config.LeastLoaded, HealthCheck: &check,
		}, io.Discard, nil)
		inside, down := make([]int, 5), make([]bool, 5)
		var open []*exchange
		for step := range 2000 {
			switch k := random.IntN(5); {
			case random.IntN(20) == 0:
				down[k] = !down[k]
				u.seats[k].health.down.Store(down[k])
			case len(open) > 0 && random.IntN(2) == 0:
				at := random.IntN(len(open))
				x := open[at]
				open[at] = open[len(open)-1]
				open = open[:len(open)-1]
				inside[x.seat.key[len(x.seat.key)-1]-'a']--
				x.leave()
				x.leave()
			default:
				turn := int(u.rotation.Load())
				best := -1
				for _, all := range []bool{false, true} {
					for i := range 5 {
						if j := (turn + i) % 5; (all || !down[j]) && (best < 0 || inside[j] < inside[best]) {
							best = j
						}
					}
					if best >= 0 {
						break
					}
				}
				c, err := u.pick(context.Background(), weir.Work{}, nil)
				if err != nil || c.seat.target != u.seats[best].target {
					t.Fatalf("seed %d, step %d: took %s, %v; want %s with %v in progress, down %v", seed, step, c.seat.key, err, u.seats[best].key, inside, down)
				}
				x := &exchange{choice: c}
				x.enter()
				inside[best]++
				open = append(open, x)
			}
		}
		for i, s := range u.Stats() {
			if s.InFlight != int64(inside[i]) {
				t.Errorf("seed %d: %d in progress at %s, want %d", seed, s.InFlight, s.Target, inside[i])
			}
		}
	}
}

// crowd is the gate of a target without a free slot. Work that waits there is admitted.
type crowd struct {
	weir.Gate
	snapshot weir.Snapshot
	free     bool
}

func (c *crowd) Offer(weir.Work) (weir.Permit, bool)                   { return weir.Permit{}, c.free }
func (c *crowd) Admit(context.Context, weir.Work) (weir.Permit, error) { return weir.Permit{}, nil }
func (c *crowd) Load() (inFlight, waiting, limit int64) {
	return c.snapshot.InFlight, c.snapshot.Waiting, c.snapshot.Limit
}

// Without a free slot at any target, a request waits at the one with the shortest line for its limit. Equal ones get
// requests in turn, and targets that are out get none.
func TestShortestLine(t *testing.T) {
	line := func(inFlight, waiting, limit int64) *crowd {
		return &crowd{snapshot: weir.Snapshot{InFlight: inFlight, Waiting: waiting, Limit: limit}}
	}
	f := func(name, want string, gates ...*crowd) {
		t.Helper()
		u := newTestUpstream(t, []string{"http://a", "http://b", "http://c"}[:len(gates)]...)
		for i, g := range gates {
			u.seats[i].gate = g
			if g.snapshot.Name == "out" {
				u.seats[i].ejectedUntil.Store(math.MaxInt64)
			}
		}
		if got := picks(t, u, 3); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	f("one target", "aaa", line(2, 9, 2))
	f("fewest wait", "bbb", line(2, 9, 2), line(2, 3, 2), line(2, 4, 2))
	f("the larger limit", "ccc", line(2, 3, 2), line(4, 7, 4), line(20, 20, 20))
	f("a limit that has shrunk", "aaa", line(2, 1, 2), line(8, 0, 2))
	f("equal lines", "abc", line(2, 2, 2), line(4, 4, 4), line(1, 1, 1))
	out := line(2, 0, 2)
	out.snapshot.Name = "out"
	f("one is out", "bbb", out, line(2, 9, 2))
	free := line(2, 50, 2)
	free.free = true
	f("a free slot comes first", "ccc", line(2, 0, 2), line(2, 0, 2), free)
}

// A route's max_wait is for all waits together: what was waited at its gates is missing at the target.
func TestMaxWaitIsShared(t *testing.T) {
	for _, tt := range []struct{ longest, before, want time.Duration }{
		{time.Second, 0, time.Second},
		{time.Second, 700 * time.Millisecond, 300 * time.Millisecond},
		{time.Second, time.Second, 0},
		{time.Second, 2 * time.Second, 0},
		{weir.NoWait, 0, 0},
		{0, time.Second, 5 * time.Second}, // the gate's own
	} {
		synctest.Test(t, func(t *testing.T) {
			cfg := config.Upstream{
				Targets: []string{"http://a"},
				Limit:   &policy.LimitSpec{Limit: 1, Queue: policy.QueueSpec{MaxWait: policy.Duration(5 * time.Second)}},
			}
			pol := compile(t, policy.Spec{Gates: WithTargetGates(nil, map[string]config.Upstream{"app": cfg})}, policy.Options{})
			u := makeUpstream(t, cfg, io.Discard, nil)
			u.seats = nil
			u.Attach(pol, nil)
			defer fill(t, pol.Gate("app@a"))()
			call, began := &Call{Waited: tt.before}, time.Now()
			_, err := u.pickFor(t.Context(), call, weir.Work{MaxWait: tt.longest}, nil)
			if got := time.Since(began); weir.AsRejection(err) == nil || got != tt.want || call.Waited != tt.before+tt.want {
				t.Errorf("%+v: waited %v, %v in all, %v", tt, got, call.Waited, err)
			}
		})
	}
}

// A slow target gets less to do: of one request in two steps, a fast target takes one step for each,
// and a slow one ten.
func TestLeastLoadedSparesASlowTarget(t *testing.T) {
	share := func(balance config.Balance) float64 {
		u := makeUpstream(t, config.Upstream{Targets: []string{"http://fast", "http://slow"}, Balance: balance}, io.Discard, nil)
		ends, slow := map[int][]*exchange{}, 0
		const requests = 1000
		for step := range 2 * requests {
			for _, x := range ends[step] {
				x.leave()
			}
			if step%2 == 1 {
				continue
			}
			c, err := u.pick(context.Background(), weir.Work{}, nil)
			if err != nil {
				t.Fatal(err)
			}
			x := &exchange{choice: c}
			x.enter()
			takes := 1
			if c.seat.key == "http://slow" {
				takes = 10
				slow++
			}
			ends[step+takes] = append(ends[step+takes], x)
		}
		return float64(slow) / requests
	}
	if inTurn, least := share(config.RoundRobin), share(config.LeastLoaded); inTurn != 0.5 || least > 0.25 {
		t.Errorf("the slow target gets %v in turn and %v by load; want 0.5, and a quarter at most", inTurn, least)
	}
}

// Whatever becomes of a request, it is no longer in progress in the end.
func TestNothingStaysInside(t *testing.T) {
	p := newPair(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/body":
			_, _ = io.WriteString(w, "hello")
		case "/cut":
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "hello")
		}
	}, 0)
	for _, path := range []string{"/", "/body", "/cut", "/", "/body", "/cut"} {
		func() {
			defer func() { _ = recover() }() // ReverseProxy aborts answers that are cut off
			p.Serve(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, path, nil), &Call{})
		}()
	}
	for _, s := range p.Stats() {
		if s.InFlight != 0 {
			t.Errorf("%d in progress at %s", s.InFlight, s.Target)
		}
	}
}
