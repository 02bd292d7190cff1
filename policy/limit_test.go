package policy

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/internal/jsontree"
	"github.com/weir-go/weir/internal/setting"
	"github.com/weir-go/weir/limit"
)

func TestLimitSpecReachesTheLimiter(t *testing.T) {
	spec := LimitSpec{
		Controller: "aimd", Limit: 7, Min: 2, Max: 90, Threshold: Duration(time.Second), Percentile: 0.9, Backoff: 0.7,
		Window: Duration(3 * time.Second), MinSamples: 4,
		Queue: QueueSpec{Len: 12, MaxWait: Duration(time.Minute), Order: "lifo",
			Shares:  map[string]float64{"background": 0.1, "critical": 0.5},
			Weights: WeightsSpec{Users: map[string]float64{"alice": 2}, Tenants: map[string]float64{"acme": 3}}},
		Exempt: 9, RefuseOversize: true,
	}
	for word, order := range map[string]limit.Order{"": limit.Adaptive, "fifo": limit.FIFO, "lifo": limit.LIFO, "adaptive": limit.Adaptive, "edf": limit.EDF} {
		spec.Queue.Order = word
		if got, want := spec.Queue.queue(), (limit.Queue{Len: 12, MaxWait: time.Minute, Order: order,
			Shares:  map[weir.Priority]float64{weir.Background: 0.1, weir.Critical: 0.5},
			Weights: limit.Weights{Users: map[string]float64{"alice": 2}, Tenants: map[string]float64{"acme": 3}}}); !reflect.DeepEqual(got, want) {
			t.Errorf("order %q: got %+v, want %+v", word, got, want)
		}
	}
	cfg, err := spec.config()
	if err != nil || cfg.Controller.Name() != "aimd" || cfg.Limit != 0 || cfg.Exempt != 9 || !cfg.RefuseOversize {
		t.Errorf("got %+v: %v", cfg, err)
	}
	again, _ := spec.config()
	if again.Controller == cfg.Controller {
		t.Error("two limiters would share a controller")
	}
}

// A limit with a number keeps it; one without finds it.
func TestTheDefaultController(t *testing.T) {
	for _, tt := range []struct {
		spec       LimitSpec
		controller string
		limit      int64 // 0: whatever the controller begins with
	}{
		{LimitSpec{}, "belief", 0},
		{LimitSpec{Max: 7}, "belief", 0},
		{LimitSpec{Queue: QueueSpec{Len: -1}}, "belief", 0},
		{LimitSpec{Limit: 5}, "fixed", 5},
		{LimitSpec{Controller: "fixed", Limit: 5}, "fixed", 5},
		{LimitSpec{Controller: "belief", Limit: 5}, "belief", 5},
		{LimitSpec{Controller: "knee", Limit: 5}, "knee", 5},
	} {
		p := compile(t, limitSpec(tt.spec), Options{})
		if s := p.Gate("api").Snapshot(); s.Controller != tt.controller || tt.limit != 0 && s.Limit != tt.limit {
			t.Errorf("%+v: %s at %d, want %s at %d", tt.spec, s.Controller, s.Limit, tt.controller, tt.limit)
		}
	}
	if w, want := Controllers()[0], control.Default().Name(); w != want {
		t.Errorf("the first word is %s, want %s, the library's default", w, want)
	}
}

func TestOptionsReachTheLimiter(t *testing.T) {
	spec := apiSpec(LimitSpec{Limit: 1})
	c := &compiler{spec: &spec, opts: &Options{FindLeaks: true, Now: func() time.Duration { return 7 }}}
	cfg, err := c.config("api")
	if err != nil || cfg.Name != "api" || !cfg.FindLeaks || cfg.Now() != 7 {
		t.Errorf("got %+v: %v", cfg, err)
	}
}

// describe writes what a controller is made of, pointers followed and functions
// left out.
func describe(v reflect.Value) string {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return "nil"
		}
		return describe(v.Elem())
	case reflect.Struct:
		var b strings.Builder
		for i := range v.NumField() {
			fmt.Fprintf(&b, "%s:%s ", v.Type().Field(i).Name, describe(v.Field(i)))
		}
		return "{" + b.String() + "}"
	case reflect.Func:
		return "func"
	}
	return fmt.Sprint(v)
}

// others are values that a setting may have beside its default; at least one of
// them is in bounds for each.
func others(v reflect.Value) []any {
	switch v.Interface().(type) {
	case Duration:
		return []any{Duration(123 * time.Millisecond)}
	case string:
		return []any{"min"}
	case bool:
		return []any{true}
	case int:
		return []any{5}
	case int64:
		return []any{int64(25)}
	case float64:
		return []any{0.41, 0.61, 1.7, 4.5, 1e6}
	}
	return nil
}

// Each setting that a controller is said to have changes the controller that is
// made.
func TestEverySettingReachesItsController(t *testing.T) {
	for _, k := range kinds {
		var plain LimitSpec
		if k.word == "fixed" {
			plain.Limit = 7
		}
		c, err := k.make(&plain)
		if err != nil {
			t.Fatalf("%s: %v", k.word, err)
		}
		if c.Name() != k.word {
			t.Errorf("the controller %s calls itself %s", k.word, c.Name())
		}
		before := describe(reflect.ValueOf(c))
		var try func(path string, of func(*LimitSpec) reflect.Value)
		try = func(path string, of func(*LimitSpec) reflect.Value) {
			t.Helper()
			if v := of(&plain); v.Kind() == reflect.Struct {
				for _, f := range setting.Fields(v.Type()) {
					try(path+"."+f.Key, func(l *LimitSpec) reflect.Value { return of(l).FieldByIndex(f.Index) })
				}
				return
			}
			for _, value := range others(of(&plain)) {
				spec := plain
				of(&spec).Set(reflect.ValueOf(value))
				if c, err := k.make(&spec); err == nil && describe(reflect.ValueOf(c)) != before {
					return
				}
			}
			t.Errorf("%s: setting %s changes nothing", k.word, path)
		}
		for _, f := range setting.Fields(reflect.TypeFor[LimitSpec]()) {
			if f.Key == "limit" || f.Key != "controller" && f.Key != "signals" && k.takes(f.Key) {
				try(f.Key, func(l *LimitSpec) reflect.Value { return reflect.ValueOf(l).Elem().FieldByIndex(f.Index) })
			}
		}
	}
}

// A fault that the controller finds is told at the setting.
func TestControllersFaultsHavePaths(t *testing.T) {
	f := func(spec LimitSpec, want ...string) {
		t.Helper()
		_, err := Compile(limitSpec(spec), Options{})
		if got := faultsOf(t, err); strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	f(LimitSpec{Controller: "vegas", Backoff: 2, Take: "median", Vegas: VegasSpec{control.VegasConfig{Alpha: 9, Beta: 4}}, Percentile: 95},
		`gates.api.limit.take: "median" is not known; did you mean mean?`,
		"gates.api.limit.percentile: is 95, too large; write at most 1, or 0.95 for 95 %",
		"gates.api.limit.backoff: is 2, too large; write at most 0.999",
		"gates.api.limit.vegas.beta: 4 will not do; must not be below alpha, which is 9")
	f(LimitSpec{Controller: "gradient2", Min: 100, Gradient2: Gradient2Spec{control.Gradient2Config{Queue: -1}}},
		"gates.api.limit.gradient2.queue: is -1, too small; write at least 1")
	f(LimitSpec{Controller: "probe", Probe: ProbeSpec{ProbeConfig: control.ProbeConfig{Step: 0.9}}, Vegas: VegasSpec{control.VegasConfig{Alpha: 1}}},
		"gates.api.limit.probe.step: is 0.9, too large; write at most 0.5",
		"gates.api.limit.vegas: means nothing to the controller probe; leave it out, or write controller: vegas")
}

// The defaults in the published schema are the controllers' own: to write one
// down changes nothing.
func TestSchemaHasTheControllersDefaults(t *testing.T) {
	data, err := os.ReadFile("../docs/config.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	type property struct {
		Ref     string          `json:"$ref"`
		Default json.RawMessage `json:"default"`
	}
	var schema struct {
		Defs map[string]struct {
			Properties map[string]property `json:"properties"`
		} `json:"$defs"`
	}
	if err := json.Unmarshal(data, &schema); err != nil {
		t.Fatal(err)
	}
	tried := 0
	same := func(k kind, text string) {
		t.Helper()
		tried++
		var plain, spec LimitSpec
		var faults fault.List
		if setting.Decode(jsontree.Parse([]byte(text), &faults), &spec, &faults); faults.Len() > 0 {
			t.Fatalf("%s: %v", text, faults.Err(""))
		}
		a, errA := k.make(&plain)
		b, errB := k.make(&spec)
		if errA != nil || errB != nil || describe(reflect.ValueOf(a)) != describe(reflect.ValueOf(b)) {
			t.Errorf("%s: %s is not its default %v %v", k.word, text, errA, errB)
		}
	}
	for _, k := range kinds {
		for key, p := range schema.Defs["LimitSpec"].Properties {
			switch {
			case key == k.word:
				for inner, p := range schema.Defs[strings.TrimPrefix(p.Ref, "#/$defs/")].Properties {
					if p.Default != nil {
						same(k, fmt.Sprintf("{%q: {%q: %s}}", key, inner, p.Default))
					}
				}
			case k.takes(key) && p.Default != nil:
				same(k, fmt.Sprintf("{%q: %s}", key, p.Default))
			}
		}
	}
	if tried < 30 {
		t.Errorf("only %d defaults found", tried)
	}
}
