package config

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/weir-go/weir/gateway/internal/ratelimit"
	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/policy"
)

// RateLimit is Envoy's rate limit service, for listeners that serve it. Its domains are those of
// Files, and the gates of this file whose quota has rules about descriptors.
type RateLimit struct {
	// Files of envoyproxy/ratelimit, or folders with such files (*.yaml, *.yml), relative to this file. Each of
	// their domains is a gate with a quota.
	Files []string `json:"files,omitempty" example:"[limits.yaml]" form:"a file or a folder"`
	// One of stores, which keeps the buckets of these domains. Left out, they are in memory.
	Store string `json:"store,omitempty" example:"shared"`
	// What to do when the store does not answer, as for a quota. closed tells Envoy of an error, and its
	// failure_mode_deny decides.
	OnStoreError string `json:"on_store_error,omitempty" default:"local" enum:"local,open,closed"`
	// enforce refuses. observe counts what would be refused. off limits nothing.
	Mode policy.Mode `json:"mode,omitempty" default:"enforce" enum:"enforce,observe,off"`
	// Domains whose hits are charged although there are too few tokens, into debt. For hits that are known only
	// at the end of a stream (apply_on_stream_done).
	Debt []string `json:"debt,omitempty" example:"[llm]"`
	// Let Envoy add RateLimit-Limit, RateLimit-Remaining and RateLimit-Reset to its answers.
	Headers bool `json:"headers,omitempty" default:"false"`
	// Tell Envoy of what was asked in its dynamic metadata, and of limits in quota_mode that are used up.
	// Above 16 KiB what was asked is left out.
	Metadata bool `json:"metadata,omitempty" default:"false"`

	limits ratelimit.Limits
}

// Domain returns what the files say of a domain, nil if they do not name it.
func (r *RateLimit) Domain(name string) *ratelimit.Domain { return r.limits[name] }

// faulty reports whether a file of a domain has a fault.
func (r *RateLimit) faulty(name string) bool {
	d := r.limits[name]
	return d != nil && d.Faulty()
}

// RateLimitFiles returns the files of the rate limit service as they are now, and their folders.
func (c *Config) RateLimitFiles() (names []string) {
	for _, name := range c.RateLimit.Files {
		names = append(names, name)
		if in, err := filesIn(name); err == nil && len(in) > 0 && in[0] != name {
			names = append(names, in...)
		}
	}
	return names
}

// filesIn returns a file, or the files of a folder in their order.
func filesIn(name string) ([]string, error) {
	info, err := os.Stat(name)
	if err != nil || !info.IsDir() {
		return []string{name}, err
	}
	entries, err := os.ReadDir(name)
	var files []string
	for _, e := range entries {
		if hasLimits(e.Name()) {
			files = append(files, filepath.Join(name, e.Name()))
		}
	}
	return files, err
}

// hasLimits reports whether a file of a folder is one of the rate limit service, by its name.
func hasLimits(name string) bool {
	ext := filepath.Ext(name)
	return (ext == ".yaml" || ext == ".yml") && !strings.HasPrefix(name, ".")
}

// rateLimits reads the files of the rate limit service.
func (m *meaning) rateLimits() {
	r, at := &m.RateLimit, fault.Path{"rate_limit_service"}
	r.limits = ratelimit.Limits{}
	var all []*fault.List
	for i, given := range r.Files {
		r.Files[i] = m.resolve(given)
		files, err := filesIn(r.Files[i])
		switch {
		case err != nil:
			m.report(at.At("files").Index(i), "write the name of a file of envoyproxy/ratelimit, or of a folder with such files", "cannot be read: %v", err)
		case len(files) == 0:
			m.report(at.At("files").Index(i), "name another folder, or the files themselves", "the folder has no *.yaml or *.yml")
		}
		for _, name := range files {
			data, err := ReadFile(name)
			if err != nil {
				m.report(at.At("files").Index(i), "make it readable for the gateway", "cannot be read: %v", err)
				continue
			}
			shown := filepath.Join(given, strings.TrimPrefix(name, r.Files[i]))
			root, faults := ParseDocument(shown, data)
			if root != nil {
				r.limits.Add(shown, root, faults)
			}
			all = append(all, faults)
		}
	}
	r.limits.Compile()
	for _, faults := range all {
		faults.Sort()
		for _, f := range faults.All() {
			if f.Instead = strings.Replace(f.Instead, Minimum, "  domain: api\n", 1); f.Problem == "the file says nothing" || f.Problem == "the file holds no fields" {
				f.Instead = "write domain: and descriptors:"
			}
			m.AddFault(f)
		}
	}
	if _, ok := m.Stores[r.Store]; !ok && r.Store != "" {
		m.report(at.At("store"), m.storeMeant(r.Store), "there is no store %s", quote(r.Store))
		r.Store = ""
	}
	for _, name := range r.limits.Names() {
		if _, twice := m.Gates[name]; twice {
			m.report(fault.Path{"gates", name}, "give the gate another name, or leave the domain out", "the files of rate_limit_service have a domain of this name, which is a gate too")
		}
	}
	for i, name := range r.Debt {
		if r.limits[name] == nil && !m.looksAtDescriptors(name) {
			m.report(at.At("debt").Index(i), "write the name of a domain", "there is no domain %s", quote(name))
		}
	}
	if len(r.Files) == 0 && !m.Has(at) && !m.Has(fault.Path{"gates"}) && !slices.ContainsFunc(slices.Collect(maps.Keys(m.Gates)), m.looksAtDescriptors) {
		m.withoutDomain()
	}
}

// withoutDomain reports the listeners that serve the rate limit service. It has no domain. Rules set at run time
// make none: they are for gates that a file names.
func (m *meaning) withoutDomain() {
	for i := range m.Listeners {
		if k := slices.Index(m.Listeners[i].Serve, ServeRateLimit); k >= 0 {
			m.report(fault.Path{"listeners"}.Index(i).At("serve").Index(k),
				"write rate_limit_service: {files: [limits.yaml]}, or a gate whose quota has a rule with descriptor:, or leave "+ServeRateLimit+" out",
				"there is no domain, so every Envoy that asks would hear OK")
		}
	}
}

// IsDomain reports whether a gate is a domain of the rate limit service.
func (c *Config) IsDomain(gate string) bool {
	return c.RateLimit.limits[gate] != nil || c.looksAtDescriptors(gate)
}

// looksAtDescriptors reports whether a gate of this file is a domain.
func (c *Config) looksAtDescriptors(gate string) bool {
	q := c.Gates[gate].Quota
	return q != nil && q.LooksAt("descriptor")
}

// withDomains returns the gates of the file, and those of the domains.
func (c *Config) withDomains() map[string]policy.GateSpec {
	r := &c.RateLimit
	if len(r.limits) == 0 {
		return c.Gates
	}
	return r.limits.Gates(c.Gates, r.Store, r.OnStoreError, r.Mode)
}

// domainPlace returns where a rule of a domain is written.
func (c *Config) domainPlace(gate, field string) string {
	d, i := c.RateLimit.limits[gate], 0
	if _, err := fmt.Sscanf(field, "rules[%d]", &i); d == nil || err != nil || i >= len(d.Places) {
		return ""
	}
	return d.Places[i]
}

// domainRules are the rules of the domains, for Changes.
func (c *Config) domainRules() any {
	all := map[string]any{}
	for name, d := range maps.All(c.RateLimit.limits) {
		rules := map[string]any{}
		for _, r := range d.Rules {
			gives := r.Rate
			switch {
			case r.Exempt:
				gives = "exempt"
			case r.Blocked:
				gives = "blocked"
			}
			if says := d.Says(r.Pattern()); says != "" {
				gives += ", " + says
			}
			rules[r.Pattern().String()] = gives
		}
		all[name] = rules
	}
	return all
}

// servesRateLimit reports whether any listener serves the rate limit service.
func (c *Config) servesRateLimit() bool {
	return slices.ContainsFunc(c.Listeners, func(l Listener) bool { return slices.Contains(l.Serve, ServeRateLimit) })
}
