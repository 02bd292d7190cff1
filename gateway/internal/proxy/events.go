package proxy

import (
	"bytes"
	"net/http"
	"strings"

	"github.com/weir-go/weir/policy"
)

// largestEvent bounds what is kept of an event, of a line of it, and of an answer in JSON. Longer ones
// are passed on unread.
const largestEvent = 64 << 10

// events reads an answer as it passes, for what the request has cost. No byte waits for it.
type events struct {
	route *policy.Route
	form  form
	fine  bool   // the answer has a status of 2xx, and should say it
	line  []byte // what was kept of the line that has begun
	width int    // its bytes, at most one more than are kept
	data  []byte // of the event that has begun, its lines joined
	long  bool   // the event is too long
	cr    bool   // the last byte was a CR: a LF belongs to it

	units int64 // what the last event said that said something
	said  bool
	done  bool // the stream has said that it ends: [DONE]
}

// form is how an answer says what it has cost.
type form uint8

const (
	unread   form = iota
	stream        // in one of its events
	document      // in JSON, as if that were the only event
)

// eventsOf returns a reader of an answer, nil if that need not say what it costs. Errors need not.
func eventsOf(rt *policy.Route, status int, answer http.Header) *events {
	if !rt.SettlesByEvent() {
		return nil
	}
	e := &events{route: rt, fine: status >= 200 && status < 300}
	kind, _, _ := strings.Cut(answer.Get("Content-Type"), ";")
	coding := answer.Get("Content-Encoding")
	switch kind = strings.ToLower(strings.TrimSpace(kind)); {
	case coding != "" && !strings.EqualFold(coding, "identity"):
	case kind == "text/event-stream":
		e.form = stream
	case e.fine && (kind == "application/json" || strings.HasSuffix(kind, "+json")):
		e.form = document
	}
	if e.form == unread && !e.fine {
		return nil
	}
	return e
}

// readable asks for an answer that eventsOf can read: not compressed.
func readable(rt *policy.Route, request http.Header) {
	if rt.SettlesByEvent() {
		request["Accept-Encoding"] = []string{"identity"} // without the header a server may choose any
	}
}

// read reads the next part of the answer.
func (e *events) read(p []byte) {
	switch e.form {
	case unread:
		return
	case document:
		if e.long = e.long || len(e.data)+len(p) > largestEvent; !e.long {
			e.data = append(e.data, p...)
		}
		return
	}
	for len(p) > 0 {
		if e.cr && p[0] == '\n' {
			p = p[1:]
		}
		e.cr = false
		end := bytes.IndexAny(p, "\r\n")
		if end < 0 {
			e.addToLine(p)
			return
		}
		e.addToLine(p[:end])
		e.endLine()
		e.cr = p[end] == '\r'
		p = p[end+1:]
	}
}

func (e *events) addToLine(p []byte) {
	e.width = min(e.width+len(p), largestEvent+1)
	if e.width <= largestEvent {
		e.line = append(e.line, p...)
	}
}

// endLine takes a line of data into the event. An empty line ends the event.
func (e *events) endLine() {
	line, width := e.line, e.width
	e.line, e.width = e.line[:0], 0
	value, isData := bytes.CutPrefix(line, []byte("data:"))
	switch {
	case width == 0:
		e.endEvent()
	case width > largestEvent || isData && len(e.data)+len(value) >= largestEvent:
		e.long = true
	case !isData:
	default:
		if len(e.data) > 0 {
			e.data = append(e.data, '\n')
		}
		e.data = append(e.data, bytes.TrimPrefix(value, []byte(" "))...)
	}
}

func (e *events) endEvent() {
	switch data := e.data; {
	case e.long || len(data) == 0:
	case string(data) == "[DONE]":
		e.done = true
	default:
		if units, ok := e.route.SettleEvent(data); ok {
			e.units, e.said = units, true
		}
	}
	e.data, e.long = e.data[:0], false
}

// settleStream tells the gates what an answer has said in its body that it cost. whole says that it
// ended as it should. If it broke off, its last word is not the whole cost: the estimate of the
// admission stays, unless that was less.
func (x *exchange) settleStream(whole bool) {
	e := x.events
	if e == nil {
		return
	}
	x.events = nil
	if whole {
		e.endLine()
		e.endEvent()
	}
	whole = whole || e.done
	switch {
	case e.said && (whole || e.units > max(x.call.Work.Cost, 1)):
		x.upstream.policy.SetCost(x.call.Request.SetCost, e.units)
	case whole && !e.said && e.fine:
		x.unsettled()
	}
}
