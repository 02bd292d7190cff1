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

// compile compiles the policy of next, which has everything else. It adopts the gates and
// targets of prev, nil at the start. rules are those set at run time, nil if they are where
// they were. On an error prev has not changed.
func (s *Server) compile(next, prev *state, rules *quotas.Kept) (err error) {
	spec := next.cfg.Policy()
	spec.Gates = proxy.WithTargetGates(spec.Gates, next.cfg.Upstreams)
	if rules != nil {
		next.plan = rules.Plan(spec, next.cfg.QuotaPlace)
	} else {
		next.plan = s.book.Plan(spec, next.cfg.QuotaPlace)
	}
	opts := policy.Options{
		Hooks: s.hooks(), Observed: s.events.Observed,
		SignalHooks: signal.Hooks{Trouble: s.events.SignalTrouble, Recovered: s.events.SignalRecovered},
		Stores:      next.stores.quotas(),
		QuotaRules:  next.plan.Rules,
	}
	if prev != nil {
		opts.Previous = prev.policy
	}
	if next.policy, err = policy.Compile(spec, opts); err != nil {
		return err
	}
	for name, u := range next.upstreams {
		var before *proxy.Upstream
		if prev != nil {
			before = prev.upstreams[name]
		}
		u.Attach(next.policy, before)
	}
	for rt := range next.policy.Routes() {
		next.routes[rt] = &route{next.upstreams[rt.Upstream()], s.metrics.Route(rt.Name()), proxy.NewQuotas(rt)}
	}
	return nil
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

// newUpstreams returns the upstreams of cfg, or what is wrong with them.
func (s *Server) newUpstreams(cfg *config.Config) (map[string]*proxy.Upstream, error) {
	all := make(map[string]*proxy.Upstream, len(cfg.Upstreams))
	var err error
	for _, name := range slices.Sorted(maps.Keys(cfg.Upstreams)) {
		if all[name], err = proxy.New(name, cfg.Upstreams[name], s.log); err != nil {
			return nil, err
		}
	}
	for i, rt := range cfg.Routes {
		if all[rt.Upstream] == nil {
			return nil, fmt.Errorf("routes[%d] leads to upstream %q, which is not defined", i, rt.Upstream)
		}
	}
	return all, nil
}

// enforce makes st the state that new requests get.
func (s *Server) enforce(st *state) {
	s.metrics.Keep(st.policy, st.cfg.Metrics.Tenants)
	s.events.KeepGates(func(gate string) bool { return st.policy.Gate(gate) != nil })
	s.state.Store(st)
	s.book.Adopt(st.plan, st.policy)
}

// retire lets the state go: next is in force, or nothing if it is nil.
func (st *state) retire(next *state) {
	if next == nil {
		next = new(state)
	}
	st.policy.Retire(next.policy)
	for name, u := range st.upstreams {
		u.Retire(next.upstreams[name])
	}
}
