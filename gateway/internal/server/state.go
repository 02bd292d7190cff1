package server

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/admin"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/gateway/internal/proxy"
	"github.com/weir-go/weir/gateway/internal/quotas"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/signal"
)

// state is one configuration in force: everything a request needs. It never
// changes; a reload puts another in its place.
type state struct {
	cfg       *config.Config
	policy    *policy.Policy
	routes    map[*policy.Route]*route
	upstreams map[string]*proxy.Upstream
	stores    stores
	plan      *quotas.Plan
}

// route is where a route of the policy leads.
type route struct {
	upstream *proxy.Upstream
	stats    *admin.Route
	quotas   proxy.Quotas
}

// compile builds the state of cfg. It adopts what lives of prev, which stays in
// force if there is an error. kept is rules of quotas from elsewhere than up to now, nil
// if they stay where they are.
func (s *Server) compile(cfg *config.Config, prev *state, kept *quotas.Kept) (*state, error) {
	spec := cfg.Policy()
	spec.Gates = withTargets(spec.Gates, cfg.Upstreams)
	opts := policy.Options{
		Hooks: s.hooks(), Observed: s.notes.observed,
		SignalHooks: signal.Hooks{Trouble: s.notes.signalTrouble, Recovered: s.notes.signalRecovered},
	}
	var live stores
	if prev != nil {
		opts.Previous, live = prev.policy, prev.stores
	}
	if err := checkUpstreams(cfg); err != nil {
		return nil, err
	}
	opened, err := s.openStores(cfg, live)
	if err != nil {
		return nil, err
	}
	opts.Stores = opened.quotas()
	plan := s.plan(spec, cfg, kept)
	opts.QuotaRules = plan.Rules
	p, err := policy.Compile(spec, opts)
	if err != nil {
		opened.closeBut(live)
		return nil, err
	}
	st := &state{
		cfg: cfg, policy: p, stores: opened, plan: plan,
		routes:    make(map[*policy.Route]*route),
		upstreams: make(map[string]*proxy.Upstream, len(cfg.Upstreams)),
	}
	for name, u := range cfg.Upstreams {
		if st.upstreams[name], err = proxy.New(name, u, s.upstreamOptions(st, name, prev)); err != nil {
			return nil, err // cannot be: checkUpstreams has tried it
		}
	}
	i := 0
	for rt := range p.Routes() {
		st.routes[rt] = &route{
			upstream: st.upstreams[cfg.Routes[i].Upstream],
			stats:    s.metrics.Route(rt.Name()),
			quotas:   proxy.QuotasOf(rt),
		}
		i++
	}
	return st, nil
}

// plan returns what becomes of the rules of quotas under cfg.
func (s *Server) plan(spec policy.Spec, cfg *config.Config, kept *quotas.Kept) *quotas.Plan {
	if kept != nil {
		return kept.Plan(spec, cfg.QuotaPlace)
	}
	return s.book.Plan(spec, cfg.QuotaPlace)
}

func (s *Server) upstreamOptions(st *state, name string, prev *state) proxy.Options {
	gates := targetGates(name, st.cfg.Upstreams[name].Targets)
	opts := proxy.Options{
		Logger:  s.log,
		Trusted: st.policy.Trusted,
		Claims:  append(st.policy.IdentityHeaders(), certHeaders...),
		Forward: st.forward,
		Settle:  st.settle,
		Gate: func(target string) weir.Gate {
			if g := st.policy.Gate(gates[target]); g != nil {
				return g
			}
			return nil
		},
		Refuse: s.refuse,
	}
	if prev != nil {
		opts.Previous = prev.upstreams[name]
	}
	return opts
}

// forward says to an upstream what has been decided about a request.
func (st *state) forward(out http.Header, in *http.Request, call *proxy.Call, again bool) {
	if again {
		st.policy.ForwardDeadline(out, in, &call.Work, call.Arrived)
		return
	}
	st.policy.Forward(out, in, &call.Work, call.Arrived)
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

// withTargets adds a gate for each target of an upstream that has a limit. They
// are gates of the policy like any other: adopted by name, saved, measured.
func withTargets(gates map[string]policy.GateSpec, upstreams map[string]config.Upstream) map[string]policy.GateSpec {
	all := maps.Clone(gates)
	if all == nil {
		all = make(map[string]policy.GateSpec)
	}
	for name, u := range upstreams {
		if u.Limit == nil {
			continue
		}
		for _, gate := range targetGates(name, u.Targets) {
			all[gate] = policy.GateSpec{Limit: u.Limit}
		}
	}
	return all
}

// targetGates names the gates of an upstream's targets: app@10.0.0.1:3000. If one
// and the same place is a target by http and by https, the latter's gate carries
// the scheme: app@https://10.0.0.1:3000.
func targetGates(upstream string, targets []string) map[string]string {
	plain := make(map[string]bool)
	for _, target := range targets {
		if scheme, place := schemeAndPlace(target); scheme == "http" {
			plain[place] = true
		}
	}
	names := make(map[string]string, len(targets))
	for _, target := range targets {
		scheme, place := schemeAndPlace(target)
		if scheme == "https" && plain[place] {
			place = scheme + "://" + place
		}
		names[target] = upstream + "@" + place
	}
	return names
}

func schemeAndPlace(target string) (scheme, place string) {
	u, err := url.Parse(target)
	if err != nil { // cannot be: checkUpstreams has parsed it
		return "", target
	}
	return u.Scheme, u.Host + u.Path
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
