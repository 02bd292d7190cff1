package policy

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir"
)

func TestTimeoutHeaders(t *testing.T) {
	const year = 365 * 24 * time.Hour
	for _, tt := range []struct {
		name, value string
		want        time.Duration
		ok          bool
	}{
		{"grpc-timeout", "1S", time.Second, true},
		{"grpc-timeout", "250m", 250 * time.Millisecond, true},
		{"grpc-timeout", "5u", 5 * time.Microsecond, true},
		{"grpc-timeout", "99999999n", 99999999, true},
		{"grpc-timeout", "2M", 2 * time.Minute, true},
		{"grpc-timeout", "1H", time.Hour, true},
		{"grpc-timeout", "0n", 0, true},
		{"grpc-timeout", "99999999H", year, true},
		{"grpc-timeout", "999999999n", 0, false}, // nine digits
		{"grpc-timeout", "1s", 0, false},
		{"grpc-timeout", "-1S", 0, false},
		{"grpc-timeout", "+1S", 0, false},
		{"grpc-timeout", "1.5S", 0, false},
		{"grpc-timeout", "S", 0, false},
		{"grpc-timeout", "", 0, false},
		{"grpc-timeout", "1", 0, false},
		{"X-Request-Timeout", "2", 2 * time.Second, true},
		{"X-Request-Timeout", "0.25", 250 * time.Millisecond, true},
		{"X-Request-Timeout", "1m30s", 90 * time.Second, true},
		{"X-Request-Timeout", "250ms", 250 * time.Millisecond, true},
		{"X-Request-Timeout", "99999999999999999999", year, true},
		{"X-Request-Timeout", "2000000h", year, true},
		{"X-Request-Timeout", "0", 0, false},
		{"X-Request-Timeout", "0s", 0, false},
		{"X-Request-Timeout", "-1", 0, false},
		{"X-Request-Timeout", "-1s", 0, false},
		{"X-Request-Timeout", "1e9", 0, false},
		{"X-Request-Timeout", "NaN", 0, false},
		{"X-Request-Timeout", "Inf", 0, false},
		{"X-Request-Timeout", "0x10", 0, false},
		{"X-Request-Timeout", "1.2.3", 0, false},
		{"X-Request-Timeout", "PT5S", 0, false},
		{"X-Request-Timeout", "soon", 0, false},
		{"X-Request-Timeout", "0.0000000001", 0, false},
		{"X-Request-Timeout", strings.Repeat("1", 10<<10), 0, false},
		{"X-Timeout-Ms", "250", 250 * time.Millisecond, true},
		{"X-Timeout-Ms", "0.5", 500 * time.Microsecond, true},
		{"X-Timeout-Ms", "250ms", 0, false},
		{"X-Timeout-Ms", "-250", 0, false},
	} {
		h := newTimeoutHeader(tt.name)
		r := from("192.0.2.1:9", tt.name+": "+tt.value)
		d, value, bad := h.sent(r)
		if d != tt.want || (value != "") != tt.ok || (bad == 0) != tt.ok {
			t.Errorf("%s: %.40q is %v (%q, %d bad), want %v, %t", tt.name, tt.value, d, value, bad, tt.want, tt.ok)
		}
	}
}

// matched is the work of a request that carries headers, and how long it has left
// and may wait.
func matched(t *testing.T, spec Spec, remote string, headers ...string) (left, wait time.Duration) {
	t.Helper()
	p := compile(t, spec, Options{})
	_, w := p.Match(from(remote, headers...))
	if !w.Deadline.IsZero() {
		left = time.Until(w.Deadline)
	}
	return left, w.MaxWait
}

// The earliest deadline holds, whoever brings it.
func TestEarliestDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		route := func(timeout time.Duration) Spec {
			return Spec{Routes: []RouteSpec{{Match: []string{"/"}, Timeout: Duration(timeout)}}}
		}
		off := route(time.Second)
		off.Deadline.Headers = []string{}
		other := route(0)
		other.Deadline.Headers = []string{"X-Envoy-Expected-Rq-Timeout-Ms"}
		for _, tt := range []struct {
			spec    Spec
			headers string
			want    time.Duration
		}{
			{route(0), "", 0},
			{route(time.Second), "", time.Second},
			{route(time.Second), "X-Request-Timeout: 0.5", 500 * time.Millisecond},
			{route(time.Second), "X-Request-Timeout: 5", time.Second},
			{route(time.Second), "Grpc-Timeout: 99999999H", time.Second},
			{route(time.Second), "X-Request-Timeout: soon", time.Second},
			{route(time.Second), "X-Request-Timeout: -1", time.Second},
			{route(0), "X-Request-Timeout: soon", 0},
			{route(0), "Grpc-Timeout: 300m|X-Request-Timeout: 0.2", 200 * time.Millisecond},
			{route(0), "Grpc-Timeout: 100m|X-Request-Timeout: 0.2", 100 * time.Millisecond},
			{route(0), "X-Request-Timeout: 3|X-Request-Timeout: 2|X-Request-Timeout: soon", 2 * time.Second},
			{off, "X-Request-Timeout: 0.5", time.Second},
			{other, "X-Request-Timeout: 0.5", 0},
			{other, "X-Envoy-Expected-Rq-Timeout-Ms: 15", 15 * time.Millisecond},
		} {
			for _, remote := range []string{"127.0.0.1:9", "192.0.2.1:9"} {
				var headers []string
				if tt.headers != "" {
					headers = strings.Split(tt.headers, "|")
				}
				if left, _ := matched(t, tt.spec, remote, headers...); left != tt.want {
					t.Errorf("%s with %s: %v left, want %v", remote, tt.headers, left, tt.want)
				}
			}
		}
	})
}

// Where the earliest deadline is served first, a stranger's only bounds its wait.
func TestDeadlineIsNoAdvantage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, tt := range []struct {
			order, remote, sent string
			maxWait             time.Duration // of the route
			left, wait          time.Duration
		}{
			{"edf", "127.0.0.1:9", "0.5", 0, 500 * time.Millisecond, 0},
			{"edf", "192.0.2.1:9", "0.5", 0, time.Second, 500 * time.Millisecond},
			{"edf", "192.0.2.1:9", "0.5", 100 * time.Millisecond, time.Second, 100 * time.Millisecond},
			{"edf", "192.0.2.1:9", "0.5", -1, time.Second, -1},
			{"edf", "192.0.2.1:9", "60", 0, time.Second, time.Minute},
			{"edf", "192.0.2.1:9", "soon", 0, time.Second, 0},
			{"fifo", "192.0.2.1:9", "0.5", 0, 500 * time.Millisecond, 0},
		} {
			spec := limitSpec(LimitSpec{Limit: 1, Queue: QueueSpec{Order: tt.order}})
			spec.Routes = []RouteSpec{{Match: []string{"/"}, Timeout: Duration(time.Second), MaxWait: Duration(tt.maxWait)}}
			if left, wait := matched(t, spec, tt.remote, "X-Request-Timeout: "+tt.sent); left != tt.left || wait != tt.wait {
				t.Errorf("%s, %s: %s leaves %v and a wait of %v, want %v and %v", tt.order, tt.remote, tt.sent, left, wait, tt.left, tt.wait)
			}
		}
	})
}

// A grpc-timeout of 0 is a deadline that has come.
func TestTimeoutIsOver(t *testing.T) {
	p := compile(t, routeSpec(RouteSpec{Match: []string{"/"}, Gates: []string{"api"}}), Options{})
	rt, w := p.Match(from("192.0.2.1:9", "Grpc-Timeout: 0n"))
	_, err := rt.Gate().Admit(t.Context(), w)
	if r := weir.AsRejection(err); r == nil || r.Reason != weir.ReasonDeadline {
		t.Errorf("%v, want a refusal for its deadline", err)
	}
}

// What goes on to the upstream is what the policy decided, and the time that is
// left.
func TestForward(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		spec := Spec{
			Identity: IdentitySpec{Tenant: "header:X-Tenant", User: "header:X-User", Priority: "header:X-Priority",
				Priorities: map[string]string{"workload-low": "background"}},
			Routes: []RouteSpec{{Match: []string{"/"}, Priority: "high"}, {Match: []string{"/t"}, Timeout: Duration(2 * time.Second)}},
		}
		const spent = 250 * time.Millisecond
		for _, tt := range []struct{ remote, path, sent, want string }{
			{"192.0.2.1:9", "/", "", "X-Priority: high"},
			{"192.0.2.1:9", "/", "X-Priority: critical|X-Tenant: acme|X-User: root|X-Other: 1", "X-Other: 1|X-Priority: high"},
			{"127.0.0.1:9", "/", "X-Priority: critical|X-Tenant: acme|X-User: root", "X-Priority: critical|X-Tenant: acme|X-User: root"},
			{"127.0.0.1:9", "/", "X-Priority: workload-low", "X-Priority: workload-low"},
			{"127.0.0.1:9", "/", "X-Priority: urgent", "X-Priority: high"},
			{"127.0.0.1:9", "/", "X-Tenant: a|X-Tenant: b|X-Priority: critical|X-Priority: normal", "X-Priority: high"},
			{"192.0.2.1:9", "/", "X-Request-Timeout: 2", "X-Priority: high|X-Request-Timeout: 1.75"},
			{"192.0.2.1:9", "/", "X-Request-Timeout: 2s", "X-Priority: high|X-Request-Timeout: 1750ms"},
			{"192.0.2.1:9", "/", "X-Request-Timeout: 0.1", "X-Priority: high|X-Request-Timeout: 0.001"},
			{"192.0.2.1:9", "/", "X-Request-Timeout: soon", "X-Priority: high|X-Request-Timeout: soon"},
			{"192.0.2.1:9", "/", "Grpc-Timeout: 1S", "Grpc-Timeout: 750000u|X-Priority: high"},
			{"192.0.2.1:9", "/", "Grpc-Timeout: 99999999H", "Grpc-Timeout: 31535999S|X-Priority: high"},
			{"192.0.2.1:9", "/", "Grpc-Timeout: 1S|X-Request-Timeout: 5|X-Request-Timeout: 3", "Grpc-Timeout: 750000u|X-Priority: high|X-Request-Timeout: 0.75"},
			{"192.0.2.1:9", "/t", "", "X-Priority: normal|X-Request-Timeout: 1.75"},
			{"192.0.2.1:9", "/t", "Content-Type: application/grpc+proto", "Content-Type: application/grpc+proto|Grpc-Timeout: 1750000u|X-Priority: normal"},
			{"192.0.2.1:9", "/t", "X-Request-Timeout: 60", "X-Priority: normal|X-Request-Timeout: 1.75"},
			{"192.0.2.1:9", "/t", "X-Request-Timeout: soon", "X-Priority: normal|X-Request-Timeout: soon"},
		} {
			p := compile(t, spec, Options{})
			var headers []string
			if tt.sent != "" {
				headers = strings.Split(tt.sent, "|")
			}
			in := from(tt.remote, headers...)
			in.URL.Path = tt.path
			_, w := p.Match(in)
			arrived := time.Now()
			time.Sleep(spent)
			out := in.Header.Clone()
			p.Forward(out, in, &w, arrived)
			var b strings.Builder
			if err := out.Write(&b); err != nil {
				t.Fatal(err)
			}
			got := strings.ReplaceAll(strings.TrimSuffix(b.String(), "\r\n"), "\r\n", "|")
			if got != tt.want {
				t.Errorf("%s%s with %q: forwarded %q, want %q", tt.remote, tt.path, tt.sent, got, tt.want)
			}
		}
	})
}

func TestTimeoutFaults(t *testing.T) {
	_, err := Compile(Spec{Deadline: DeadlineSpec{Headers: []string{"X Timeout", "grpc-timeout", "Grpc-Timeout"}}}, Options{})
	got := strings.Join(faultsOf(t, err), "\n")
	for _, want := range []string{`deadline.headers[0]: "X Timeout" is no header name`, `deadline.headers[2]: "Grpc-Timeout" is in the list already`} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in\n%s", want, got)
		}
	}
}

// Whatever is sent, nobody gets longer than the route allows, nothing panics, and
// what goes on is a time that is read as at most what was left.
func FuzzTimeouts(f *testing.F) {
	for _, v := range []string{"1S", "99999999H", "-1", "0.5", "1e300", "250ms", "9223372036854775807", ".", "5H", "0n"} {
		f.Add(v, v)
	}
	const timeout = time.Hour
	p := compile(f, Spec{Routes: []RouteSpec{{Match: []string{"/"}, Timeout: Duration(timeout)}}}, Options{})
	f.Fuzz(func(t *testing.T, grpc, plain string) {
		in := from("192.0.2.1:9")
		in.Header = http.Header{grpcTimeout: {grpc}, "X-Request-Timeout": {plain}}
		arrived := time.Now()
		_, w := p.Match(in)
		if w.Deadline.IsZero() || w.Deadline.After(time.Now().Add(timeout)) {
			t.Errorf("deadline %v for %q, %q", w.Deadline, grpc, plain)
		}
		out := in.Header.Clone()
		p.Forward(out, in, &w, arrived)
		for _, h := range p.timeouts {
			before, understood, _ := h.sent(in)
			if after, value, _ := h.sent(&http.Request{Header: out}); understood != "" && (value == "" || after > max(before, time.Millisecond)) {
				t.Errorf("%s: %q became %q", h.key, understood, out[h.key])
			}
		}
	})
}
