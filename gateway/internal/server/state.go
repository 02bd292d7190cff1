package server

import (
	"fmt"
	"maps"
	"slices"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/admin"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/gateway/internal/proxy"
	"github.com/weir-go/weir/gateway/internal/quotas"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/signal"
)

// state is one configuration in force: everything a request needs. It never changes; a
// reload puts another in its place.
type state struct {
	cfg       *config.Config
	policy    *policy.Policy
	routes    map[*policy.Route]*route
	upstreams map[string]*proxy.Upstream
	stores    stores
	plan      *quotas.Plan
}

// route is what the gateway has for a route of the policy.
type route struct {
	upstream *proxy.Upstream
	stats    *admin.Route
	quotas   proxy.Quotas
}

// live are the stores of a configuration, none of the nil one.
func (st *state) live() stores {
	if st == nil {
		return nil
	}
	return st.stores
}

// compile builds the state of cfg. It adopts the gates and targets of prev, nil at the
// start. rules are those set at run time, nil if they are where they were. On an error
// prev has not changed.
func (s *Server) compile(cfg *config.Config, prev *state, opened stores, rules *quotas.Kept) (*state, error) {
	spec := cfg.Policy()
	spec.Gates = proxy.WithTargetGates(spec.Gates, cfg.Upstreams)
	var plan *quotas.Plan
	if rules != nil {
		plan = rules.Plan(spec, cfg.QuotaPlace)
	} else {
		plan = s.book.Plan(spec, cfg.QuotaPlace)
	}
	opts := policy.Options{
		Hooks: s.hooks(), Observed: s.events.Observed,
		SignalHooks: signal.Hooks{Trouble: s.events.SignalTrouble, Recovered: s.events.SignalRecovered},
		Stores:      opened.quotas(),
		QuotaRules:  plan.Rules,
	}
	if prev != nil {
		opts.Previous = prev.policy
	}
	p, err := policy.Compile(spec, opts)
	if err != nil {
		return nil, err
	}
	st := &state{
		cfg: cfg, policy: p, stores: opened, plan: plan,
		routes:    make(map[*policy.Route]*route),
		upstreams: make(map[string]*proxy.Upstream, len(cfg.Upstreams)),
	}
	for name, u := range cfg.Upstreams {
		o := proxy.Options{Logger: s.log, Policy: p}
		if prev != nil {
			o.Previous = prev.upstreams[name]
		}
		if st.upstreams[name], err = proxy.New(name, u, o); err != nil {
			return nil, err // cannot be: checkUpstreams has tried it
		}
	}
	for rt := range p.Routes() {
		st.routes[rt] = &route{st.upstreams[rt.Upstream()], s.metrics.Route(rt.Name()), proxy.NewQuotas(rt)}
	}
	return st, nil
}

// hooks returns what the gates call.
func (s *Server) hooks() weir.Hooks {
	return weir.Hooks{
		Admitted: s.metrics.Admitted,
		Done:     s.metrics.Done,
		Rejected: func(w weir.Work, r *weir.Rejection) {
			s.metrics.Rejected(w, r)
			s.events.Rejected(w, r)
		},
		LimitChanged: s.events.LimitChanged,
		Faulty:       s.events.Faulty,
		Leaked:       s.events.Leaked,
	}
}

// checkUpstreams finds what is wrong with upstreams before anything live is
// touched.
func checkUpstreams(cfg *config.Config) error {
	for _, name := range slices.Sorted(maps.Keys(cfg.Upstreams)) {
		if err := proxy.Check(name, cfg.Upstreams[name]); err != nil {
			return err
		}
	}
	for i, rt := range cfg.Routes {
		if _, ok := cfg.Upstreams[rt.Upstream]; !ok {
			return fmt.Errorf("routes[%d] leads to upstream %q, which is not defined", i, rt.Upstream)
		}
	}
	return nil
}

// enforce makes st the state that new requests get.
func (s *Server) enforce(st *state) {
	gates := maps.Collect(st.policy.Gates())
	routes := make([]string, 0, len(st.routes))
	for rt := range st.policy.Routes() {
		routes = append(routes, rt.Name())
	}
	s.metrics.Keep(gates, routes)
	s.metrics.Tenants(st.cfg.Metrics.Tenants)
	s.events.KeepGates(slices.Collect(maps.Keys(gates)))
	s.state.Store(st)
	s.book.Adopt(st.plan, st.policy)
}

// retire says that next has taken over, nil when nothing has.
func (st *state) retire(next *state) {
	var nextPolicy *policy.Policy
	if next != nil {
		nextPolicy = next.policy
	}
	st.policy.Retire(nextPolicy)
	for name, u := range st.upstreams {
		if next == nil {
			u.Retire(nil)
			continue
		}
		u.Retire(next.upstreams[name])
	}
}
