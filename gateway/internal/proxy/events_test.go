package proxy

import (
	"net/http"
	"strings"
	"testing"

	"github.com/weir-go/weir/policy"
)

// TestEvents: however a stream is cut into parts, its last number counts, and nothing that is too long is kept.
func TestEvents(t *testing.T) {
	pol := compile(t, policy.Spec{Routes: []policy.RouteSpec{{Match: []string{"/"}, SettleEvent: "usage.total"}}}, policy.Options{})
	var rt *policy.Route
	for rt = range pol.Routes() {
	}
	for _, tt := range []struct {
		stream string
		units  int64 // -1: none
		done   bool
	}{
		{"", -1, false},
		{"data: {\"usage\":{\"total\":7}}\n\n", 7, false},
		{"data:{\"usage\":{\"total\":0}}\n\ndata:[DONE]\n\n", 0, true},
		{"data: {\"usage\":\r\ndata: {\"total\":7}}\r\n\r\ndata: [DONE]\r\n\r\n", 7, true},
		{"data: {\"usage\":\rdata: {\"total\":7}}\r\rdata: [DONE]\r\r", 7, true},
		{"id: 1\nevent: message_delta\n: usage\ndata: {\"usage\":{\"total\":7}}\nretry: 10\n\n", 7, false},
		{"data: {\"usage\":{\"total\":7}}\n\ndata: {\"usage\":{\"total\":9}}\n\ndata: {\"usage\":null}\n\n", 9, false},
		{"data: {\"usage\":{\"total\":7}}\n", -1, false}, // it has not ended
		{"data: {\"usage\":{\"total\":99999999999999999999}}\n\n", 1e15, false},
		{"data: {\"usage\":{\"total\":-7}}\n\ndata: {\"usage\":{\"total\":7.5}}\n\ndata: {\"usage\":{\"total\":\"7\"}}\n\n", -1, false},
		{"data: {\"usage\":{\"total\":[7]}}\n\ndata: {\"total\":7}\n\ndata: [{\"usage\":{\"total\":7}}]\n\ndata: {\"usage\":{\"total\":7}\n\n", -1, false},
		{"data: {\"text\":\"\\\"usage\\\":{\\\"total\\\":7}\"}\n\n", -1, false},
		{"data: " + strings.Repeat(" ", largestEvent) + "{\"usage\":{\"total\":7}}\n\ndata: {\"usage\":{\"total\":9}}\n\n", 9, false},
		{": " + strings.Repeat("x", 3*largestEvent) + "\n\ndata: {\"usage\":{\"total\":9}}\n\n", 9, false},
		{"data: {\"usage\":\n" + strings.Repeat("data: "+strings.Repeat(" ", 1<<10)+"\n", 100) + "data: {\"total\":7}}\n\n", -1, false},
	} {
		for _, size := range []int{1, 2, 3, 7, 4 << 10, len(tt.stream) + 1} {
			e := eventsOf(rt, 200, http.Header{"Content-Type": {"Text/Event-Stream; charset=utf-8"}})
			for rest := tt.stream; rest != ""; {
				n := min(size, len(rest))
				e.read([]byte(rest[:n]))
				rest = rest[n:]
				if cap(e.line) > 2*largestEvent || cap(e.data) > 2*largestEvent {
					t.Fatalf("%.60q: %d and %d bytes are kept", tt.stream, cap(e.line), cap(e.data))
				}
			}
			units := e.units
			if !e.said {
				units = -1
			}
			if units != tt.units || e.done != tt.done {
				t.Errorf("%.60q in parts of %d: %d, done %v; want %d, %v", tt.stream, size, units, e.done, tt.units, tt.done)
			}
		}
	}
}

// TestForms: what an answer may be that says what it cost, and what is counted if it does not.
func TestForms(t *testing.T) {
	pol := compile(t, policy.Spec{Routes: []policy.RouteSpec{{Match: []string{"/"}, SettleEvent: "usage.total"}}}, policy.Options{})
	var rt *policy.Route
	for rt = range pol.Routes() {
	}
	for _, tt := range []struct {
		kind, coding string
		status       int
		form         form
		fine         bool
	}{
		{"text/event-stream", "", 200, stream, true},
		{"text/event-stream", "identity", 200, stream, true},
		{"text/event-stream", "gzip", 200, unread, true},
		{"text/event-stream", "", 500, stream, false},
		{"Application/JSON; charset=utf-8", "", 201, document, true},
		{"application/hal+json", "", 200, document, true},
		{"application/json", "br", 200, unread, true},
		{"text/html", "", 200, unread, true},
		{"", "", 200, unread, true},
	} {
		e := eventsOf(rt, tt.status, http.Header{"Content-Type": {tt.kind}, "Content-Encoding": {tt.coding}})
		if e == nil || e.form != tt.form || e.fine != tt.fine {
			t.Errorf("%v: %+v", tt, e)
		}
	}
	for _, status := range []int{302, 404, 503} {
		if e := eventsOf(rt, status, http.Header{"Content-Type": {"application/json"}}); e != nil {
			t.Errorf("an answer with %d is read", status)
		}
	}
	if eventsOf(nil, 200, http.Header{"Content-Type": {"text/event-stream"}}) != nil {
		t.Error("an answer of no route is read")
	}
	e := eventsOf(rt, 200, http.Header{"Content-Type": {"application/json"}})
	for range 1000 {
		e.read(make([]byte, 1<<10))
	}
	if cap(e.data) > 2*largestEvent {
		t.Errorf("%d bytes of a long answer are kept", cap(e.data))
	}
}
