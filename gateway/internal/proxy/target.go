package proxy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/policy"
)

// choice is the target of a request, with a slot at its gate.
type choice struct {
	seat   seat
	permit weir.Permit // zero without a limit
	waited bool        // none was free at once
}

// pick chooses the target of a request and takes a slot at its gate: the first
// in turn that is in rotation and has one free. With none free it waits at the
// first. With every target out of rotation it takes them all for usable: a guess
// that one of them works again costs less than refusing everything.
func (u *Upstream) pick(ctx context.Context, w weir.Work, tried map[*target]bool) (choice, error) {
	n := uint64(len(u.seats))
	start := u.turn.Add(1) - 1
	now := u.now()
	var first, spare *seat
	for i := range n {
		s := &u.seats[(start+i)%n]
		switch {
		case tried[s.target]:
			continue
		case !s.usable(now, u.eject):
			spare = cmpOr(spare, s)
			continue
		case s.gate == nil:
			return choice{seat: *s}, nil
		}
		if n > 1 {
			if p, ok := offer(s.gate, w); ok {
				return choice{seat: *s, permit: p}, nil
			}
		}
		first = cmpOr(first, s)
	}
	first = cmpOr(first, spare)
	switch {
	case first == nil:
		return choice{}, errNoTarget
	case first.gate == nil:
		return choice{seat: *first}, nil
	}
	p, err := first.gate.Admit(ctx, w)
	return choice{*first, p, true}, err
}

var errNoTarget = errors.New("no target left to try")

func cmpOr(a, b *seat) *seat {
	if a != nil {
		return a
	}
	return b
}

// offer asks a gate for a slot that is free now. A no is no refusal of anybody,
// and is not counted as one by gates that can tell the difference.
func offer(g weir.Gate, w weir.Work) (weir.Permit, bool) {
	switch g := g.(type) {
	case interface {
		Offer(weir.Work) (weir.Permit, bool)
	}:
		return g.Offer(w)
	case weir.TryAdmitter:
		p, err := g.TryAdmit(w)
		return p, err == nil
	}
	w.MaxWait = weir.NoWait
	p, err := g.Admit(context.Background(), w)
	return p, err == nil
}

// target is one server of an upstream. It outlives reloads of the configuration
// that keep its URL.
type target struct {
	url *url.URL
	key string // as configured
	h2c bool

	requests  atomic.Uint64
	failures  [numFailures]atomic.Uint64
	ejections atomic.Uint64

	// out is the end of the present ejection in nanoseconds since the epoch of
	// the clock, 0 for a target in rotation.
	out atomic.Int64

	row atomic.Int32 // failures in a row
}

// failure says how a target failed, for metrics.
type failure int

const (
	failedConnect failure = iota // no connection: refused, unreachable, name unknown
	failedTimeout                // no connection or no answer in time
	failedReset                  // the connection broke, or what came was no HTTP
	failedBody                   // the connection broke after the headers of the answer
	failedStatus                 // it answered 502 or 504
	numFailures
)

var failureNames = [numFailures]string{"connect", "timeout", "reset", "body", "status"}

// seat is a target as one configuration sees it: with its gate.
type seat struct {
	*target
	gate weir.Gate // nil: no limit
}

// succeeded ends a row of failures, and reports whether that brought the target
// back into rotation.
func (t *target) succeeded() (back bool) {
	if t.row.Load() == 0 {
		return false
	}
	t.row.Store(0)
	return t.out.Swap(0) != 0
}

// failed counts a failure and reports whether it put the target out of
// rotation. alone says that no other target is left in rotation: the last one is
// never put out.
func (t *target) failed(f failure, now time.Duration, e ejection, alone func() bool) bool {
	t.failures[f].Add(1)
	if e.failures <= 0 || t.row.Add(1) < int32(e.failures) {
		return false
	}
	out := t.out.Load()
	if out > int64(now) || alone() || !t.out.CompareAndSwap(out, int64(now+e.lasts)) {
		return false
	}
	t.ejections.Add(1)
	return true
}

// inRotation reports whether the target is used without conditions.
func (t *target) inRotation() bool { return t.out.Load() == 0 }

// usable reports whether a request may go to the target: it is in rotation, or
// its ejection is over and this request is the one that tries it. The next one
// tries only after another such time, unless this one succeeds.
func (t *target) usable(now time.Duration, e ejection) bool {
	out := t.out.Load()
	return out == 0 || out <= int64(now) && t.out.CompareAndSwap(out, int64(now+e.lasts))
}

// ejection is when a target is left out, and for how long.
type ejection struct {
	failures int
	lasts    time.Duration
}

// address returns where in goes at this target.
func (t *target) address(in *url.URL) *url.URL {
	out := *in
	t.direct(&out)
	return &out
}

// direct makes u lead to this target: its scheme and host, and its path before
// the path of u.
func (t *target) direct(u *url.URL) {
	u.Scheme, u.Host = t.url.Scheme, t.url.Host
	base := strings.TrimSuffix(t.url.EscapedPath(), "/")
	if base == "" {
		return
	}
	escaped := base + "/" + strings.TrimPrefix(u.EscapedPath(), "/")
	path, err := url.PathUnescape(escaped)
	if err != nil { // cannot be: both halves come from parsed URLs
		path = escaped
	}
	u.Path, u.RawPath = path, escaped
}

// newTarget parses the URL of a target. The scheme h2c is http spoken as HTTP/2
// without TLS.
func newTarget(raw string) (*target, error) {
	parsed, err := url.Parse(raw)
	if err != nil {
		return nil, fmt.Errorf("target %q: %w", raw, err)
	}
	t := &target{url: parsed, key: raw}
	switch parsed.Scheme {
	case "http", "https":
	case "h2c":
		t.h2c = true
		parsed.Scheme = "http"
	default:
		return nil, fmt.Errorf("target %q: scheme %q is none of http, https, h2c", raw, parsed.Scheme)
	}
	if parsed.Host == "" {
		return nil, fmt.Errorf("target %q names no host; write for instance http://127.0.0.1:3000", raw)
	}
	return t, nil
}

// WithTargetGates returns gates and one more for each target of an upstream with a limit.
// They are gates of the policy like any other: adopted by name, saved, measured.
func WithTargetGates(gates map[string]policy.GateSpec, upstreams map[string]config.Upstream) map[string]policy.GateSpec {
	all := maps.Clone(gates)
	if all == nil {
		all = make(map[string]policy.GateSpec)
	}
	for name, u := range upstreams {
		if u.Limit == nil {
			continue
		}
		for _, gate := range targetGates(name, u.Targets) {
			all[gate] = policy.GateSpec{Limit: u.Limit}
		}
	}
	return all
}

// targetGates names the gates of an upstream's targets: app@10.0.0.1:3000. If one
// host and path is a target by http and by https, the latter's gate carries
// the scheme: app@https://10.0.0.1:3000.
func targetGates(upstream string, targets []string) map[string]string {
	plain := make(map[string]bool)
	for _, target := range targets {
		if scheme, host := schemeAndHost(target); scheme == "http" {
			plain[host] = true
		}
	}
	names := make(map[string]string, len(targets))
	for _, target := range targets {
		scheme, host := schemeAndHost(target)
		if scheme == "https" && plain[host] {
			host = scheme + "://" + host
		}
		names[target] = upstream + "@" + host
	}
	return names
}

func schemeAndHost(target string) (scheme, host string) {
	u, err := url.Parse(target)
	if err != nil { // cannot be: New has parsed it
		return "", target
	}
	return u.Scheme, u.Host + u.Path
}
