package policy

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"
)

const everything = `{
  "identity": {"tenant": "path:db", "user": "header:X-User", "client": "peer", "priority": "const:high", "trusted": []},
  "gates": {
    "a": {"mode": "observe", "limit": {"controller": "aimd", "limit": 20, "min": 2, "max": 50, "threshold": "250ms",
      "percentile": 0.99, "backoff": 0.8, "window": "2s", "min_samples": 5,
      "queue": {"len": 10, "max_wait": -1, "order": "adaptive"}}},
    "b": {"limit": {"limit": 3}}
  },
  "routes": [{"name": "r", "match": ["/v1/{db}/x"], "gates": ["b", "a"], "priority": "critical", "cost": 2,
    "timeout": "1s", "max_wait": "-1"}]
}`

func TestParseSpec(t *testing.T) {
	got, err := ParseSpec([]byte(everything))
	if err != nil {
		t.Fatal(err)
	}
	want := Spec{
		Identity: IdentitySpec{Tenant: "path:db", User: "header:X-User", Client: "address", Priority: "const:high", Trusted: []string{}},
		Gates: map[string]GateSpec{
			"a": {Mode: Observe, Limit: &LimitSpec{Controller: "aimd", Limit: 20, Min: 2, Max: 50, Threshold: Duration(250 * time.Millisecond),
				Percentile: 0.99, Backoff: 0.8, Window: Duration(2 * time.Second), MinSamples: 5,
				Queue: QueueSpec{Len: 10, MaxWait: NoDuration, Order: "adaptive"}}},
			"b": {Limit: &LimitSpec{Limit: 3}},
		},
		Routes: []RouteSpec{{Name: "r", Match: []string{"/v1/{db}/x"}, Gates: []string{"b", "a"}, Priority: "critical", Cost: 2,
			Timeout: Duration(time.Second), MaxWait: NoDuration}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	compile(t, got, Options{})

	text, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	again, err := ParseSpec(text)
	got.Identity.Trusted = nil // an empty list is left out
	if err != nil || !reflect.DeepEqual(again, got) {
		t.Errorf("after a round trip %+v: %v", again, err)
	}
}

func TestParseSpecFaults(t *testing.T) {
	tests := []struct {
		name, text string
		want       []string
	}{
		{"unknown fields", "{\n\"gate\": {},\n\"gates\": {\"api\": {\"limit\": {\"limt\": 5, \"que\": {}}}},\n\"routes\": [{\"match\": [], \"Name\": 1}]}",
			[]string{"line 2: gate: there is no such field; write gates",
				"line 3: gates.api.limit.limt: there is no such field; write limit",
				"line 3: gates.api.limit.que: there is no such field; known here: controller, limit",
				"line 4: routes[0].Name: there is no such field; write name"}},
		{"wrong types", `{"identity": "peer", "gates": [1, {"a": [2]}], "routes": {"a": []}}`,
			[]string{`line 1: identity: is the text "peer"; write fields`, "line 1: gates: is a list; write fields", "line 1: routes: is a group of fields; write a list"}},
		{"wrong values", `{"gates": {"a": {"mode": true, "limit": {"limit": 1.5, "min": 99999999999999999999, "percentile": "x", "threshold": 250, "window": {}}}}}`,
			[]string{`line 1: gates.a.mode: "true" is true or false, not a text; write one of enforce`, `line 1: gates.a.limit.limit: "1.5" is not a whole number`,
				`line 1: gates.a.limit.min: "99999999999999999999" is not a whole number`, `line 1: gates.a.limit.percentile: "x" is not a number`,
				"line 1: gates.a.limit.threshold: 250 has no unit; write 250ms", `line 1: gates.a.limit.window: is a group of fields; write a duration such as 250ms`}},
		{"twice", `{"routes": [], "gates": {"a": {}, "a": {}}, "routes": []}`,
			[]string{"line 1: routes: is written twice, first on line 1", "line 1: gates.a: is written twice"}},
		{"empty", "", []string{"line 1: the text ends in the middle; write valid JSON"}},
		{"cut off", `{"gates": {"a": {"limit":`, []string{"line 1: the text ends in the middle"}},
		{"no JSON", "gates:\n  api: 1", []string{"line 1: invalid character 'g'"}},
		{"comma", `{"routes": [],}`, []string{"line 1: invalid character '}'"}},
		{"wrong bracket", `{"routes": [}`, []string{"line 1: invalid character '}'"}},
		{"more", "{}\n{}", []string{"line 2: there is more text after the end"}},
		{"null", `{"gates": null, "routes": [null]}`, []string{"line 1: routes[0]: has no value"}},
		{"not an object", `[]`, []string{"line 1: is a list; write fields"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := ParseSpec([]byte(tt.text))
			wantFaults(t, err, tt.want)
		})
	}
}

func FuzzCompile(f *testing.F) {
	f.Add([]byte(everything))
	f.Add([]byte(`{"gates": {"a": {"limit": {"limit": 9223372036854775807, "queue": {"len": 99999999999}}}}}`))
	f.Add([]byte(`{"routes": [{"match": ["/a/{x}", "/{y}/b", "GET /{x...}", "POST /{$}"]}], "identity": {"user": "path:y"}}`))
	f.Add([]byte(`{"gates": {"a": {"limit": {"controller": "aimd", "percentile": 1e300, "min": -1, "max": -1}}}}`))
	f.Add([]byte(`{"identity": {"trusted": ["::/0", "1.2.3.4", "fe80::%1/64"], "tenant": "header:Host"}}`))
	f.Add([]byte(`{"gates":{"":{"limit":{"limit":1}}},"routes":[{"name":"\u0000","gates":[""]}]}`))
	f.Add([]byte(`[[[[[[`))
	f.Fuzz(func(t *testing.T, text []byte) {
		spec, err := ParseSpec(text)
		if err != nil {
			faultsOf(t, err)
			return
		}
		p, err := Compile(spec, Options{})
		if err != nil {
			if got := faultsOf(t, err); len(got) == 0 {
				t.Error("an error without a fault")
			}
			return
		}
		defer p.Close()
		if len(p.routes) != len(spec.Routes) || len(p.gates) != len(spec.Gates) {
			t.Errorf("%d routes and %d gates of %d and %d", len(p.routes), len(p.gates), len(spec.Routes), len(spec.Gates))
		}
		p.Match(get("/a/b"))
		for rt := range p.Routes() {
			permit, err := rt.Gate().Admit(t.Context(), rt.Work())
			if err != nil {
				t.Errorf("an idle policy refuses its own route %q: %v", rt.Name(), err)
			}
			permit.Done(0)
		}
	})
}
