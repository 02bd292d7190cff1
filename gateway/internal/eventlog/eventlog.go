// Package eventlog writes the log for operators: a few lines for events that may happen thousands
// of times a second. It gets each event from the hooks of gates and signals, from listeners,
// from upstreams and from net/http. It decides which of them get a line.
package eventlog

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"log"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/netip"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/weir-go/weir"
)

// Log turns events into few log lines. Refusals get at most one line for each gate, rule
// and reason in ten seconds, with their number; the first is logged at once. Failures of an
// upstream are told in the same way, for each target and kind of failure. The configuration bounds
// the number of lines, whatever clients do. It is safe for concurrent use.
type Log struct {
	log *slog.Logger
	// limits has a lock of its own, and a file of its own.
	limits limitChanges
	delays delays // the same

	mu    sync.Mutex
	kinds map[kind]*events
}

// summaryEvery is how often events are summed up.
const summaryEvery = 10 * time.Second

// kind is what events have in common that share a line.
type kind struct {
	event event
	// at is the gate, the listener, the collector or the upstream; empty for a write.
	at string
	// rule is the rule of a gate, or the target of an upstream.
	rule   string
	reason string
}

// event is what happened to a client.
type event uint8

const (
	refusal event = iota
	observed
	certificate
	adminWrite
	upstreamFailure
	spansLost
	noDescriptor
)

// lines are the messages for the first event of a kind, and for those since the last line.
var lines = [...]struct{ first, since string }{
	refusal:     {"refusing", "refused since the last line"},
	observed:    {"would refuse (gate in observe mode)", "would have refused since the last line (gate in observe mode)"},
	certificate: {"client certificate refused", "client certificates refused since the last line"},
	adminWrite:  {"admin write refused", "admin writes refused since the last line"},

	upstreamFailure: {"upstream target failed", "upstream target failures since the last line"},
	spansLost:       {"spans were lost; the collector cannot be reached or refuses them", "batches of spans lost since the last line"},

	noDescriptor: {"no file descriptor is left for new connections: raise the limit of the process (ulimit -n) or lower max_connections", "tries to accept a connection without a file descriptor since the last line"},
}

// events are those of one kind since the last line.
type events struct {
	n int
	last
}

// last is the last event of a kind: a refusal by a gate or listener, or the details of another.
type last struct {
	rejection *weir.Rejection
	from      netip.AddrPort // of a connection that was refused
	details   []slog.Attr
}

// New returns a Log that writes to log. snapshot returns what there is to see of a gate,
// false if there is none of that name.
func New(log *slog.Logger, snapshot func(gate string) (weir.Snapshot, bool)) *Log {
	return &Log{
		log:    log,
		limits: limitChanges{log: log, snapshot: snapshot, gates: make(map[string]*limitChange)},
		delays: delays{log: log, buckets: make(map[bucket]*delay)},
		kinds:  make(map[kind]*events),
	}
}

// Run writes the lines that become due, until ctx ends.
func (l *Log) Run(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	next := time.Now().Add(summaryEvery)
	for {
		select {
		case <-ctx.Done():
			l.sumUp()
			return
		case now := <-tick.C:
			l.limits.tick(now)
			l.delays.tick(now)
			if now.After(next) {
				next = now.Add(summaryEvery)
				l.sumUp()
			}
		}
	}
}

// Flush writes the lines about limits and the sums that have not been written yet. Quotas that still
// delay get no last line.
func (l *Log) Flush() {
	l.limits.flush()
	l.sumUp()
}

// Rejected is a weir.Hooks.Rejected.
func (l *Log) Rejected(_ weir.Work, r *weir.Rejection) { l.refused(refusal, r, netip.AddrPort{}) }

// Observed is a policy.Options.Observed.
func (l *Log) Observed(_ weir.Work, r *weir.Rejection) { l.refused(observed, r, netip.AddrPort{}) }

// ConnectionRefused logs that a connection was refused, or would have been in enforce mode.
func (l *Log) ConnectionRefused(r *weir.Rejection, from netip.AddrPort, onlyObserved bool) {
	e := refusal
	if onlyObserved {
		e = observed
	}
	l.refused(e, r, from)
}

func (l *Log) refused(e event, r *weir.Rejection, from netip.AddrPort) {
	if r.Reason == weir.ReasonCanceled {
		return // nobody was refused: a client left the wait room
	}
	k := kind{e, r.Gate, r.Rule, r.Reason.String()}
	if r.Reason == weir.ReasonShed {
		k.rule = "" // it is the level at that moment, and a cursor has hundreds of them
	}
	l.add(k, last{rejection: r, from: from})
}

// CertificateRefused logs that a client was refused for its certificate.
func (l *Log) CertificateRefused(listener, reason string, from net.Addr, err error) {
	l.add(kind{event: certificate, at: listener, reason: reason}, last{details: certificateAttrs(from, err)})
}

// WriteRefused logs that a client of the admin listener may not write.
func (l *Log) WriteRefused(r *http.Request, err error) {
	l.add(kind{event: adminWrite, reason: err.Error()}, last{details: []slog.Attr{
		slog.String("peer", r.RemoteAddr), slog.String("method", r.Method), slog.String("path", Clip(r.URL.Path)),
	}})
}

// UpstreamFailed logs that a target of an upstream failed. It refused or broke a connection, did
// not answer in time, or answered that its own upstream had failed.
func (l *Log) UpstreamFailed(upstream, target, failure string, err error) {
	l.add(kind{upstreamFailure, upstream, target, failure}, last{details: []slog.Attr{slog.String("error", Clip(err.Error()))}})
}

// SpansLost logs that a batch of spans did not reach the collector.
func (l *Log) SpansLost(endpoint string, err error) {
	l.add(kind{event: spansLost, at: endpoint, reason: "export"}, last{details: []slog.Attr{slog.String("error", Clip(err.Error()))}})
}

// add counts an event, and logs the first of its kind.
func (l *Log) add(k kind, e last) {
	l.mu.Lock()
	before := l.kinds[k]
	if before != nil {
		before.n++
		before.last = e
	} else {
		l.kinds[k] = &events{last: e}
	}
	l.mu.Unlock()
	if before == nil {
		l.warn(lines[k.event].first, e.attrs(k, 0))
	}
}

// attrs describes the last of so many events. It leaves out figures that the reason does not have.
func (e *last) attrs(k kind, count int) []slog.Attr {
	var attrs []slog.Attr
	switch k.event {
	case refusal, observed:
		attrs = append(attrs, slog.String("gate", k.at))
	case certificate, noDescriptor:
		attrs = append(attrs, slog.String("listener", k.at))
	case spansLost:
		attrs = append(attrs, slog.String("collector", k.at))
	case upstreamFailure:
		attrs = append(attrs, slog.String("upstream", k.at), slog.String("target", k.rule))
	}
	attrs = append(attrs, slog.String("reason", k.reason))
	if count > 0 {
		attrs = append(attrs, slog.Int("count", count))
	}
	r := e.rejection
	if r == nil {
		return append(attrs, e.details...)
	}
	if r.Value != 0 || r.Limit != 0 {
		attrs = append(attrs, slog.Float64("value", rounded(r.Value)), slog.Float64("limit", rounded(r.Limit)))
	}
	if r.RetryAfter > 0 {
		attrs = append(attrs, slog.String("retry_after", r.RetryAfter.Round(time.Millisecond).String()))
	}
	if r.Rule != "" {
		attrs = append(attrs, slog.String("rule", r.Rule))
	}
	if r.Window > 0 {
		attrs = append(attrs, slog.Int("window", r.Window))
	}
	if e.from.IsValid() {
		attrs = append(attrs, slog.String("peer", e.from.String()))
	}
	if r.Bucket != "" {
		attrs = append(attrs, slog.String("bucket", r.Bucket))
	}
	if r.Signal != "" {
		attrs = append(attrs, slog.String("signal", r.Signal))
	}
	return attrs
}

// rounded leaves out what nobody reads: the figures of time-outs and deadlines are in
// seconds, all others are whole numbers.
func rounded(x float64) float64 { return math.Round(x*1000) / 1000 }

// certificateAttrs describes a certificate that was refused. What is in it is the client's
// choice, so it is cut short.
func certificateAttrs(from net.Addr, err error) []slog.Attr {
	attrs := []slog.Attr{slog.String("peer", from.String())}
	var verification *tls.CertificateVerificationError
	if errors.As(err, &verification) && len(verification.UnverifiedCertificates) > 0 {
		cert := verification.UnverifiedCertificates[0]
		attrs = append(attrs, slog.String("subject", Clip(cert.Subject.String())), slog.String("issuer", Clip(cert.Issuer.String())))
		err = verification.Err
	}
	return append(attrs, slog.String("error", Clip(err.Error())))
}

// Clip cuts a text that others chose off at 200 bytes, with "..." behind it.
func Clip(s string) string {
	const most = 200
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "..."
}

// SameTrouble reports whether two errors say the same, but for the addresses of connections. Each try has another port of
// the gateway's, and a balancer or a cluster may answer from another address. nil is no trouble.
func SameTrouble(a, b error) bool {
	return a != nil && b != nil && addresses.ReplaceAllString(a.Error(), "") == addresses.ReplaceAllString(b.Error(), "")
}

var addresses = regexp.MustCompile(`(\d+\.\d+\.\d+\.\d+|\[[0-9a-f:.]+(%\w+)?\]):\d+`)

// sumUp writes a line for each kind of event that there has been. It forgets kinds that have
// stopped, so that their next first event is logged at once.
func (l *Log) sumUp() {
	due := make(map[kind]events)
	l.mu.Lock()
	for k, e := range l.kinds {
		if e.n == 0 {
			delete(l.kinds, k)
			continue
		}
		due[k] = *e
		e.n = 0
	}
	l.mu.Unlock()
	for k, e := range due {
		l.warn(lines[k.event].since, e.attrs(k, e.n))
	}
}

func (l *Log) warn(text string, attrs []slog.Attr) {
	l.log.LogAttrs(context.Background(), slog.LevelWarn, text, attrs...)
}

// CertificateExpired logs that a listener's own certificate has expired.
func (l *Log) CertificateExpired(listener string, on time.Time) {
	l.log.Error("the certificate has expired; clients refuse to connect", "listener", listener, "expired", on)
}

// AuthorityExpired logs that a certificate in the file of a listener's authorities has
// expired.
func (l *Log) AuthorityExpired(listener, subject string) {
	l.log.Warn("a certificate authority in client_ca has expired; clients with its certificates are refused", "listener", listener, "subject", Clip(subject))
}

// Leaked is a weir.Hooks.Leaked.
func (l *Log) Leaked(gate, site string) {
	l.log.Error("a permit was dropped and never given back; this is a bug of the gateway, please report it", "gate", gate, "site", site)
}

// Faulty is a weir.Hooks.Faulty. A gate reports the first fault only.
func (l *Log) Faulty(gate, problem string) {
	l.log.Error("the controller of a gate failed; the gate keeps its limit. This is a bug, please report it. Further failures are only counted, in weir_gate_controller_faults_total", "gate", gate, "error", problem)
}

// SignalTrouble is a signal.Hooks.Trouble, which is called once for each kind of trouble.
func (l *Log) SignalTrouble(name string, err error) {
	if errors.Is(err, errors.ErrUnsupported) {
		l.log.Warn("a signal is not available on this machine; gates ignore it", "signal", name, "error", err)
		return
	}
	l.log.Warn("a signal failed; its last value is used for a while, then ignored or replaced as its settings say", "signal", name, "error", err)
}

// SignalRecovered is a signal.Hooks.Recovered.
func (l *Log) SignalRecovered(name string) {
	l.log.Info("a signal can be read again", "signal", name)
}

// ServerErrors returns the log of an http.Server: it sorts what net/http complains about.
func (l *Log) ServerErrors(listener string) *log.Logger {
	return log.New(serverErrors{l, listener}, "", 0)
}

// serverErrors sorts the complaints of net/http. Errors of clients get no line of their own. A
// panic is a bug of the gateway. A third kind says that the process has run out of file
// descriptors.
type serverErrors struct {
	to       *Log
	listener string
}

// Write implements io.Writer, one line a call.
func (c serverErrors) Write(line []byte) (int, error) {
	text := string(bytes.TrimSpace(line))
	switch {
	case bytes.Contains(line, []byte("panic serving")):
		c.to.log.Error("the gateway panicked while serving a request; this is a bug, please report it", "listener", c.listener, "error", text)
	case bytes.Contains(line, []byte(syscall.EMFILE.Error())):
		// net/http waits longer and longer between tries, but from 5 ms on again after each connection.
		c.to.add(kind{event: noDescriptor, at: c.listener, reason: syscall.EMFILE.Error()}, last{details: []slog.Attr{slog.String("error", text)}})
	default:
		c.to.log.Debug("client connection", "listener", c.listener, "error", text)
	}
	return len(line), nil
}
