package sim

import (
	"cmp"
	"maps"
	"slices"
	"sort"
	"strings"

	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/internal/jsontree"
	"github.com/weir-go/weir/internal/setting"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/scenarios"
)

// Standard is a standard backend, with the policies that come with it.
type Standard struct {
	// HeldOut says that no default was tuned on it: a scoreboard counts it
	// apart.
	HeldOut bool `json:"held_out,omitempty"`
	// Backend is the law and its figures.
	Backend Backend `json:"backend"`
	// Policies by name: "fixed", "aimd".
	Policies map[string]policy.Spec `json:"policies,omitempty"`
}

// Faults is everything that is wrong with a scenario.
type Faults = fault.Faults

// ParseScenario reads a scenario from JSON, strictly, and puts in what it names:
// its standard backend and policy. The error is a [*Faults] with everything
// that is wrong.
func ParseScenario(data []byte) (*Scenario, error) {
	var faults fault.List
	return ReadScenario(jsontree.Parse(data, &faults), &faults)
}

// ReadScenario is [ParseScenario] for a parsed document, of JSON or YAML, and the list of its
// faults so far. With faults, the document may be nil.
func ReadScenario(root *setting.Node, faults *fault.List) (*Scenario, error) {
	var s Scenario
	if root != nil {
		setting.Decode(root, &s, faults)
		var meaning fault.List
		for i := range faults.All() {
			if f := &faults.All()[i]; len(f.Path) == 4 && f.Path[0] == "policy" && f.Path[3] == "upstream" {
				f.Instead = "leave it out: a scenario has one backend"
			}
		}
		if fair := (fault.Path{"fair"}); faults.Has(fair) {
			meaning.Blame(fair)
		}
		s.check(&meaning)
		s.resolve(&meaning)
		faults.AddFresh(nil, meaning.Err(""))
		faults.Sort()
	}
	if err := faults.Err(""); err != nil {
		return nil, err
	}
	s.setDefaults()
	return &s, nil
}

// Load reads an embedded scenario by the name of its file, without ".json", or by its
// plain name: "S5" and "retry-storm" are the same one.
func Load(name string) (*Scenario, error) {
	data, err := scenarios.Files.ReadFile(Code(name) + ".json")
	if err != nil {
		return nil, fault.New("no scenario "+name, fault.Suggest(name, append(Names(), plainNames()...), "scenarios"))
	}
	return ParseScenario(data)
}

// Code returns the name of the embedded file of a scenario with a plain name: "S5" for
// "retry-storm". Any other text it returns as it is.
func Code(name string) string {
	for code, plain := range scenarios.PlainNames {
		if plain == name {
			return code
		}
	}
	return name
}

// PlainName returns the plain name of an embedded scenario: "retry-storm" for "S5". That of
// a scenario that has no code is its name.
func PlainName(name string) string { return cmp.Or(scenarios.PlainNames[name], name) }

func plainNames() []string { return slices.Sorted(maps.Values(scenarios.PlainNames)) }

// Names returns the names of the embedded scenario files, which are the codes of those that
// have one.
func Names() []string { return fileNames(".") }

// standardBackends returns the names of the standard backends.
func standardBackends() []string { return fileNames("backends") }

func fileNames(dir string) []string {
	entries, err := scenarios.Files.ReadDir(dir)
	if err != nil {
		return nil
	}
	var names []string
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), ".json"); ok {
			names = append(names, name)
		}
	}
	sort.Strings(names)
	return names
}

// LoadStandard returns a standard backend by name.
func LoadStandard(name string) (*Standard, error) {
	data, err := scenarios.Files.ReadFile("backends/" + name + ".json")
	if err != nil {
		return nil, fault.New("no standard backend "+name, "there are "+strings.Join(standardBackends(), ", "))
	}
	var std Standard
	var f fault.List
	if root := jsontree.Parse(data, &f); root != nil {
		setting.Decode(root, &std, &f)
	}
	if f.Len() == 0 {
		std.Backend.check(&f, fault.Path{"backend"})
	}
	return &std, f.Err("")
}

// resolve replaces names by what they stand for, and compiles the policy to see
// what is wrong with it.
func (s *Scenario) resolve(f *fault.List) {
	std := &Standard{}
	if s.Backend.Name != "" {
		var err error
		if std, err = LoadStandard(s.Backend.Name); err != nil {
			f.AddError(fault.Path{"backend"}, err)
			return
		}
		s.Backend.Backend = std.Backend
	}
	for i, name := range s.On {
		if _, err := LoadStandard(name); err != nil {
			f.Require(false, fault.Path{"on"}.Index(i), "%q: the standard backends are %s", name, strings.Join(standardBackends(), ", "))
		}
	}
	if name := s.Policy.Name; name != "" && name != "none" {
		spec, ok := std.Policies[name]
		if !ok {
			known := append([]string{"none"}, slices.Sorted(maps.Keys(std.Policies))...)
			f.Require(false, fault.Path{"policy"}, "%q: this backend comes with the policies %s; or write one in full", name, strings.Join(known, ", "))
			return
		}
		s.Policy.Spec = spec
	}
	if s.compiles(f) && !f.Has(fault.Path{"fair"}) {
		s.Policy.Spec = s.Fair.in(s.Policy.Spec, f)
		s.compiles(f)
	}
	s.checkSignals(f)
	if f.Len() == 0 {
		s.checkResolved(f)
	}
}

// compiles reports whether the policy does, and adds what is wrong with it.
func (s *Scenario) compiles(f *fault.List) bool {
	p, err := policy.Compile(s.Policy.Spec, s.options(standstill, silent{}))
	if err != nil {
		f.AddError(fault.Path{"policy"}, err)
		return false
	}
	p.Close()
	return true
}

// setDefaults fills in what a scenario left out.
func (s *Scenario) setDefaults() {
	if len(s.Seeds) == 0 {
		s.Seeds = []uint64{1, 2, 3, 4, 5}
	}
	if len(s.Traffic) == 0 {
		s.Traffic = []Class{{}}
	}
	s.Gateways = max(1, s.Gateways)
}

// With returns the scenario on another standard backend and with another of its
// policies; an empty name keeps what there is.
func (s *Scenario) With(backend, policyName string) (*Scenario, error) {
	return s.with(func(c *Scenario) {
		if backend != "" {
			c.Backend = BackendRef{Name: backend}
		}
		if policyName != "" {
			c.Policy = PolicyRef{Name: policyName}
		}
	})
}

// WithPolicy returns the scenario with a policy given in full.
func (s *Scenario) WithPolicy(spec policy.Spec) (*Scenario, error) {
	return s.with(func(c *Scenario) { c.Policy = PolicyRef{Spec: spec} })
}

// with returns the scenario with a change.
func (s *Scenario) with(change func(*Scenario)) (*Scenario, error) {
	c := s.clone()
	change(c)
	var f fault.List
	c.resolve(&f)
	if err := f.Err(""); err != nil {
		return nil, err
	}
	return c, nil
}
