package policy

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/weir-go/weir"
)

// fixed is a gate with a fixed limit where nothing waits.
func fixed(n int64) GateSpec {
	return GateSpec{Limit: &LimitSpec{Limit: n, Queue: QueueSpec{Len: -1}}}
}

// waiting is a gate with a fixed limit and a room.
func waiting(n int64) GateSpec { return GateSpec{Limit: &LimitSpec{Limit: n}} }

// with is a spec with that controller and what it cannot do without.
func with(controller string, l LimitSpec) LimitSpec {
	l.Controller = controller
	switch controller {
	case "lag":
		l.Lag.Signal = "runnable"
	case "drain":
		l.Drain.Signal = "runnable"
	case "resource":
		l.Signals = []string{"runnable"}
	}
	return l
}

func compile(t testing.TB, spec Spec, opts Options) *Policy {
	t.Helper()
	p, err := Compile(spec, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func admit(t testing.TB, g weir.Gate) weir.Permit {
	t.Helper()
	p, err := g.(weir.TryAdmitter).TryAdmit(weir.Work{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// request makes a server-side request whose path may be anything.
func request(method, host, path string) *http.Request {
	u, err := url.ParseRequestURI(path)
	if err != nil {
		u = &url.URL{Path: path}
	}
	return &http.Request{Method: method, Host: host, URL: u, Header: http.Header{}, RemoteAddr: "127.0.0.1:1234"}
}

func get(path string) *http.Request { return request("GET", "example.com", path) }

// from is a request from a peer with headers, "Name: value" each.
func from(remote string, headers ...string) *http.Request {
	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr = remote
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Add(name, value)
	}
	return r
}

// wantFaults checks that err is as many faults as want, which begin so.
func wantFaults(t testing.TB, err error, want []string) {
	t.Helper()
	got := faultsOf(t, err)
	if len(got) != len(want) {
		t.Fatalf("got %d faults, want %d:\n%s", len(got), len(want), strings.Join(got, "\n"))
	}
	for i := range want {
		if !strings.HasPrefix(got[i], want[i]) {
			t.Errorf("fault %d is\n%s\nwant\n%s", i, got[i], want[i])
		}
	}
}

// faultsOf returns what is wrong, one "path: problem; instead" each.
func faultsOf(t testing.TB, err error) []string {
	t.Helper()
	if err == nil {
		return nil
	}
	var faults *Faults
	if !errors.As(err, &faults) {
		t.Fatalf("error is %T, want *Faults: %v", err, err)
	}
	texts := make([]string, len(faults.List))
	for i, f := range faults.List {
		texts[i] = f.Error()
	}
	return texts
}

// databases is a gate with a limit for each tenant.
func databases(limit int64, each EachSpec) Spec {
	return Spec{Gates: map[string]GateSpec{"db": {Limit: &LimitSpec{Limit: limit, Queue: QueueSpec{Len: -1}}, Each: &each}}}
}

func held(t *testing.T, g weir.TryAdmitter, w weir.Work, n int) (permits []weir.Permit) {
	t.Helper()
	for range n {
		if p, err := g.TryAdmit(w); err == nil {
			permits = append(permits, p)
		}
	}
	return permits
}
