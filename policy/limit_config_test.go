package policy

import (
	"reflect"
	"testing"
	"time"

	"github.com/weir-go/weir"
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
		{LimitSpec{}, "knee", 0},
		{LimitSpec{Max: 7}, "knee", 0},
		{LimitSpec{Queue: QueueSpec{Len: -1}}, "knee", 0},
		{LimitSpec{Limit: 5}, "fixed", 5},
		{LimitSpec{Controller: "fixed", Limit: 5}, "fixed", 5},
		{LimitSpec{Controller: "knee", Limit: 5}, "knee", 5},
	} {
		p := compile(t, limitSpec(tt.spec), Options{})
		if s := p.Gate("api").Snapshot(); s.Controller != tt.controller || tt.limit != 0 && s.Limit != tt.limit {
			t.Errorf("%+v: %s at %d, want %s at %d", tt.spec, s.Controller, s.Limit, tt.controller, tt.limit)
		}
	}
	if w := Controllers()[0]; w != "knee" {
		t.Errorf("the first word is %s, want that of the default", w)
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
