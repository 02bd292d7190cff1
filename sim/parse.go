package sim

import (
	"errors"
	"maps"
	"slices"
	"sort"
	"strings"

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

// ParseScenario reads a scenario from JSON, strictly, and puts in what it names:
// its standard backend and policy. The error is a [*Faults] with everything
// that is wrong.
func ParseScenario(data []byte) (*Scenario, error) {
	var s Scenario
	var f faultList
	if err := policy.Decode(data, &s); err != nil {
		f.addError("", err)
		return nil, f.err()
	}
	s.validate(&f)
	s.resolve(&f)
	if err := f.err(); err != nil {
		return nil, err
	}
	s.setDefaults()
	return &s, nil
}

// Load reads an embedded scenario file by its name, without ".json".
func Load(name string) (*Scenario, error) {
	data, err := scenarios.Files.ReadFile(name + ".json")
	if err != nil {
		return nil, &Faults{[]Fault{{Text: "no scenario " + name + "; there are " + strings.Join(Names(), ", ")}}}
	}
	return ParseScenario(data)
}

// Names returns the names of the embedded scenario files.
func Names() []string { return fileNames(".") }

// StandardBackends returns the names of the standard backends.
func StandardBackends() []string { return fileNames("backends") }

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
		return nil, &Faults{[]Fault{{Path: "backend", Text: "no standard backend " + name + "; there are " + strings.Join(StandardBackends(), ", ")}}}
	}
	var std Standard
	var f faultList
	if err := policy.Decode(data, &std); err != nil {
		f.addError("", err)
	} else {
		std.Backend.validate(&f, "backend")
	}
	return &std, f.err()
}

// resolve replaces names by what they stand for, and compiles the policy to see
// what is wrong with it.
func (s *Scenario) resolve(f *faultList) {
	std := &Standard{}
	if s.Backend.Name != "" {
		var err error
		if std, err = LoadStandard(s.Backend.Name); err != nil {
			f.addError("", err)
			return
		}
		s.Backend.Backend = std.Backend
	}
	for i, name := range s.On {
		if _, err := LoadStandard(name); err != nil {
			f.add(index("on", i), "%q: the standard backends are %s", name, strings.Join(StandardBackends(), ", "))
		}
	}
	if name := s.Policy.Name; name != "" && name != "none" {
		spec, ok := std.Policies[name]
		if !ok {
			known := append([]string{"none"}, slices.Sorted(maps.Keys(std.Policies))...)
			f.add("policy", "%q: this backend comes with the policies %s; or write one in full", name, strings.Join(known, ", "))
			return
		}
		s.Policy.Spec = spec
	}
	s.Policy.Spec = s.Fair.in(s.Policy.Spec)
	if p, err := policy.Compile(s.Policy.Spec, policy.Options{Now: standstill}); err != nil {
		f.addError("policy", err)
	} else {
		p.Close()
	}
	if len(*f) == 0 {
		s.validateResolved(f)
	}
}

// addError takes over the faults of another file's, or a policy's, error.
func (f *faultList) addError(path string, err error) {
	var faults *Faults
	var fromPolicy *policy.Faults
	switch {
	case errors.As(err, &fromPolicy):
		if path != "" {
			fromPolicy = fromPolicy.Under(path)
		}
		for _, fault := range fromPolicy.List {
			text := fault.Problem
			if fault.Instead != "" {
				text += "; " + fault.Instead
			}
			*f = append(*f, Fault{fault.Path, fault.Line, text})
		}
	case errors.As(err, &faults):
		*f = append(*f, faults.Faults...)
	default:
		f.add(path, "%v", err)
	}
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
	c := s.clone()
	if backend != "" {
		c.Backend = BackendRef{Name: backend}
	}
	if policyName != "" {
		c.Policy = PolicyRef{Name: policyName}
	}
	var f faultList
	c.resolve(&f)
	if err := f.err(); err != nil {
		return nil, err
	}
	return c, nil
}

// WithPolicy returns the scenario with a policy given in full, under a name for
// reports.
func (s *Scenario) WithPolicy(spec policy.Spec) (*Scenario, error) {
	c := s.clone()
	c.Policy = PolicyRef{Spec: spec}
	var f faultList
	c.resolve(&f)
	if err := f.err(); err != nil {
		return nil, err
	}
	return c, nil
}
