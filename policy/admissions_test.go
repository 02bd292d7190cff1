package policy

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir"
)

func admissionsSpec() Spec {
	return Spec{
		Identity: IdentitySpec{Priority: "header:X-Priority", Priorities: map[string]string{"urgent": "high"}, Admissions: "header:X-Admissions"},
		Gates:    map[string]GateSpec{"api": fixed(10)},
		Routes: []RouteSpec{
			{Name: "scan", Match: []string{"/"}, Gates: []string{"api"}, DemoteAfter: 3},
			{Name: "plain", Match: []string{"/plain"}, Gates: []string{"api"}},
			{Name: "open", Match: []string{"/open"}, DemoteAfter: 1},
		},
	}
}

// Work is demoted from the admission on that the route says, if a trusted peer has
// counted them, and everybody further on hears of it.
func TestDemoteAfter(t *testing.T) {
	p := compile(t, admissionsSpec(), Options{})
	for _, tt := range []struct {
		remote, path, headers string
		want                  weir.Priority
		admissions, priority  string // of what is passed on
		ignored, demoted      uint64
	}{
		{"127.0.0.1:1", "/", "", weir.Normal, "1", "normal", 0, 0},
		{"127.0.0.1:1", "/", "X-Admissions: 0", weir.Normal, "1", "normal", 0, 0},
		{"127.0.0.1:1", "/", "X-Admissions: 2", weir.Normal, "3", "normal", 0, 0},
		{"127.0.0.1:1", "/", "X-Admissions: 3", weir.Background, "4", "background", 0, 1},
		{"127.0.0.1:1", "/", "X-Admissions: 3, X-Priority: urgent", weir.Background, "4", "background", 0, 1},
		{"127.0.0.1:1", "/", "X-Admissions: 2, X-Priority: urgent", weir.High, "3", "urgent", 0, 0},
		{"127.0.0.1:1", "/", "X-Admissions: 9, X-Priority: critical", weir.Critical, "10", "critical", 0, 0},
		{"127.0.0.1:1", "/", "X-Admissions: 9, X-Priority: background", weir.Background, "10", "background", 0, 0},
		{"127.0.0.1:1", "/", "X-Admissions: 99999999999999999999999", weir.Background, "1073741825", "background", 0, 1},
		{"127.0.0.1:1", "/", "X-Admissions: -3", weir.Normal, "1", "normal", 1, 0},
		{"127.0.0.1:1", "/", "X-Admissions: 3, X-Admissions: 4", weir.Normal, "1", "normal", 1, 0},
		{"192.0.2.1:1", "/", "X-Admissions: 3, X-Priority: high", weir.Normal, "1", "normal", 0, 0},
		{"127.0.0.1:1", "/plain", "X-Admissions: 9", weir.Normal, "10", "normal", 0, 0},
		{"127.0.0.1:1", "/open", "X-Admissions: 9", weir.Background, "9", "background", 0, 1},
		{"127.0.0.1:1", "/open", "", weir.Normal, "", "normal", 0, 0},
	} {
		i, d := p.Ignored().Admissions, p.Demoted()
		var headers []string
		if tt.headers != "" {
			headers = strings.Split(tt.headers, ", ")
		}
		in := from(tt.remote, headers...)
		in.URL.Path = tt.path
		_, w := p.Match(in)
		out := in.Header.Clone()
		p.Forward(out, in, &w, time.Now())
		if w.Priority != tt.want || out.Get("X-Admissions") != tt.admissions || out.Get("X-Priority") != tt.priority {
			t.Errorf("%s %s with %q: %v, passed on %v; want %v, %q, %q", tt.remote, tt.path, tt.headers, w.Priority, out, tt.want, tt.admissions, tt.priority)
		}
		if i, d := p.Ignored().Admissions-i, p.Demoted()-d; i != tt.ignored || d != tt.demoted {
			t.Errorf("%s with %q: %d ignored, %d demoted; want %d, %d", tt.remote, tt.headers, i, d, tt.ignored, tt.demoted)
		}
	}
	if got := p.IdentityHeaders(); len(got) != 2 || got[0] != "X-Admissions" {
		t.Errorf("headers that strangers may not bring: %q", got)
	}
}

// A chain of servers demotes an operation that each of them sees once: what it has
// been admitted upstream counts.
func TestAdmissionsArePassedOn(t *testing.T) {
	p := compile(t, admissionsSpec(), Options{})
	header := http.Header{}
	var classes []string
	for range 5 {
		in := from("127.0.0.1:1")
		in.Header = header
		_, w := p.Match(in)
		header = header.Clone()
		p.Forward(header, in, &w, time.Now())
		classes = append(classes, w.Priority.String())
	}
	if got := strings.Join(classes, " "); got != "normal normal normal background background" {
		t.Error(got)
	}
}

// What was demoted is not forgotten by a reload, which changes after how many
// admissions.
func TestDemotionReload(t *testing.T) {
	spec := admissionsSpec()
	p := compile(t, spec, Options{})
	p.Match(from("127.0.0.1:1", "X-Admissions: 5"))
	spec.Routes[0].DemoteAfter = 7
	next := compile(t, spec, Options{Previous: p})
	if _, w := next.Match(from("127.0.0.1:1", "X-Admissions: 5")); w.Priority != weir.Normal || next.Demoted() != 1 {
		t.Errorf("%v, %d demoted", w.Priority, next.Demoted())
	}
}

func TestAdmissionsFaults(t *testing.T) {
	for _, tt := range []struct {
		admissions string
		routes     []RouteSpec
		want       []string
	}{
		{"peer", nil, []string{"identity.admissions: admissions are counted in a header only"}},
		{"X-Count", nil, []string{`identity.admissions: "X-Count" is no source; did you mean header:X-Count?`}},
		{"header:x-priority", nil, []string{"identity.admissions: X-Priority says something else already"}},
		{"header:Grpc-Timeout", nil, []string{"identity.admissions: Grpc-Timeout says something else already"}},
		{"", []RouteSpec{{Name: "a", DemoteAfter: 3}}, []string{"routes[0].demote_after: nothing says how often an operation has been admitted; write identity: {admissions: header:X-Admissions}"}},
		{"header:X-Count", []RouteSpec{{Name: "a", DemoteAfter: -1}, {Name: "b", DemoteAfter: 3, Exempt: true}, {Name: "c", DemoteAfter: 3, Priority: "critical"}},
			[]string{"routes[0].demote_after: -1 is out of range", "routes[1].demote_after: exempt and critical", "routes[2].demote_after: exempt and critical"}},
	} {
		_, err := Compile(Spec{Identity: IdentitySpec{Priority: "header:X-Priority", Admissions: tt.admissions}, Routes: tt.routes}, Options{})
		got := strings.Join(faultsOf(t, err), "\n")
		for _, want := range tt.want {
			if !strings.Contains(got, want) {
				t.Errorf("no %s in\n%s", want, got)
			}
		}
	}
}
