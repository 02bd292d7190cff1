// Package proxy passes requests on to upstream servers: one [Upstream] for each
// set of interchangeable servers in the configuration.
//
// It is [net/http/httputil.ReverseProxy] with a transport tuned for one hop,
// and what a gateway needs around it:
//
//   - targets in turn, each behind a gate of its own if it has a limit; one
//     that keeps failing is left out for a while,
//   - a bound on every wait: connecting, sending the request, waiting for the
//     answer,
//   - the outcome of each request, sampled when the upstream's headers arrive,
//   - a client that leaves does not free its slot: the upstream goes on working
//     and so the request goes on, until the upstream answers or the time it was
//     expected to take has passed.
//
// Headers that claim something about the client (X-Forwarded-*, Forwarded, the
// headers identities are read from) are passed on only from trusted peers;
// everybody else's are dropped, and X-Forwarded-* written anew.
package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/weirhttp"
)

// Options is what an [Upstream] needs beside its configuration.
type Options struct {
	// Logger is told of targets that are left out, and of failures at level
	// debug. Required.
	Logger *slog.Logger
	// Gate returns the gate of a target, nil for a target without a limit. A
	// nil Gate means that no target has one.
	Gate func(target string) weir.Gate
	// Refuse answers a request that a target's gate refused. nil means
	// weirhttp.WriteRejection.
	Refuse func(w http.ResponseWriter, r *http.Request, rej *weir.Rejection)
	// Trusted reports whether what r's headers say about the client is to be
	// believed. nil means never.
	Trusted func(r *http.Request) bool
	// Claims are the headers, in canonical form, that identities are read
	// from. They are passed on only from trusted peers.
	Claims []string
	// Forward makes out, the header of a request that is passed on, say what has
	// been decided about in, the request as it came; again is true for a further
	// target, when only time has passed. nil leaves it as it is.
	Forward func(out http.Header, in *http.Request, call *Call, again bool)
	// Settle reads from the header of an answer, or from its trailer, what the request
	// has really cost, and takes it out if the client is not to see it. It hands that to
	// set, for a gate or with no name for all, and reports whether there is any. nil: no
	// answer says.
	Settle func(call *Call, answer http.Header, set func(gate string, units int64)) bool
	// Previous is the upstream of that name in the configuration before, nil
	// if there was none. Targets that stay keep their connections, their
	// counters and their ejection.
	Previous *Upstream
}

// Upstream is a set of interchangeable servers. It is safe for concurrent use.
type Upstream struct {
	name    string
	opts    Options
	cfg     config.Upstream
	eject   ejection
	claims  claims
	seats   []seat
	turn    atomic.Uint64
	shared  *shared
	reverse httputil.ReverseProxy
}

// shared is what stays over reloads.
type shared struct {
	epoch     time.Time
	targets   map[string]*target
	transport *http.Transport
	services  *services
	abandoned *atomic.Uint64
	watch     *watch
}

// New returns the upstream called name. It connects to nothing yet.
func New(name string, cfg config.Upstream, opts Options) (*Upstream, error) {
	if opts.Refuse == nil {
		opts.Refuse = weirhttp.WriteRejection
	}
	u := &Upstream{
		name: name, cfg: cfg, opts: opts,
		claims: newClaims(opts.Claims),
		eject:  ejection{cfg.Eject.Failures, time.Duration(cfg.Eject.For)},
		shared: &shared{epoch: time.Now(), services: new(services), abandoned: new(atomic.Uint64)},
	}
	targets, h2c, err := parseTargets(name, cfg.Targets)
	if err != nil {
		return nil, err
	}
	u.shared.watch = &watch{epoch: u.shared.epoch}
	u.adopt(opts.Previous, targets, h2c)
	for _, raw := range cfg.Targets {
		s := seat{target: u.shared.targets[raw]}
		if opts.Gate != nil {
			s.gate = opts.Gate(raw)
		}
		u.seats = append(u.seats, s)
	}
	u.reverse = httputil.ReverseProxy{
		Rewrite:        u.rewrite,
		Transport:      roundTripper{u},
		BufferPool:     bodyBuffers,
		ErrorHandler:   u.failed,
		ModifyResponse: u.begin,
		ErrorLog:       slog.NewLogLogger(opts.Logger.With("upstream", name).Handler(), slog.LevelDebug),
	}
	return u, nil
}

var bodyBuffers = new(buffers)

// adopt takes over what stays of the upstream before.
func (u *Upstream) adopt(prev *Upstream, targets map[string]*target, h2c bool) {
	if prev == nil {
		u.shared.targets = targets
		u.shared.transport = newTransport(time.Duration(u.cfg.ConnectTimeout), h2c)
		return
	}
	u.shared.epoch = prev.shared.epoch
	u.shared.services = prev.shared.services
	u.shared.abandoned = prev.shared.abandoned
	u.shared.watch = prev.shared.watch
	u.shared.targets = targets
	for key := range targets {
		if old, ok := prev.shared.targets[key]; ok {
			targets[key] = old
		}
	}
	u.turn.Store(prev.turn.Load())
	if prev.cfg.ConnectTimeout == u.cfg.ConnectTimeout && prev.h2c() == h2c {
		u.shared.transport = prev.shared.transport
		return
	}
	u.shared.transport = newTransport(time.Duration(u.cfg.ConnectTimeout), h2c)
}

func (u *Upstream) h2c() bool { return u.shared.transport.Protocols.UnencryptedHTTP2() }

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

// Name returns the upstream's name.
func (u *Upstream) Name() string { return u.name }

// Retire closes the idle connections that next does not go on using. next is
// nil when the upstream is gone.
func (u *Upstream) Retire(next *Upstream) {
	if next == nil || next.shared.transport != u.shared.transport {
		u.shared.transport.CloseIdleConnections()
	}
}

func (u *Upstream) now() time.Duration { return time.Since(u.shared.epoch) }

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

// Check reports what [New] would find wrong with cfg.
func Check(name string, cfg config.Upstream) error {
	if len(cfg.Targets) == 0 {
		return fmt.Errorf("upstream %s has no targets; give it one, for instance http://127.0.0.1:3000", name)
	}
	_, _, err := parseTargets(name, cfg.Targets)
	return err
}

// parseTargets parses the targets of an upstream and says whether they speak
// HTTP/2 without TLS.
func parseTargets(name string, raws []string) (targets map[string]*target, h2c bool, err error) {
	targets = make(map[string]*target, len(raws))
	n := 0
	for _, raw := range raws {
		t, err := newTarget(raw)
		if err != nil {
			return nil, false, fmt.Errorf("upstream %s: %w", name, err)
		}
		if t.h2c {
			n++
		}
		targets[raw] = t
	}
	if n > 0 && n < len(raws) {
		return nil, false, fmt.Errorf("upstream %s: %d of its %d targets are h2c; either all must be, or none", name, n, len(raws))
	}
	return targets, n > 0, nil
}
