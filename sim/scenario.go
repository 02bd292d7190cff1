package sim

import (
	"encoding/json"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/weir-go/weir/policy"
)

// Scenario is one experiment as data: a backend, the traffic on it, the policy
// in between, and what is expected to come out. [ParseScenario] reads one.
type Scenario struct {
	// Name is shown in reports, About says what the scenario is for.
	Name  string `json:"name"`
	About string `json:"about,omitempty"`

	// Backend is what stands behind the gates: an object, or the name of a
	// standard backend: "B1" to "B5".
	Backend BackendRef `json:"backend"`
	// Policy is what stands before it: an object, or the name of a policy that
	// the standard backend brings along: "fixed", "aimd". "none" is no gates.
	Policy PolicyRef `json:"policy"`
	// On lists further standard backends for a scoreboard to run this on, Under
	// the columns it runs there; default all of them.
	On    []string `json:"on,omitempty"`
	Under []string `json:"under,omitempty"`
	// HeldOut says that no default was tuned on this: a scoreboard counts it
	// apart.
	HeldOut bool `json:"held_out,omitempty"`

	// Gateways is how many instances of the policy stand side by side, each
	// with gates of its own and a random share of the traffic. Default 1.
	Gateways int `json:"gateways,omitempty" min:"0" max:"1000"`
	// OnAbandon says what happens to the slot when a client leaves while the backend works on its
	// request. hold (default) keeps it until the backend answers. release gives it back at once. With cancel
	// the backend gives the work up, as databases do with a statement, and so the slot is free at once too. At a
	// deadline that the gate was told the outcome is overload then. What the backend had done of it by then counts nowhere.
	OnAbandon string `json:"on_abandon,omitempty" enum:"hold,release,cancel"`

	// Phases are the rates, one after the other; together they are the length
	// of the run. Repeat runs through them so many times; default 1.
	Phases []Phase `json:"phases"`
	Repeat int     `json:"repeat,omitempty" min:"0" max:"1000000"`
	// Requests ends the run when so many requests have been offered, or at the end of the phases if
	// that comes first. With clients in a loop, all that was offered is over by then. 0 means at the end of
	// the phases.
	Requests int `json:"requests,omitempty" min:"0"`
	// Traffic are the classes of requests. Default: one class with everything
	// at its default.
	Traffic []Class `json:"traffic,omitempty"`

	// Consumer works off a queue that the backend's answers fill. Default: none.
	Consumer *Consumer `json:"consumer,omitempty"`
	// Processes are those that clients belong to, by name.
	Processes map[string]Process `json:"processes,omitempty"`
	// Seeds of the random numbers, one run each, all different. Default 1 to 5.
	Seeds []uint64 `json:"seeds,omitempty"`
	// Fair has weights and guarantees for all gates' wait rooms, beside those that the policy has.
	Fair Fair `json:"fair,omitzero"`
	// Goals are what is expected.
	Goals []Goal `json:"goals,omitempty"`
}

// Fair is the weights and guarantees of a scenario.
type Fair struct {
	// Users and Tenants are weights by name. Default 1.
	Users   map[string]float64 `json:"users,omitempty" min:"0.001" max:"1000"`
	Tenants map[string]float64 `json:"tenants,omitempty" min:"0.001" max:"1000"`
	// Shares are the least parts of what is served that priorities are given,
	// by name. Default 0: strict priority.
	Shares map[string]float64 `json:"shares,omitempty" min:"0.000001" max:"1"`
	// ByTime has users and tenants share the time that slots are held. The metrics
	// share_error and user_error are of what was let in all the same; what each got
	// done is the metric work of its class.
	ByTime bool `json:"by_time,omitempty"`
}

// Phase is a stretch of time with one rate and one capacity.
type Phase struct {
	// For is how long it lasts.
	For policy.Duration `json:"for" min:"1ns" max:"1000h" required:"true" example:"\"60s\""`
	// Load is the rate of all requests as a multiple of the backend's full
	// capacity; RPS is the rate itself. One of them, or neither for silence.
	Load float64 `json:"load,omitempty" min:"0" max:"1e9"`
	RPS  float64 `json:"rps,omitempty" min:"0" max:"1e9"`
	// Capacity is what the backend has of its full capacity. Default 1. One that has none is Stalled. A
	// pool that loses workers has a whole number of them, at least one: a tenth of five is one of five.
	Capacity float64 `json:"capacity,omitempty" min:"0.000001" max:"1000"`
	// Work multiplies the work of the requests that arrive: 2 is twice the
	// service time, and half the capacity. Default 1.
	Work float64 `json:"work,omitempty" min:"0.000001" max:"1000"`
	// Stalled backends stand still: nothing inside moves on.
	Stalled bool `json:"stalled,omitempty"`
	// Suspended stops the process that holds the gates: what arrives meanwhile,
	// and what the backend answers, reaches it afterwards, all at once.
	Suspended bool `json:"suspended,omitempty"`
	// Errors are requests that the backend does not work on but fails.
	Errors *Errors `json:"errors,omitempty"`
}

// Errors are answers that say only that there is none.
type Errors struct {
	// Share of the admitted requests that get one. Default 1, all of them.
	Share float64 `json:"share,omitempty" min:"0.000001" max:"1"`
	// After is how long the answer takes. Default 1 ms.
	After policy.Duration `json:"after,omitempty" min:"0s" max:"1h"`
	// As is the outcome that the gate sees: failed (default), as for a
	// fault, or overload, as for a server that says it is busy.
	As string `json:"as,omitempty" enum:"failed,overload"`
	// Conflict, instead of the share, is how likely any other request that is inside makes one fail, as
	// transactions that update the same row do. It fails when all its work is done. So of n inside each succeeds
	// with the odds (1−conflict)ⁿ⁻¹.
	Conflict float64 `json:"conflict,omitempty" min:"0.000001" max:"1"`
}

// Class is one kind of request.
type Class struct {
	// Name is shown in reports.
	Name string `json:"name,omitempty"`
	// Route is the policy's route the class takes. Default: the first one.
	Route string `json:"route,omitempty"`

	// Share of the phases' rate that is this class, relative to the others'
	// shares. Default 1.
	Share float64 `json:"share,omitempty" min:"0.000001" max:"1e9"`
	// Phases are the class's own rates instead of a share. They must not have settings of the
	// backend.
	Phases []Phase `json:"phases,omitempty"`
	// At are the class's arrivals, one by one, instead of a rate.
	At []policy.Duration `json:"at,omitempty" min:"0s"`
	// Arrivals are poisson (default) or regular: evenly spaced.
	Arrivals string `json:"arrivals,omitempty" enum:"poisson,regular"`

	// Clients makes the class a closed loop: so many clients send their next
	// request when the last one has been answered, and Think later. After a
	// refusal they wait longer, for Pause on average (default 100 ms); so without
	// Think the class is always backlogged and never floods.
	Clients int             `json:"clients,omitempty" min:"0" max:"1000000"`
	Think   policy.Duration `json:"think,omitempty" min:"0s" max:"1h"`
	Pause   policy.Duration `json:"pause,omitempty" min:"0s" max:"1h"`

	// Tenant, User, Client, Priority, Cost and Exempt go into the work. With
	// Tenants the tenant is one of so many at random: Tenant-0, Tenant-1 …
	Tenant   string `json:"tenant,omitempty"`
	Tenants  int    `json:"tenants,omitempty" min:"0" max:"1000000"`
	User     string `json:"user,omitempty"`
	Client   string `json:"client,omitempty"`
	Priority string `json:"priority,omitempty" enum:"background,normal,high,critical"`
	Cost     int64  `json:"cost,omitempty" min:"0"`
	// Settled is what a request turns out to have cost when it is answered, in
	// units of the gate. Default: what it was admitted for.
	Settled int64 `json:"settled,omitempty" min:"0"`
	Exempt  bool  `json:"exempt,omitempty"`

	// Calls makes each request a task of so many calls, one after the other,
	// each with work and a deadline of its own. The task is done when all have
	// been answered in time; it ends with the first that is not. Later is the
	// priority of the calls after the first, if it differs.
	Calls int    `json:"calls,omitempty" min:"0" max:"1000"`
	Later string `json:"later,omitempty" enum:"background,normal,high,critical"`
	// Nested tasks keep the slot of their first call until the last one is over. The handler of the
	// first call makes the others through the same gate, with the context that carries its permit.
	Nested bool `json:"nested,omitempty"`

	// Service is the work of this class's requests, instead of the backend's.
	Service *Dist `json:"service,omitempty"`
	// Shape is the form of its distribution alone, stretched to the backend's
	// mean; Work multiplies that mean. So one class fits every backend.
	Shape *Dist   `json:"shape,omitempty"`
	Work  float64 `json:"work,omitempty" min:"0.000001" max:"1000000"`
	// Cache is asked before each request.
	Cache *Cache `json:"cache,omitempty"`

	// Deadline is when an answer stops being useful, counted from the moment
	// each attempt was meant to be sent. Default: the backend's.
	Deadline policy.Duration `json:"deadline,omitempty" min:"0s" max:"1000h"`
	// TellDeadline says whether the gate knows the deadline. Default true.
	TellDeadline *bool `json:"tell_deadline,omitempty"`
	// Timeout is the client's patience: it leaves when an attempt has taken
	// that long. The gate sees it leave, and the backend works on. Default: it
	// waits for ever; with Leaves, the deadline.
	Timeout policy.Duration `json:"timeout,omitempty" min:"0s" max:"1000h"`
	Leaves  bool            `json:"leaves,omitempty"`
	// Patience is the timeout as a multiple of the backend's latency at its
	// full capacity with no more inside than that needs.
	Patience float64 `json:"patience,omitempty" min:"0" max:"1000000"`
	// Retry is what the client does next. Default: nothing.
	Retry *Retry `json:"retry,omitempty"`
	// Process is the name of the process that the clients belong to. It decides about retries instead.
	// Default: none, and each client is on its own.
	Process string `json:"process,omitempty"`

	silent  bool    // it is there for its number only
	thinned float64 // the part of its rate that is left, 0: all
}

// Retry is how a client tries again.
type Retry struct {
	// Attempts is how many more attempts it makes. At least 1.
	Attempts int `json:"attempts" min:"1" max:"1000" required:"true" example:"3"`
	// On lists what it tries again on: timeout, refusal. Default both.
	On []string `json:"on,omitempty" enum:"timeout,refusal"`
	// Backoff is the longest pause before the second attempt. It doubles with each further one, up
	// to MaxBackoff (default 30 s). The pause is drawn at random from 0 to that. 0 means at once.
	Backoff    policy.Duration `json:"backoff,omitempty" min:"0s" max:"1h"`
	MaxBackoff policy.Duration `json:"max_backoff,omitempty" min:"0s" max:"1h"`
	// Heed makes it wait at least as long as a refusal's RetryAfter.
	Heed bool `json:"heed,omitempty"`
}

// Goal is what one figure of the report is expected to be.
type Goal struct {
	// Metric is one of the names that [Metrics] lists.
	Metric string `json:"metric"`
	// Class is the name of the class of requests that it is about. Default: all
	// of them. [ClassMetrics] lists what there is of a class.
	Class string `json:"class,omitempty"`
	// From and To are the stretch of the run that it is about. Default: all
	// of it.
	From policy.Duration `json:"from,omitempty" min:"0s"`
	To   policy.Duration `json:"to,omitempty"`
	// Level is what settle and calm wait for; see [Metrics].
	Level float64 `json:"level,omitempty" min:"0.000001"`
	// Min and Max bound the median over the seeds. A goal without either is
	// reported only.
	Min *float64 `json:"min,omitempty"`
	Max *float64 `json:"max,omitempty"`
	// Times and Over bound the median relative to the oracle, on a scoreboard. The oracle is the
	// median of the best fixed limit. The bound is at most so many times that, and at most so much
	// over it. A run by itself has nothing to compare with and ignores them.
	Times *float64 `json:"times_oracle,omitempty"`
	Over  *float64 `json:"over_oracle,omitempty"`
	// Part is the same from below: at least this part of the oracle's. If a scenario has goals with
	// Part, its oracle is the limit that is best at the first of them, over that goal's stretch.
	// Otherwise it is the limit that is best over the whole run.
	Part *float64 `json:"part_of_oracle,omitempty"`
	// TimesAlone bounds the median, on a scoreboard, relative to that of the class alone under the
	// same gates: at most so many times that. AloneAt is the part of its rate that the class then
	// has; default 1.
	TimesAlone *float64 `json:"times_alone,omitempty"`
	AloneAt    float64  `json:"alone_at,omitempty" min:"0.000001" max:"1"`
	// On restricts the goal to some of the standard backends.
	On []string `json:"on,omitempty"`
}

// BackendRef is a backend, by name or in full.
type BackendRef struct {
	// Name is that of a standard backend, empty for one given in full.
	Name string `json:"-"`
	Backend
}

// UnmarshalText reads a name; a backend in full is an object.
func (r *BackendRef) UnmarshalText(name []byte) error {
	r.Name = string(name)
	return nil
}

// MarshalJSON writes the name, or the object.
func (r BackendRef) MarshalJSON() ([]byte, error) {
	if r.Name != "" {
		return json.Marshal(r.Name)
	}
	return json.Marshal(r.Backend)
}

// PolicyRef is a policy, by name or in full.
type PolicyRef struct {
	// Name is none, or that of a policy of the standard backend; empty for a
	// policy given in full.
	Name string `json:"-"`
	policy.Spec
}

// UnmarshalText reads a name; a policy in full is an object.
func (r *PolicyRef) UnmarshalText(name []byte) error {
	r.Name = string(name)
	return nil
}

// MarshalJSON writes the name, or the object.
func (r PolicyRef) MarshalJSON() ([]byte, error) {
	if r.Name != "" {
		return json.Marshal(r.Name)
	}
	return json.Marshal(r.Spec)
}

// Duration returns how long the scenario runs.
func (s *Scenario) Duration() time.Duration {
	repeat := time.Duration(max(1, s.Repeat))
	return min(phasesDuration(s.Phases), math.MaxInt64/repeat) * repeat
}

// phasesDuration is the sum of phases, or the longest time there is if that is less.
func phasesDuration(phases []Phase) time.Duration {
	var d time.Duration
	for _, p := range phases {
		d += min(max(0, time.Duration(p.For)), math.MaxInt64-d)
	}
	return d
}

// clone copies the scenario deeply enough to change any of it.
func (s *Scenario) clone() *Scenario {
	c := *s
	c.Phases = append([]Phase(nil), s.Phases...)
	c.Traffic = append([]Class(nil), s.Traffic...)
	c.Seeds = append([]uint64(nil), s.Seeds...)
	c.Goals = append([]Goal(nil), s.Goals...)
	return &c
}

// AppliesTo reports whether the goal is meant for a standard backend.
func (g *Goal) AppliesTo(backend string) bool {
	return len(g.On) == 0 || slices.Contains(g.On, backend)
}

// Holds reports whether a value is within the goal's bounds.
func (g *Goal) Holds(v float64) bool {
	return (g.Min == nil || v >= *g.Min) && (g.Max == nil || v <= *g.Max)
}

// bounded reports whether the goal bounds its figure.
func (g *Goal) bounded() bool { return g.Min != nil || g.Max != nil }

// Relative reports whether the goal has bounds that are relative to the best
// fixed limit.
func (g *Goal) Relative() bool { return g.Times != nil || g.Over != nil || g.Part != nil }

// Against returns the goal with the bounds that are relative to the best fixed
// limit put as figures, given the median of that one.
func (g Goal) Against(oracle float64) Goal {
	bound := func(v float64) {
		if g.Max == nil || v < *g.Max {
			g.Max = &v
		}
	}
	if g.Times != nil {
		bound(*g.Times * oracle)
	}
	if g.Over != nil {
		bound(*g.Over + oracle)
	}
	if g.Part != nil {
		if v := *g.Part * oracle; g.Min == nil || v > *g.Min {
			g.Min = &v
		}
	}
	return g
}

// Beside returns the goal with Max lowered to what TimesAlone allows. alone is the median of the
// class when it is alone.
func (g Goal) Beside(alone float64) Goal {
	if g.TimesAlone == nil {
		return g
	}
	if v := *g.TimesAlone * alone; g.Max == nil || v < *g.Max {
		g.Max = &v
	}
	return g
}

// Bounds writes the goal's bounds: ">= 0.95", "<= 100.0 ms".
func (g *Goal) Bounds() string {
	var parts []string
	if g.Min != nil {
		parts = append(parts, ">= "+Format(g.Metric, *g.Min))
	}
	if g.Max != nil {
		parts = append(parts, "<= "+Format(g.Metric, *g.Max))
	}
	return strings.Join(parts, ", ")
}
