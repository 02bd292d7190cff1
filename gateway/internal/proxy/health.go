package proxy

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/gateway/internal/eventlog"
)

// health is what active checks have found out about a target. It lives as long as the target, so a
// reload forgets nothing. A target counts as healthy until checks say otherwise.
type health struct {
	down           atomic.Bool
	passed, failed atomic.Uint64
	next           atomic.Int64 // when the next check is due, in nanoseconds on the upstream's clock; 0: not known yet

	mu  sync.Mutex // guards what follows
	row int        // checks in a row with the last result: above 0 passed, below 0 failed
	err string     // of the last check, clipped: it may repeat what the target sent; empty if it passed
}

// unhealthy reports whether checks say that a target does not work. Without checks nobody would find out that it
// works again, so what earlier ones have said does not count.
func (u *Upstream) unhealthy(t *target) bool { return u.checks != nil && t.health.down.Load() }

// HealthStats is what active checks have found out about a target.
type HealthStats struct {
	// State is unchecked, healthy or unhealthy.
	State  string `json:"state"`
	Passed uint64 `json:"passed"`
	Failed uint64 `json:"failed"`
	// Error is why the last check failed, empty if it passed.
	Error string `json:"error,omitempty"`
}

func (h *health) stats() *HealthStats {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := &HealthStats{State: "healthy", Passed: h.passed.Load(), Failed: h.failed.Load()}
	switch {
	case h.down.Load():
		s.State = "unhealthy"
	case h.row == 0:
		s.State = "unchecked"
	}
	s.Error = h.err
	return s
}

// record counts a check that failed with err, or passed, and reports whether that has changed the
// state of the target.
func (h *health) record(err error, cfg *config.HealthCheck) (changed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.err = ""
	if err == nil {
		h.passed.Add(1)
		h.row = max(h.row, 0) + 1
		return h.row >= cfg.Healthy && h.down.CompareAndSwap(true, false)
	}
	h.err = eventlog.Clip(err.Error())
	h.failed.Add(1)
	h.row = min(h.row, 0) - 1
	return -h.row >= cfg.Unhealthy && h.down.CompareAndSwap(false, true)
}

// wait returns how long it is until the next check. The first one is due at random within an
// interval, so that not all targets of all gateways are asked at once.
func (h *health) wait(now, interval time.Duration) time.Duration {
	next := time.Duration(h.next.Load())
	if next == 0 || next > now+interval {
		next = now + time.Duration(rand.Int64N(int64(interval)))
		h.next.Store(int64(next))
	}
	return next - now
}

// checked sets when the check after one that is over is due: an interval later, a tenth more or less.
func (h *health) checked(now, interval time.Duration) {
	jitter := time.Duration(rand.Int64N(int64(interval)/5+1)) - interval/10
	h.next.Store(int64(now + interval + jitter))
}

// Check asks the targets whether they work, until ctx ends. It returns at once if the settings do not
// want that. A place in slots is taken for each check in progress.
func (u *Upstream) Check(ctx context.Context, slots chan struct{}) {
	if u.cfg.HealthCheck == nil {
		return
	}
	var all sync.WaitGroup
	for i := range u.seats {
		all.Go(func() { u.checkTarget(ctx, u.seats[i].target, slots) })
	}
	all.Wait()
}

func (u *Upstream) checkTarget(ctx context.Context, t *target, slots chan struct{}) {
	interval := time.Duration(u.cfg.HealthCheck.Interval)
	due := time.NewTimer(t.health.wait(u.now(), interval))
	defer due.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-due.C:
		}
		select {
		case <-ctx.Done():
			return
		case slots <- struct{}{}:
		}
		err := u.probe(ctx, t)
		<-slots
		if ctx.Err() != nil {
			return // the check was cut off, which says nothing about the target
		}
		if !lacksMeans(err) {
			u.learn(t, err)
		}
		t.health.checked(u.now(), interval)
		due.Reset(t.health.wait(u.now(), 2*interval))
	}
}

// learn records a check of a target, and logs if that has changed its state.
func (u *Upstream) learn(t *target, err error) {
	switch {
	case !t.health.record(err, u.cfg.HealthCheck):
	case err == nil:
		u.log.Info("upstream target is healthy again", "upstream", u.name, "target", t.key, "checks_in_a_row", u.cfg.HealthCheck.Healthy)
	default:
		u.log.Warn("upstream target is unhealthy; it gets no requests while another one is healthy", "upstream", u.name, "target", t.key,
			"checks_in_a_row", u.cfg.HealthCheck.Unhealthy, "error", eventlog.Clip(err.Error()))
	}
}

// probe sends one check to a target, and returns why it failed.
func (u *Upstream) probe(ctx context.Context, t *target) error {
	cfg := u.cfg.HealthCheck
	ctx, cancel := context.WithTimeout(ctx, time.Duration(cfg.Timeout))
	defer cancel()
	at, err := url.Parse(cfg.Path)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, t.address(at).String(), nil)
	if err != nil {
		return err
	}
	req.Header.Set("User-Agent", "weir-health-check")
	if socketOf(req.URL.Host) != "" {
		req.Host = "localhost" // a socket has no name of its own
	}
	res, err := t.attempt(u.checks, req)
	if err == errRefused { // perhaps on a connection that the target was about to end
		res, err = t.attempt(u.checks, req)
	}
	switch {
	case err != nil && ctx.Err() == context.DeadlineExceeded:
		return fmt.Errorf("no answer within %s", cfg.Timeout)
	case err != nil:
		return err
	}
	res.Body.Close()
	u.reached(t)
	if expected(res.StatusCode, cfg.Status) {
		return nil
	}
	return errStatus(res.StatusCode)
}

// expected reports whether a status means that a target works: one of those wanted, or 200 to 399 if
// none is named.
func expected(status int, want []int) bool {
	if len(want) == 0 {
		return status >= 200 && status < 400
	}
	return slices.Contains(want, status)
}
