// Package eventlog writes the log for operators: a few lines for events that may happen thousands
// of times a second. It gets each event from the hooks of gates and signals, from listeners and
// from net/http. It decides which of them get a line.
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
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/weir-go/weir"
)

// Log turns events into few log lines. Refusals get at most one line for each gate, rule
// and reason in ten seconds, with their number; the first is logged at once. The number of
// lines is bounded by the configuration, whatever clients do. It is safe for concurrent
// use.
type Log struct {
	log *slog.Logger
	// limits has a lock of its own, and a file of its own.
	limits limitChanges

	mu           sync.Mutex
	refusals     map[refusalKind]*refusals
	certificates map[certificateKind]*certificates
}

// summaryEvery is how often refusals are summed up.
const summaryEvery = 10 * time.Second

type refusalKind struct {
	gate, rule string
	reason     weir.Reason
	observed   bool
}

// refusals are those of one kind since the last line.
type refusals struct {
	n    int
	last *weir.Rejection
	from netip.AddrPort // of a connection that was refused
}

type certificateKind struct{ listener, reason string }

// certificates are client certificates refused for one reason since the last line.
type certificates struct {
	n    int
	last []slog.Attr
}

// New returns a Log that writes to log. snapshot returns what there is to see of a gate,
// false if there is none of that name.
func New(log *slog.Logger, snapshot func(gate string) (weir.Snapshot, bool)) *Log {
	return &Log{
		log:          log,
		limits:       limitChanges{log: log, snapshot: snapshot, gates: make(map[string]*limitChange)},
		refusals:     make(map[refusalKind]*refusals),
		certificates: make(map[certificateKind]*certificates),
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
			if now.After(next) {
				next = now.Add(summaryEvery)
				l.sumUp()
			}
		}
	}
}

// Flush writes all that has not been written yet.
func (l *Log) Flush() {
	l.limits.flush()
	l.sumUp()
}

// Rejected is a weir.Hooks.Rejected.
func (l *Log) Rejected(_ weir.Work, r *weir.Rejection) { l.refused(r, netip.AddrPort{}, false) }

// Observed is a policy.Options.Observed.
func (l *Log) Observed(_ weir.Work, r *weir.Rejection) { l.refused(r, netip.AddrPort{}, true) }

// ConnectionRefused logs that a connection was refused, or would have been in enforce mode.
func (l *Log) ConnectionRefused(r *weir.Rejection, from netip.AddrPort, observed bool) {
	l.refused(r, from, observed)
}

func (l *Log) refused(r *weir.Rejection, from netip.AddrPort, observed bool) {
	if r.Reason == weir.ReasonCanceled {
		return // nobody was refused: a client left the wait room
	}
	kind := refusalKind{r.Gate, r.Rule, r.Reason, observed}
	l.mu.Lock()
	if before := l.refusals[kind]; before != nil {
		before.n++
		before.last, before.from = r, from
		l.mu.Unlock()
		return
	}
	first := &refusals{last: r, from: from}
	l.refusals[kind] = first
	attrs := first.attrs()
	l.mu.Unlock()
	l.warn(kind.text(), attrs)
}

// text is the message for the first refusal of a kind, and summary that for those since
// the last line.
func (k refusalKind) text() string {
	if k.observed {
		return "would refuse (gate in observe mode)"
	}
	return "refusing"
}

func (k refusalKind) summary() string {
	if k.observed {
		return "would have refused since the last line (gate in observe mode)"
	}
	return "refused since the last line"
}

// attrs describes the last refusal of a kind. It leaves out figures that the reason does not have.
func (n *refusals) attrs() []slog.Attr {
	r := n.last
	attrs := []slog.Attr{slog.String("gate", r.Gate), slog.String("reason", r.Reason.String())}
	if n.n > 0 {
		attrs = append(attrs, slog.Int("count", n.n))
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
	if n.from.IsValid() {
		attrs = append(attrs, slog.String("peer", n.from.String()))
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

// CertificateRefused logs that a client was refused for its certificate.
func (l *Log) CertificateRefused(listener, reason string, from net.Addr, err error) {
	kind, attrs := certificateKind{listener, reason}, certificateAttrs(from, err)
	l.mu.Lock()
	if before := l.certificates[kind]; before != nil {
		before.n++
		before.last = attrs
		l.mu.Unlock()
		return
	}
	first := &certificates{last: attrs}
	l.certificates[kind] = first
	l.mu.Unlock()
	l.warn("client certificate refused", kind.attrs(0, attrs))
}

func (k certificateKind) attrs(count int, more []slog.Attr) []slog.Attr {
	attrs := []slog.Attr{slog.String("listener", k.listener), slog.String("reason", k.reason)}
	if count > 0 {
		attrs = append(attrs, slog.Int("count", count))
	}
	return append(attrs, more...)
}

// certificateAttrs describes a certificate that was refused. What is in it is the client's
// choice, so it is cut short.
func certificateAttrs(from net.Addr, err error) []slog.Attr {
	attrs := []slog.Attr{slog.String("peer", from.String())}
	var verification *tls.CertificateVerificationError
	if errors.As(err, &verification) && len(verification.UnverifiedCertificates) > 0 {
		cert := verification.UnverifiedCertificates[0]
		attrs = append(attrs, slog.String("subject", clip(cert.Subject.String())), slog.String("issuer", clip(cert.Issuer.String())))
		err = verification.Err
	}
	return append(attrs, slog.String("error", clip(err.Error())))
}

// clip bounds a text that others chose.
func clip(s string) string {
	const most = 200
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "..."
}

// sumUp writes a line for each kind of refusal that there has been. It forgets kinds
// that have stopped, so that their next first refusal is logged at once.
func (l *Log) sumUp() {
	type line struct {
		text  string
		attrs []slog.Attr
	}
	var lines []line
	l.mu.Lock()
	for kind, n := range l.certificates {
		if n.n == 0 {
			delete(l.certificates, kind)
			continue
		}
		lines = append(lines, line{"client certificates refused since the last line", kind.attrs(n.n, n.last)})
		n.n = 0
	}
	for kind, n := range l.refusals {
		if n.n == 0 {
			delete(l.refusals, kind)
			continue
		}
		lines = append(lines, line{kind.summary(), n.attrs()})
		n.n = 0
	}
	l.mu.Unlock()
	for _, line := range lines {
		l.warn(line.text, line.attrs)
	}
}

func (l *Log) warn(text string, attrs []slog.Attr) {
	l.log.LogAttrs(context.Background(), slog.LevelWarn, text, attrs...)
}

// AuthorityExpired logs that a certificate in the file of a listener's authorities has
// expired.
func (l *Log) AuthorityExpired(listener, subject string) {
	l.log.Warn("a certificate authority in client_ca has expired; clients with its certificates are refused", "listener", listener, "subject", clip(subject))
}

// Leaked is a weir.Hooks.Leaked.
func (l *Log) Leaked(gate, site string) {
	l.log.Error("a permit was dropped and never given back; this is a bug of the gateway", "gate", gate, "site", site)
}

// Faulty is a weir.Hooks.Faulty. A gate reports the first fault only.
func (l *Log) Faulty(gate, problem string) {
	l.log.Error("the controller of a gate failed; the gate keeps its limit, and further failures are only counted", "gate", gate, "problem", problem)
}

// SignalTrouble is a signal.Hooks.Trouble, which is called once for each kind of trouble.
func (l *Log) SignalTrouble(name string, err error) {
	if errors.Is(err, errors.ErrUnsupported) {
		l.log.Warn("this machine does not have a signal; gates ignore it", "signal", name, "error", err)
		return
	}
	l.log.Warn("a signal failed; its last value is used for a while, then ignored or replaced as its settings say", "signal", name, "error", err)
}

// SignalRecovered is a signal.Hooks.Recovered.
func (l *Log) SignalRecovered(name string) {
	l.log.Info("a signal can be read again", "signal", name)
}

// ServerErrors returns the log of an http.Server: it sorts what net/http complains about.
func ServerErrors(to *slog.Logger, listener string) *log.Logger {
	return log.New(serverErrors{to.With("listener", listener)}, "", 0)
}

// serverErrors sorts the complaints of net/http. Errors of clients get no line of their own. A
// panic is a bug of the gateway. A third kind says that the process has run out of file
// descriptors.
type serverErrors struct{ log *slog.Logger }

// Write implements io.Writer, one line a call.
func (c serverErrors) Write(line []byte) (int, error) {
	text := string(bytes.TrimSpace(line))
	switch {
	case bytes.Contains(line, []byte("panic serving")):
		c.log.Error("the gateway panicked while serving a request; this is a bug", "error", text)
	case bytes.Contains(line, []byte(syscall.EMFILE.Error())):
		// net/http waits longer and longer between tries, up to a second.
		c.log.Warn("no file descriptor is left for new connections: raise the limit of the process (ulimit -n) or lower max_connections", "error", text)
	default:
		c.log.Debug("client connection", "error", text)
	}
	return len(line), nil
}
