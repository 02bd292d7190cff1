package limit_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/limit"
)

func reason(err error) weir.Reason {
	if r := weir.AsRejection(err); r != nil {
		return r.Reason
	}
	return weir.ReasonNone
}

func full(t *testing.T, cfg limit.Config) (*limit.Limiter, weir.Permit) {
	t.Helper()
	l := weir.Must(limit.New(cfg))
	p, err := l.TryAdmit(weir.Work{})
	if err != nil {
		t.Fatal(err)
	}
	return l, p
}

func TestWaitEndsInTime(t *testing.T) {
	tests := []struct {
		name   string
		queue  limit.Queue
		work   func() weir.Work
		ctx    func() (context.Context, context.CancelFunc)
		after  time.Duration
		reason weir.Reason
	}{
		{name: "the room's MaxWait", queue: limit.Queue{MaxWait: 300 * time.Millisecond}, after: 300 * time.Millisecond, reason: weir.ReasonQueueTimeout},
		{name: "the default MaxWait", after: limit.DefaultMaxWait, reason: weir.ReasonQueueTimeout},
		{name: "the work's MaxWait", work: func() weir.Work { return weir.Work{MaxWait: 20 * time.Millisecond} }, after: 20 * time.Millisecond, reason: weir.ReasonQueueTimeout},
		{name: "a longer MaxWait of the work does not extend the room's", work: func() weir.Work { return weir.Work{MaxWait: time.Hour} }, after: limit.DefaultMaxWait, reason: weir.ReasonQueueTimeout},
		{name: "NoWait", work: func() weir.Work { return weir.Work{MaxWait: weir.NoWait} }, reason: weir.ReasonLimit},
		{name: "no room", queue: limit.Queue{Len: -1}, reason: weir.ReasonLimit},
		{name: "the work's deadline", work: func() weir.Work { return weir.Work{Deadline: time.Now().Add(70 * time.Millisecond)} }, after: 70 * time.Millisecond, reason: weir.ReasonDeadline},
		{name: "a deadline gone by", work: func() weir.Work { return weir.Work{Deadline: time.Now().Add(-time.Second)} }, reason: weir.ReasonDeadline},
		{name: "the context's deadline", ctx: func() (context.Context, context.CancelFunc) {
			return context.WithTimeout(context.Background(), 50*time.Millisecond)
		}, after: 50 * time.Millisecond, reason: weir.ReasonDeadline},
		{name: "a context already done", ctx: func() (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			return ctx, cancel
		}, reason: weir.ReasonCanceled},
		{name: "a negative cost", work: func() weir.Work { return weir.Work{Cost: -1} }, reason: weir.ReasonTooLarge},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, p := full(t, limit.Config{Name: "t", Limit: 1, Queue: tt.queue})
				defer l.Close()
				ctx, cancel := context.Background(), context.CancelFunc(func() {})
				if tt.ctx != nil {
					ctx, cancel = tt.ctx()
				}
				defer cancel()
				var w weir.Work
				if tt.work != nil {
					w = tt.work()
				}
				start := time.Now()
				_, err := l.Admit(ctx, w)
				if got := time.Since(start); got != tt.after || reason(err) != tt.reason {
					t.Errorf("after %v: %v; want after %v: %v", got, err, tt.after, tt.reason)
				}
				if r := weir.AsRejection(err); tt.after > 0 && (r.Value != tt.after.Seconds() || !r.Retryable || r.RetryAfter <= 0) {
					t.Errorf("it says %+v, and has waited %v", r, tt.after)
				}
				p.Done(weir.OK)
				if s := l.Snapshot(); s.InFlight != 0 || s.Waiting != 0 {
					t.Errorf("in flight %d, waiting %d", s.InFlight, s.Waiting)
				}
			})
		})
	}
}

// A free slot is no reason to start work that nobody waits for.
func TestExpiredNeverTakesAFreeSlot(t *testing.T) {
	aimd := weir.Must(control.NewAIMD(control.AIMDConfig{}))
	for name, cfg := range map[string]limit.Config{"fixed": {Limit: 1}, "aimd": {Controller: aimd}} {
		t.Run(name, func(t *testing.T) {
			l := weir.Must(limit.New(cfg))
			defer l.Close()
			w := weir.Work{Deadline: time.Now().Add(-time.Millisecond)}
			if _, err := l.TryAdmit(w); reason(err) != weir.ReasonDeadline {
				t.Errorf("TryAdmit: %v", err)
			}
			if _, _, err := l.Arrive(w, func(weir.Permit, error) {}); reason(err) != weir.ReasonDeadline {
				t.Errorf("Arrive: %v", err)
			}
			_, err := l.Admit(context.Background(), w)
			if reason(err) != weir.ReasonDeadline || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Admit: %v", err)
			}
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			if _, err := l.Admit(ctx, weir.Work{}); reason(err) != weir.ReasonCanceled || !errors.Is(err, context.Canceled) {
				t.Errorf("Admit, cancelled: %v", err)
			}
		})
	}
}

// A deadline that has passed is the reason also where everything is taken:
// coming back would not help.
func TestExpiredIsTheReasonWhenFull(t *testing.T) {
	l, p := full(t, limit.Config{Name: "t", Limit: 1, Queue: limit.Queue{Len: -1}})
	defer l.Close()
	defer p.Done(weir.OK)
	w := weir.Work{Deadline: time.Now().Add(-time.Millisecond)}
	_, try := l.TryAdmit(w)
	_, admit := l.Admit(context.Background(), w)
	for _, err := range []error{try, admit} {
		if r := weir.AsRejection(err); r == nil || r.Reason != weir.ReasonDeadline || r.Retryable {
			t.Errorf("%v", err)
		}
	}
}

// A limit set by hand is where the controller goes on from.
func TestSetLimitReachesTheController(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := weir.Must(control.NewAIMD(control.AIMDConfig{Initial: 4, MinSamples: 1}))
		l := weir.Must(limit.New(limit.Config{Name: "t", Controller: c}))
		defer l.Close()
		if err := l.SetLimit(40); err != nil {
			t.Fatal(err)
		}
		p, _ := l.TryAdmit(weir.Work{Cost: 30})
		p.Done(weir.OK)
		time.Sleep(1100 * time.Millisecond)
		if got := l.Snapshot().Limit; got != 41 {
			t.Errorf("limit %d after a good window, want 41", got)
		}
	})
}

func TestCancelledWaiterHandsItsTurnOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, p := full(t, limit.Config{Name: "t", Limit: 2})
		defer l.Close()
		ctx, cancel := context.WithCancel(context.Background())
		go func() {
			if _, err := l.Admit(ctx, weir.Work{Cost: 2}); reason(err) != weir.ReasonCanceled {
				t.Errorf("the cancelled one: %v", err)
			}
		}()
		synctest.Wait()
		admitted := false
		go func() {
			p, err := l.Admit(context.Background(), weir.Work{})
			if err != nil {
				t.Error(err)
			}
			admitted = true
			p.Done(weir.OK)
		}()
		synctest.Wait()
		if admitted {
			t.Error("overtook the one in front")
		}
		cancel()
		synctest.Wait()
		if !admitted {
			t.Error("the slot was not handed on")
		}
		p.Done(weir.OK)
	})
}

func TestTryAdmitDoesNotBarge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, p := full(t, limit.Config{Name: "t", Limit: 2})
		defer l.Close()
		go func() {
			p, err := l.Admit(context.Background(), weir.Work{Cost: 2})
			if err != nil {
				t.Error(err)
			}
			p.Done(weir.OK)
		}()
		synctest.Wait()
		if _, err := l.TryAdmit(weir.Work{}); reason(err) != weir.ReasonLimit {
			t.Errorf("with one slot free and one waiting for two: %v", err)
		}
		p.Done(weir.OK)
	})
}

func TestCostAboveTheLimitIsAdmittedAlone(t *testing.T) {
	l := weir.Must(limit.New(limit.Config{Name: "t", Limit: 3}))
	defer l.Close()
	p, err := l.TryAdmit(weir.Work{Cost: 1 << 40})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.TryAdmit(weir.Work{}); reason(err) != weir.ReasonLimit {
		t.Errorf("beside it: %v", err)
	}
	p.Done(weir.OK)
	if s := l.Snapshot(); s.InFlight != 0 {
		t.Errorf("in flight %d", s.InFlight)
	}
}

func TestCloseDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, p := full(t, limit.Config{Name: "t", Limit: 1})
		go func() {
			if _, err := l.Admit(context.Background(), weir.Work{}); reason(err) != weir.ReasonDraining {
				t.Errorf("the waiting one: %v", err)
			}
		}()
		synctest.Wait()
		short, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := l.Drain(short); err == nil || !strings.Contains(err.Error(), "1 still in flight") {
			t.Errorf("drain with one out: %v", err)
		}
		if _, err := l.TryAdmit(weir.Work{}); reason(err) != weir.ReasonDraining {
			t.Errorf("after Close: %v", err)
		}
		if err := l.SetLimit(3); !errors.Is(err, weir.ErrClosed) {
			t.Errorf("SetLimit after Close: %v", err)
		}
		time.AfterFunc(time.Second, func() { p.Done(weir.OK) })
		if err := l.Drain(context.Background()); err != nil {
			t.Error(err)
		}
		l.Close()
	})
}

// A permit names one use of a slot: given back twice, or late, it takes nothing
// from the next holder.
func TestStalePermits(t *testing.T) {
	for _, sampled := range []bool{false, true} {
		cfg := limit.Config{Name: "t", Limit: 1}
		if sampled {
			cfg = limit.Config{Name: "t", Controller: weir.Must(control.NewAIMD(control.AIMDConfig{Initial: 1}))}
		}
		l := weir.Must(limit.New(cfg))
		old, _ := l.TryAdmit(weir.Work{})
		old.Sample(weir.OK)
		old.Done(weir.OK)
		old.Done(weir.OK)
		p, err := l.TryAdmit(weir.Work{})
		if err != nil {
			t.Fatal(err)
		}
		old.Done(weir.OK)
		old.Sample(weir.OK)
		old.Cancel()
		if s := l.Snapshot(); !p.Live() || old.Live() || s.InFlight != 1 || s.Admitted != 2 {
			t.Errorf("sampled %v: live %v, in flight %d, admitted %d", sampled, p.Live(), s.InFlight, s.Admitted)
		}
		p.Done(weir.OK)
		l.Close()
	}
}

func TestAIMDMovesTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var changes []int64
		c := weir.Must(control.NewAIMD(control.AIMDConfig{Initial: 4, Max: 5, Threshold: 100 * time.Millisecond, MinSamples: 2}))
		var l *limit.Limiter
		l = weir.Must(limit.New(limit.Config{Name: "t", Controller: c, Hooks: weir.Hooks{
			LimitChanged: func(_ string, _, to int64, _ string) {
				if got := l.Snapshot().Limit; got != to { // no lock is held
					t.Errorf("told %d, is %d", to, got)
				}
				changes = append(changes, to)
			},
		}}))
		defer l.Close()
		round := func(service time.Duration, o weir.Outcome) {
			var ps []weir.Permit
			for range 3 {
				p, err := l.TryAdmit(weir.Work{})
				if err != nil {
					t.Fatal(err)
				}
				ps = append(ps, p)
			}
			time.Sleep(service)
			for _, p := range ps {
				p.Done(o)
			}
			time.Sleep(time.Second - service)
			synctest.Wait()
		}
		round(10*time.Millisecond, weir.OK)    // 5
		round(10*time.Millisecond, weir.OK)    // at Max
		round(200*time.Millisecond, weir.OK)   // 4: slow
		round(time.Millisecond, weir.Overload) // 3: dropped
		round(time.Millisecond, weir.Failed)   // no samples: extended
		round(10*time.Millisecond, weir.OK)    // 4
		if got := changes; len(got) != 4 || got[0] != 5 || got[1] != 4 || got[2] != 3 || got[3] != 4 {
			t.Errorf("limit went %v", got)
		}
	})
}

func TestReconfigureKeepsWhatIsLive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, p := full(t, limit.Config{Name: "t", Limit: 1})
		defer l.Close()
		done := make(chan error, 1)
		go func() {
			p, err := l.Admit(context.Background(), weir.Work{})
			p.Done(weir.OK)
			done <- err
		}()
		synctest.Wait()
		c := weir.Must(control.NewAIMD(control.AIMDConfig{Initial: 50}))
		if err := l.Reconfigure(limit.Config{Controller: c}); err != nil {
			t.Fatal(err)
		}
		s := l.Snapshot()
		if s.Limit != 1 || s.InFlight != 1 || s.Waiting != 1 || s.Controller != "aimd" {
			t.Errorf("after the change: %+v", s)
		}
		p.Done(weir.OK)
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := l.Reconfigure(limit.Config{Limit: -1}); err == nil {
			t.Error("a limit of -1 was taken")
		}
		if err := l.Reconfigure(limit.Config{Limit: 7}); err != nil {
			t.Error(err)
		}
		if s := l.Snapshot(); s.Limit != 7 || s.Controller != "fixed" || s.InFlight != 0 {
			t.Errorf("fixed again: %+v", s)
		}
	})
}

func TestFindLeaks(t *testing.T) {
	found := make(chan string, 1)
	l := weir.Must(limit.New(limit.Config{Name: "t", Limit: 1, FindLeaks: true, Hooks: weir.Hooks{
		Leaked: func(_, site string) { found <- site },
	}}))
	defer l.Close()
	forget(t, l)
	var site string
	for site == "" {
		runtime.GC()
		select {
		case site = <-found:
		default:
		}
	}
	if !strings.Contains(site, "forget") || !strings.Contains(site, "limiter_test.go") {
		t.Errorf("leaked at %s", site)
	}
	if s := l.Snapshot(); s.Leaked != 1 || s.InFlight != 0 {
		t.Errorf("leaked %d, in flight %d", s.Leaked, s.InFlight)
	}
}

//go:noinline
func forget(t *testing.T, l *limit.Limiter) {
	if _, err := l.Admit(context.Background(), weir.Work{}); err != nil {
		t.Fatal(err)
	}
}

func TestRefusalSaysWhenToComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := weir.Must(limit.New(limit.Config{Name: "t", Limit: 2, Queue: limit.Queue{Len: -1}}))
		defer l.Close()
		for range 50 { // 2 slots of 100 ms each: 20 a second
			a, _ := l.TryAdmit(weir.Work{})
			b, _ := l.TryAdmit(weir.Work{})
			l.TryAdmit(weir.Work{})
			time.Sleep(100 * time.Millisecond)
			a.Done(weir.OK)
			b.Done(weir.OK)
		}
		l.TryAdmit(weir.Work{})
		l.TryAdmit(weir.Work{})
		_, err := l.TryAdmit(weir.Work{})
		r := weir.AsRejection(err)
		if r == nil || !r.Retryable || r.RetryAfter < 40*time.Millisecond || r.RetryAfter > 60*time.Millisecond {
			t.Errorf("%v; want about 50ms", err)
		}
	})
}

// Work of a cost that does not fit beside the rest is told how many slots are in use.
func TestRefusalSaysWhatIsInFlight(t *testing.T) {
	for name, q := range map[string]limit.Queue{"a room": {}, "no room": {Len: -1}} {
		l := weir.Must(limit.New(limit.Config{Name: "t", Limit: 10, Queue: q}))
		if _, err := l.TryAdmit(weir.Work{Cost: 2}); err != nil {
			t.Fatal(err)
		}
		for _, wait := range []time.Duration{weir.NoWait, time.Nanosecond} {
			if wait > 0 && q.Len == 0 {
				continue // it waits
			}
			_, err := l.Admit(t.Context(), weir.Work{Cost: 9, MaxWait: wait})
			if r := weir.AsRejection(err); r == nil || r.Reason != weir.ReasonLimit || r.Value != 2 || r.Limit != 10 {
				t.Errorf("%s, wait %v: %v, want 2 of 10 in use", name, wait, err)
			}
		}
		if _, err := l.TryAdmit(weir.Work{Cost: 8}); err != nil {
			t.Fatal(err)
		}
		if _, err := l.TryAdmit(weir.Work{}); weir.AsRejection(err) == nil || weir.AsRejection(err).Value != 10 {
			t.Errorf("%s: %v, want 10 of 10 in use", name, err)
		}
		l.Close()
	}
}

// Refusals for want of slots share what they say as long as as many are in flight.
func TestRefusalsOfACostShare(t *testing.T) {
	l := weir.Must(limit.New(limit.Config{Limit: 10, Queue: limit.Queue{Len: -1}}))
	if _, err := l.TryAdmit(weir.Work{Cost: 2}); err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() { _, _ = l.TryAdmit(weir.Work{Cost: 9}) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestNothingAllocates(t *testing.T) {
	aimd := weir.Must(control.NewAIMD(control.AIMDConfig{}))
	for name, cfg := range map[string]limit.Config{"fixed": {Limit: 4}, "aimd": {Controller: aimd}} {
		l := weir.Must(limit.New(cfg))
		ctx, inTime := context.Background(), time.Now().Add(time.Hour)
		if n := testing.AllocsPerRun(100, func() {
			p, _ := l.TryAdmit(weir.Work{Op: "x"})
			q, _ := l.Admit(ctx, weir.Work{Tenant: "y", Deadline: inTime})
			r, _, _ := l.Arrive(weir.Work{Deadline: inTime}, func(weir.Permit, error) {})
			p.Sample(weir.OK)
			p.Done(weir.OK)
			q.Done(weir.OK)
			r.Done(weir.OK)
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
		l.Close()
	}
}

// A limiter of which nothing is said finds its limit, as `limit: {}` in a file does.
func TestAutomaticByDefault(t *testing.T) {
	want := control.Default().Name()
	for name, l := range map[string]*limit.Limiter{
		"the zero Config":   weir.Must(limit.New(limit.Config{})),
		"only a name":       weir.Must(limit.New(limit.Config{Name: "api"})),
		"Auto":              limit.Auto("api"),
		"Auto, no name":     limit.Auto(""),
		"a room of its own": weir.Must(limit.New(limit.Config{Queue: limit.Queue{Len: -1}})),
	} {
		if s := l.Snapshot(); s.Controller != want || s.Limit < 1 {
			t.Errorf("%s: %s at %d, want %s", name, s.Controller, s.Limit, want)
		}
		if _, err := l.TryAdmit(weir.Work{}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		l.Close()
	}
}
