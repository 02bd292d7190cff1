package server

import (
	"github.com/weir-go/weir/gateway/internal/ratelimit"
)

// rateLimitDomains returns the domains of a configuration, with their gates.
func (st *state) rateLimitDomains() map[string]ratelimit.Found {
	all, r := map[string]ratelimit.Found{}, &st.cfg.RateLimit
	for name, g := range st.policy.Gates() {
		if st.cfg.IsDomain(name) {
			all[name] = ratelimit.Found{Gate: g, Domain: r.Domain(name), Headers: r.Headers, Metadata: r.Metadata}
		}
	}
	for _, name := range r.Debt {
		f := all[name]
		f.Debt = true
		all[name] = f
	}
	return all
}

// findDomain returns what the configuration in force says of a domain.
func (s *Server) findDomain(name string) ratelimit.Found { return s.state.Load().domains[name] }

// RateLimits returns what has become of the descriptors that Envoys have asked about.
func (s *Server) RateLimits() []ratelimit.Count { return s.rateLimit.Counts() }
