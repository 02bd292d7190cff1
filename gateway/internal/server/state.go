package server

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/admin"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/gateway/internal/proxy"
	"github.com/weir-go/weir/gateway/internal/quotas"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/signal"
	"github.com/weir-go/weir/weirredis"
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

// store is a server that keeps buckets of quotas, as the gateway uses it. It lives on
// over reloads while its settings are the same.
type store struct {
	*weirredis.Store
	settings [sha256.Size]byte // with passwords and certificates
	once     sync.Once
}

// stores are those of a configuration by name.
type stores map[string]*store

// openStores returns the stores of cfg: those of prev whose settings are the same, and
// new ones. One that cannot be reached is no error; it is used as soon as it answers.
func (s *Server) openStores(cfg *config.Config, prev stores) (stores, error) {
	now := make(stores, len(cfg.Stores))
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(cfg.Stores)) {
		st, err := s.openStore(name, cfg.Stores[name], prev[name])
		if err != nil {
			errs = append(errs, fmt.Errorf("stores.%s: %w", name, err))
			continue
		}
		now[name] = st
	}
	if len(errs) > 0 {
		now.closeBut(prev)
		return nil, errors.Join(errs...)
	}
	return now, nil
}

func (s *Server) openStore(name string, spec config.Store, live *store) (*store, error) {
	cfg, err := spec.Connection()
	if err != nil {
		return nil, err
	}
	settings, err := settingsOf(&spec, &cfg)
	if err != nil {
		return nil, err
	}
	if live != nil && live.settings == settings {
		return live, nil
	}
	cfg.OnDown = func(err error) {
		s.log.Warn("a store of quotas does not answer; gates go by their on_store_error", "store", name, "error", err)
	}
	cfg.OnUp = func(after time.Duration) {
		s.log.Info("a store of quotas answers again", "store", name, "after", after.Round(time.Millisecond).String())
	}
	opened, err := weirredis.New(cfg)
	if err != nil {
		return nil, err
	}
	return &store{Store: opened, settings: settings}, nil
}

// settingsOf sums up all that a connection depends on, also what stands in other files.
func settingsOf(spec *config.Store, cfg *weirredis.Config) (sum [sha256.Size]byte, err error) {
	all := []any{spec, cfg.Password, cfg.Sentinel.Password}
	if t := spec.TLS; t != nil {
		for _, file := range []string{t.CA, t.Cert, t.Key} {
			if file == "" {
				continue
			}
			data, err := os.ReadFile(file)
			if err != nil {
				return sum, err
			}
			all = append(all, data)
		}
	}
	text, err := json.Marshal(all)
	return sha256.Sum256(text), err
}

// quotas are the stores as a policy takes them.
func (s stores) quotas() map[string]quota.Store {
	all := make(map[string]quota.Store, len(s))
	for name, st := range s {
		all[name] = st
	}
	return all
}

// closeBut closes the stores that keep does not have.
func (s stores) closeBut(keep stores) {
	for name, st := range s {
		if keep[name] != st {
			st.once.Do(func() { _ = st.Close() }) // it never fails
		}
	}
}

// Stores returns what there is to see of the stores in force, sorted by name.
func (s *Server) Stores() (all []admin.Store) {
	st := s.state.Load()
	if st == nil {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(st.stores)) {
		all = append(all, admin.StoreOf(name, st.stores[name].Stats()))
	}
	return all
}

// bookPlace is where rules of quotas are kept that are set at run time: two that are
// equal are the same place.
type bookPlace struct {
	file, store string
	settings    [sha256.Size]byte // of the connection to the store
}

func bookPlaceOf(cfg *config.Config) (at bookPlace, err error) {
	at.file, at.store = cfg.Quotas.File, cfg.Quotas.Store
	if at.store == "" {
		return at, nil
	}
	spec := cfg.Stores[at.store]
	settings, err := spec.Connection()
	if err == nil {
		at.settings, err = settingsOf(&spec, &settings)
	}
	return at, err
}

// openBook opens the rules of quotas that are set at run time.
func (s *Server) openBook(cfg *config.Config) error {
	at, err := bookPlaceOf(cfg)
	if err != nil {
		return bookError(cfg, err)
	}
	store, err := openBookStore(cfg)
	if err != nil {
		return err
	}
	book, err := quotas.Open(context.Background(), quotas.Options{Store: store, Logger: s.log, StartBroken: cfg.Quotas.StartBroken})
	if err != nil {
		return bookError(cfg, err)
	}
	s.book, s.bookAt = book, at
	return nil
}

// reopenBook reads the rules that cfg says are kept elsewhere than up to now, nil if
// they are not. Nothing has changed until a policy made with them is in force.
func (s *Server) reopenBook(cfg *config.Config) (*quotas.Kept, bookPlace, error) {
	at, err := bookPlaceOf(cfg)
	if err != nil {
		return nil, at, bookError(cfg, err)
	}
	if at == s.bookAt {
		return nil, at, nil
	}
	store, err := openBookStore(cfg)
	if err != nil {
		return nil, at, err
	}
	kept, err := quotas.Read(context.Background(), store, cfg.Quotas.StartBroken)
	if err != nil {
		return nil, at, bookError(cfg, err)
	}
	return kept, at, nil
}

// openBookStore opens where cfg keeps rules, nil if it keeps them nowhere.
func openBookStore(cfg *config.Config) (store quotas.Store, err error) {
	switch {
	case cfg.Quotas.File != "":
		if store, err = quotas.OpenFile(cfg.Quotas.File); err != nil {
			return nil, bookError(cfg, err)
		}
	case cfg.Quotas.Store != "":
		if store, err = openShared(cfg); err != nil {
			return nil, bookError(cfg, err)
		}
	}
	return store, nil
}

// bookError says where in the file it is written what cannot be used.
func bookError(cfg *config.Config, err error) error {
	field := "quotas.file"
	if cfg.Quotas.Store != "" {
		field = "quotas.store"
	}
	return fmt.Errorf("%s: %w", cfg.At(field), err)
}

// openShared connects to the store that keeps the rules. The connection is one of its
// own: what happens to the store of buckets leaves it.
func openShared(cfg *config.Config) (quotas.Store, error) {
	name := cfg.Quotas.Store
	spec := cfg.Stores[name]
	settings, err := spec.Connection()
	if err != nil {
		return nil, fmt.Errorf("stores.%s: %w", name, err)
	}
	settings.Lease = weirredis.Lease{}
	server, err := weirredis.New(settings)
	if err != nil {
		return nil, fmt.Errorf("stores.%s: %w", name, err)
	}
	return quotas.NewShared("store "+name, server), nil
}

// closeBook lets go of where the rules are kept.
func (s *Server) closeBook() {
	if err := s.book.Close(); err != nil {
		s.log.Warn("where quotas set at run time are kept was not closed", "error", err)
	}
}

// follow takes up what others write to where the rules are kept.
func (s *Server) follow(ctx context.Context) {
	every(ctx, quotas.Every, func() { s.book.Follow(ctx) })
}

// Book returns what there is to count of rules that are set at run time.
func (s *Server) Book() quotas.Stats { return s.book.Stats() }

// quotaAPI shows and takes rules of quotas. Who has the token of the configuration in
// force may write, and who asks over its socket.
func (s *Server) quotaAPI() *admin.QuotaAPI {
	return &admin.QuotaAPI{
		Book: s.book,
		Writers: &admin.Writers{
			TokenFile: func() string { return s.state.Load().cfg.Admin.TokenFile },
			Socket:    func() string { return socketOf(s.state.Load().cfg.Admin) },
			Logger:    s.log,
		},
	}
}

// settle reads from an answer what the request has really cost, where its route
// looks for that, and has the gates told.
func (st *state) settle(call *proxy.Call, answer http.Header, set func(gate string, units int64)) bool {
	units, ok := st.policy.Route(call.Work.Op).Settle(answer)
	if ok {
		st.policy.SetCost(set, units)
	}
	return ok
}
