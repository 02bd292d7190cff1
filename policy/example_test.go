package policy_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/policy"
)

func Example() {
	p, err := policy.Compile(policy.Spec{
		Identity: policy.IdentitySpec{Tenant: "path:database"},
		Gates: map[string]policy.GateSpec{
			"writes":  {Limit: &policy.LimitSpec{Limit: 1, Queue: policy.QueueSpec{Len: -1}}},
			"backend": {Limit: &policy.LimitSpec{Limit: 8}},
		},
		Routes: []policy.RouteSpec{
			{Name: "write", Match: []string{"POST /v1/databases/{database}/batches"}, Gates: []string{"writes", "backend"}},
			{Name: "rest", Match: []string{"/"}, Gates: []string{"backend"}},
		},
	}, policy.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer p.Close()

	r := httptest.NewRequest("POST", "/v1/databases/orders/batches", nil)
	for range 2 {
		route, work := p.Match(r)
		permit, err := route.Gate().Admit(r.Context(), work)
		if err != nil {
			rejection := weir.AsRejection(err)
			fmt.Println(route.Name(), "for", work.Tenant, "refused by", rejection.Gate, "for", rejection.Reason)
			continue
		}
		defer permit.Done(weir.OK)
		fmt.Println(route.Name(), "for", work.Tenant, "admitted")
	}
	// Output:
	// write for orders admitted
	// write for orders refused by writes for limit
}

// Every fault is reported at once, each with the field it stands in.
func ExampleCompile_faults() {
	_, err := policy.Compile(policy.Spec{
		Gates: map[string]policy.GateSpec{
			"api": {Mode: "enforced", Limit: &policy.LimitSpec{Controller: "aimd", Min: 50, Max: 10}},
		},
		Routes: []policy.RouteSpec{{Match: []string{"/"}, Gates: []string{"apy"}}},
	}, policy.Options{})
	var faults *policy.Faults
	if errors.As(err, &faults) {
		for _, fault := range faults.List {
			fmt.Println(fault)
		}
	}
	// Output:
	// gates.api.mode: "enforced" is not known; did you mean enforce?
	// gates.api.limit.min: 50 is above max (10); write a min that is not above max, or a higher max
	// routes[0].gates[0]: there is no gate "apy"; did you mean api?
}

// A new policy takes over the gates of the running one, and what is in them.
func ExampleCompile_reload() {
	spec := policy.Spec{Gates: map[string]policy.GateSpec{"api": {Limit: &policy.LimitSpec{Limit: 2}}}}
	running, _ := policy.Compile(spec, policy.Options{})
	permit, _ := running.Gate("api").TryAdmit(weir.Work{})

	spec.Gates["api"] = policy.GateSpec{Limit: &policy.LimitSpec{Limit: 5}}
	next, err := policy.Compile(spec, policy.Options{Previous: running})
	if err != nil {
		fmt.Println("nothing changed:", err)
		return
	}
	running.Replace(next)
	defer next.Close()

	s := next.Gate("api").Snapshot()
	fmt.Println(s.InFlight, "of", s.Limit, "in flight")
	permit.Done(weir.OK)
	// Output: 1 of 5 in flight
}

// A gate in observe mode lets everything through and counts what it would have
// refused.
func ExampleGate_Observed() {
	p, _ := policy.Compile(policy.Spec{
		Gates: map[string]policy.GateSpec{"api": {Mode: policy.Observe, Limit: &policy.LimitSpec{Limit: 1}}},
	}, policy.Options{})
	defer p.Close()

	api := p.Gate("api")
	for range 3 {
		permit, err := api.TryAdmit(weir.Work{})
		fmt.Println("admitted:", err == nil)
		defer permit.Done(weir.OK)
	}
	fmt.Println("would have been refused:", api.Observed()[weir.ReasonLimit])
	// Output:
	// admitted: true
	// admitted: true
	// admitted: true
	// would have been refused: 2
}

func ExampleParseSpec() {
	spec, err := policy.ParseSpec([]byte(`{
		"gates": {"api": {"limit": {"limit": 20, "queue": {"max_wait": "250ms"}}}},
		"routes": [{"match": ["/"], "gates": ["api"]}]
	}`))
	fmt.Println(spec.Gates["api"].Limit.Queue.MaxWait, err)

	_, err = policy.ParseSpec([]byte(`{"gates": {"api": {"limit": {"limits": 20}}}}`))
	fmt.Println(err)
	// Output:
	// 250ms <nil>
	// policy: line 1: gates.api.limit.limits: there is no such field; write limit
}

// Learned limits survive a restart, unless they are too old to be true.
func ExamplePolicy_Restore() {
	spec := policy.Spec{Gates: map[string]policy.GateSpec{"api": {Limit: &policy.LimitSpec{Controller: "aimd"}}}}
	before, _ := policy.Compile(spec, policy.Options{})
	_ = before.Gate("api").Limiter().SetLimit(64) // as if it had been learned
	saved := before.Save()
	before.Close()

	after, _ := policy.Compile(spec, policy.Options{})
	defer after.Close()
	names, err := after.Restore(saved, 24*time.Hour)
	fmt.Println(names, after.Gate("api").Snapshot().Limit, err)
	// Output: [api] 64 <nil>
}

// An operation of many requests is background from the admission on that the route
// says; the next server hears how often it has been admitted.
func ExamplePolicy_Forward() {
	p, _ := policy.Compile(policy.Spec{
		Identity: policy.IdentitySpec{Admissions: "header:X-Admissions"},
		Gates:    map[string]policy.GateSpec{"api": {Limit: &policy.LimitSpec{Limit: 20}}},
		Routes:   []policy.RouteSpec{{Match: []string{"/export/"}, Gates: []string{"api"}, DemoteAfter: 2}},
	}, policy.Options{})
	defer p.Close()

	header := http.Header{}
	for range 4 {
		r := httptest.NewRequest("GET", "/export/orders", nil)
		r.RemoteAddr, r.Header = "127.0.0.1:1234", header // a trusted peer
		_, work := p.Match(r)
		fmt.Printf("admitted before: %q, now %v\n", header.Get("X-Admissions"), work.Priority)
		header = header.Clone()
		p.Forward(header, r, &work, time.Now())
	}
	// Output:
	// admitted before: "", now normal
	// admitted before: "1", now normal
	// admitted before: "2", now background
	// admitted before: "3", now background
}

// The answer says what the work has really cost.
func ExampleRoute_Settle() {
	p, _ := policy.Compile(policy.Spec{
		Gates:  map[string]policy.GateSpec{"rows": {Limit: &policy.LimitSpec{Limit: 5000}, Each: &policy.EachSpec{}}},
		Routes: []policy.RouteSpec{{Name: "query", Gates: []string{"rows"}, Cost: 100, Settle: "header:X-Rows"}},
	}, policy.Options{})
	defer p.Close()

	route := p.Route("query")
	permit, _ := route.Gate().Admit(context.Background(), route.Work())
	defer permit.Done(weir.OK)
	fmt.Println("admitted with", p.Gate("rows").Snapshot().InFlight)

	answer := http.Header{"X-Rows": {"612"}} // from a backend
	if units, ok, _ := route.Settle(answer); ok {
		permit.SetCost("", units)
	}
	fmt.Println("it was", p.Gate("rows").Snapshot().InFlight)
	// Output:
	// admitted with 100
	// it was 612
}
