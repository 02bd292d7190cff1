package server

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/accesslog"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/gateway/internal/proxy"
	"github.com/weir-go/weir/policy"
)

// lastLines is how long an access log has to write its last lines.
const lastLines = time.Second

// openAccessLog opens the access log that cfg asks for, nil for none.
func (s *Server) openAccessLog(cfg *config.Config) (*accesslog.Log, error) {
	l, err := accesslog.Open(cfg.AccessLog, s.access.Load(), &s.accessCounts)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cfg.At("access_log.to"), err)
	}
	return l, nil
}

// discardAccessLog closes a log that does not come into use.
func (s *Server) discardAccessLog(l *accesslog.Log) {
	if !l.Shares(s.access.Load()) {
		l.Close(lastLines)
	}
}

// swapAccessLog gives requests another log, and lets the old one write its last lines.
func (s *Server) swapAccessLog(next *accesslog.Log) {
	if old := s.access.Swap(next); old != nil && !old.Shares(next) {
		s.oldLogs.Go(func() { old.Close(lastLines) })
	}
}

// reopenAccessLog opens the access log in use again.
func (s *Server) reopenAccessLog() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return
	}
	l, err := s.openAccessLog(s.state.Load().cfg)
	if err != nil {
		s.log.Error("the access log cannot be opened again; lines go where they went before", "error", err)
		return
	}
	s.swapAccessLog(l)
}

// logAccess writes the line of a request that is over. l is nil if there is no log.
func (s *Server) logAccess(l *accesslog.Log, e *accesslog.Entry) {
	if !l.Wants(e.Status) {
		return
	}
	for l != nil && !l.Write(e) { // a reload has just closed it
		l = s.access.Load()
	}
}

// entry describes a request that is over.
func (q *request) entry(r *http.Request) accesslog.Entry {
	call := &q.call
	e := accesslog.Entry{
		Time: call.Arrived, Client: q.handler.s.Policy().Origin(r).String(),
		Method: r.Method, Host: r.Host, Path: policy.EscapedPath(r.URL), Query: r.URL.RawQuery, Proto: r.Proto,
		Status: call.Counted(), Bytes: q.bytes, Waited: call.Waited, By: call.By.String(),
		Upstream: call.Upstream, Target: call.Target, Reason: call.Failure, RequestID: r.Header.Get("X-Request-Id"),
		TraceID: traceID(r.Header["Traceparent"]),
	}
	if call.Traceparent != "" {
		e.TraceID = traceID([]string{call.Traceparent})
	}
	if e.Status == 0 {
		e.Status = statusClientLeft
		if call.Upstream == "" && q.handler.s.cutting.Err() != nil { // else the upstream's side knows who was first
			e.Reason = proxy.CutOff
		}
	}
	if r.Method == http.MethodHead {
		e.Bytes = 0 // net/http takes a body here and sends none
	}
	if q.route != nil {
		e.Route, e.Class = call.Route.Name(), call.Work.Priority.String()
	}
	if rej := call.Rejection; rej != nil {
		e.Gate, e.Rule, e.Reason = rej.Gate, ruleOf(call.Policy, rej), rej.Reason.String()
	}
	return e
}

// ruleOf returns the rule of a refusal as lines and spans have it. A rule of a quota without a name is told by what
// it matches, which may be a user's API key.
func ruleOf(p *policy.Policy, rej *weir.Rejection) string {
	if p != nil {
		if g := p.Gate(rej.Gate); g != nil && g.Quota() != nil {
			return g.Quota().WithoutValues(rej.Rule)
		}
	}
	return rej.Rule
}

// traceID returns the trace that a request belongs to by its header traceparent (W3C Trace Context).
// It is empty if the header is missing, faulty or there more than once.
func traceID(values []string) string {
	if len(values) != 1 {
		return ""
	}
	traceparent := values[0]
	if len(traceparent) < len("00-0123456789abcdef0123456789abcdef-0123456789abcdef-01") || traceparent[2] != '-' || traceparent[35] != '-' {
		return ""
	}
	id := traceparent[3:35]
	if strings.Trim(id, "0123456789abcdef") != "" || strings.Trim(id, "0") == "" {
		return ""
	}
	return id
}

// statusClientLeft stands for no answer: the client left before, or a shutdown has cut the request. nginx began to call it so.
const statusClientLeft = 499

// tellEvery is how often the log may say that lines are lost.
const tellEvery = 10 * time.Second

// lostLines is what the log has said of lines that were lost.
type lostLines struct {
	told accesslog.Snapshot
	next time.Time // not before
}

// tellLost logs that lines of the access log were lost: the first at once, later ones summed up.
// last says all that has not been said yet.
func (s *Server) tellLost(last bool) {
	now, before := s.accessCounts.Snapshot(), &s.lostLines.told
	lost := now.Full + now.Failed - before.Full - before.Failed
	if lost == 0 || !last && time.Now().Before(s.lostLines.next) {
		return
	}
	s.log.Warn("lines of the access log were lost; make room on its disk, or read its stream faster", "lines", lost,
		"buffer_full", now.Full-before.Full, "write_failed", now.Failed-before.Failed, "error", now.Err)
	s.lostLines = lostLines{now, time.Now().Add(tellEvery)}
}

// AccessLog returns what was counted of the access log.
func (s *Server) AccessLog() accesslog.Snapshot { return s.accessCounts.Snapshot() }
