package proxy

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/policy"
)

// choice is the target of a request, and the permit of its gate.
type choice struct {
	seat   seat
	permit weir.Permit // zero without a limit
	waited bool        // for the slot
}

// pick chooses the target of a request and gets a permit of its gate. It goes through the targets,
// in turn or by load, and takes the first that is healthy, not ejected, and has a free slot. If no
// slot is free, it waits where the line is shortest. If all targets are out, it tries one all the
// same. It may work again, and the alternative is to refuse everything.
func (u *Upstream) pick(ctx context.Context, w weir.Work, tried map[*target]bool) (choice, error) {
	var buf [16]loaded
	now := u.now()
	var full, spare *seat
	var shortest float64
	for _, l := range u.inOrder(u.rotation.Add(1)-1, buf[:0]) {
		s := l.seat
		switch {
		case tried[s.target]:
			continue
		case u.unhealthy(s.target) || !s.usable(now, u.eject):
			spare = cmp.Or(spare, s)
			continue
		case s.gate == nil:
			return choice{seat: *s}, nil
		}
		if len(u.seats) == 1 {
			full = s
			break
		}
		if p, ok := s.gate.Offer(w); ok { // a no is no refusal, and not counted as one
			return choice{seat: *s, permit: p}, nil
		}
		if line := s.line(); full == nil || line < shortest {
			full, shortest = s, line
		}
	}
	first := cmp.Or(full, spare)
	switch {
	case first == nil:
		return choice{}, errNoTarget
	case first.gate == nil:
		return choice{seat: *first}, nil
	}
	p, err := first.gate.Admit(ctx, w)
	return choice{*first, p, true}, err
}

// loaded is a seat and how many requests were in progress at its target when somebody looked.
type loaded struct {
	seat *seat
	load int64
}

// inOrder returns the seats as they are to be tried, from the given turn on. They are one after the
// other, or those with the fewest requests in progress come first. Equal ones stay in turn. buf is
// memory to use.
func (u *Upstream) inOrder(turn uint64, buf []loaded) []loaded {
	n := uint64(len(u.seats))
	for i := range n {
		s := &u.seats[(turn+i)%n]
		buf = append(buf, loaded{s, s.inside.Load()})
	}
	if u.leastLoaded {
		slices.SortStableFunc(buf, func(a, b loaded) int { return cmp.Compare(a.load, b.load) })
	}
	return buf
}

// pickFor is pick for a call, which learns the target and the wait for its slot. What the call has waited before counts
// for its longest wait.
func (u *Upstream) pickFor(ctx context.Context, call *Call, w weir.Work, tried map[*target]bool) (choice, error) {
	if w.MaxWait > 0 {
		if w.MaxWait -= call.Waited; w.MaxWait <= 0 {
			w.MaxWait = weir.NoWait
		}
	}
	began := u.now()
	c, err := u.pick(ctx, w, tried)
	if c.waited {
		call.Waited += u.now() - began
	}
	if c.seat.target != nil {
		call.Target = c.seat.key
	}
	return c, err
}

var errNoTarget = errors.New("no target left to try")

// target is one server of an upstream. It lives on over reloads that keep its URL.
type target struct {
	url *url.URL
	key string // as configured
	h2c bool

	health      health
	unreachable atomic.Bool  // the log says so
	inside      atomic.Int64 // requests in progress
	requests    atomic.Uint64
	failures    [numFailures]atomic.Uint64
	ejections   atomic.Uint64

	// ejectedUntil is in nanoseconds since the epoch of the upstream's clock; 0: it is not
	// ejected.
	ejectedUntil atomic.Int64

	inRow atomic.Int32 // failures in a row

	http2 atomic.Bool // it has chosen HTTP/2

	// noCallsUntil is on the same clock: the target has chosen HTTP/1 by TLS, so no call of gRPC is
	// sent to it before.
	noCallsUntil atomic.Int64
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
	gate gate // nil: no limit
}

// gate is what pick needs of a *policy.Gate.
type gate interface {
	weir.Gate
	Load() (inFlight, waiting, limit int64)
	Offer(weir.Work) (weir.Permit, bool)
}

// line returns how much is in the target or waits for it, in multiples of its limit.
func (s *seat) line() float64 {
	inFlight, waiting, limit := s.gate.Load()
	return float64(inFlight+waiting) / float64(max(limit, 1))
}

// Unreachable logs that a target was tried and accepts no connections. Its first answer after that is logged,
// too.
func (u *Upstream) Unreachable(target string, err error) {
	u.log.Warn("upstream target accepts no connections now; requests that find no other target are answered 502 or 504 until it does",
		"upstream", u.name, "target", target, "error", err)
	u.shared.targets[target].unreachable.Store(true)
}

// reached takes note that a target has answered.
func (u *Upstream) reached(t *target) {
	if t.unreachable.Load() && t.unreachable.Swap(false) {
		u.log.Info("upstream target accepts connections now", "upstream", u.name, "target", t.key)
	}
}

// succeeded ends a row of failures, and reports whether that ended an ejection.
func (t *target) succeeded() (back bool) {
	if t.inRow.Load() == 0 {
		return false
	}
	t.inRow.Store(0)
	return t.ejectedUntil.Swap(0) != 0
}

// recordFailure counts a failure and reports whether it ejected the target. alone reports
// whether all other targets are ejected: the last one never is.
func (t *target) recordFailure(f failure, now time.Duration, e ejection, alone func() bool) bool {
	t.failures[f].Add(1)
	if e.failures <= 0 || t.inRow.Add(1) < int32(e.failures) {
		return false
	}
	until := t.ejectedUntil.Load()
	if until > int64(now) || alone() || !t.ejectedUntil.CompareAndSwap(until, int64(now+e.lasts)) {
		return false
	}
	t.ejections.Add(1)
	return true
}

// ejected reports whether the target is ejected, or waits for a request that tries it.
func (t *target) ejected() bool { return t.ejectedUntil.Load() != 0 }

// usable reports whether a request may go to the target. It is not ejected, or its ejection is over
// and this request tries it. If this one fails, the next one tries only after the same time again.
func (t *target) usable(now time.Duration, e ejection) bool {
	until := t.ejectedUntil.Load()
	return until == 0 || until <= int64(now) && t.ejectedUntil.CompareAndSwap(until, int64(now+e.lasts))
}

// callsAgain is how long a target that has chosen HTTP/1 gets no calls of gRPC. Each would be refused
// after a handshake, and a handshake costs it more than most requests.
const callsAgain = 5 * time.Second

// takesCalls reports whether a call of gRPC is sent to the target, to find out whether it chooses
// HTTP/2 if need be.
func (t *target) takesCalls(now time.Duration) bool { return int64(now) >= t.noCallsUntil.Load() }

// ejection is after how many failures in a row a target is ejected, and for how long.
type ejection struct {
	failures int
	lasts    time.Duration
}

// address returns the URL of in at this target.
func (t *target) address(in *url.URL) *url.URL {
	out := *in
	t.direct(&out)
	return &out
}

// direct makes u lead to this target: it gets the target's scheme and host, and the
// target's path before its own.
func (t *target) direct(u *url.URL) {
	u.Scheme, u.Host = t.url.Scheme, t.url.Host
	given, base := policy.EscapedPath(u), strings.TrimSuffix(t.url.EscapedPath(), "/")
	if base == "" {
		u.RawPath = given
		return
	}
	escaped := base + "/" + strings.TrimPrefix(given, "/")
	path, err := url.PathUnescape(escaped)
	if err != nil { // cannot be: both halves come from parsed URLs
		path = escaped
	}
	u.Path, u.RawPath = path, escaped
}

// newTarget parses the URL of a target. The scheme h2c is HTTP/2 without TLS.
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
	case "unix":
		t.url = &url.URL{Scheme: "http", Host: socketHost(parsed.Path)}
		return t, nil
	default:
		return nil, fmt.Errorf("target %q: scheme %q is unknown; write http, https, h2c or unix", raw, parsed.Scheme)
	}
	if parsed.Host == "" {
		return nil, fmt.Errorf("target %q names no host; write for instance http://127.0.0.1:3000", raw)
	}
	return t, nil
}

// socketEnd marks the host names that stand for sockets. No name in DNS ends so.
const socketEnd = ".weir-unix-socket"

// socketHost returns a host name for a Unix socket, by which the transport keeps its connections
// apart from others.
func socketHost(path string) string { return hex.EncodeToString([]byte(path)) + socketEnd }

// socketOf returns the path of the socket that an address, host:port, stands for; empty if none.
func socketOf(address string) string {
	host, ok := strings.CutSuffix(strings.TrimSuffix(address, ":80"), socketEnd)
	if !ok {
		return ""
	}
	path, _ := hex.DecodeString(host) // socketHost wrote it
	return string(path)
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

// targetGates names the gates of an upstream's targets: app@10.0.0.1:3000. If one host and
// path is a target by http and by https, the gate of the latter has the scheme in its name:
// app@https://10.0.0.1:3000.
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
