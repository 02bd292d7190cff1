package quotas

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/policy"
)

// misfits returns what is wrong with rules under a configuration, by their index:
// everything that would be wrong with them in the file, too.
func misfits(spec *policy.Spec, rules []Rule) map[int][]Fault {
	found := map[int][]Fault{}
	byGate := map[string][]int{}
	for i := range rules {
		byGate[rules[i].Gate] = append(byGate[rules[i].Gate], i)
	}
	for gate, at := range byGate {
		g, ok := spec.Gates[gate]
		if !ok || g.Quota == nil {
			f := noQuota(spec, gate, ok)
			for _, i := range at {
				found[i] = []Fault{f}
			}
			continue
		}
		for _, f := range compileWith(spec, gate, g, rules, at) {
			fit(f, rules, at, found)
		}
	}
	return found
}

// noQuota is the fault of a rule for a gate that has no quota.
func noQuota(spec *policy.Spec, gate string, exists bool) Fault {
	f := Fault{Field: "gate", Problem: fmt.Sprintf("there is no gate %.60q", gate), Instead: "the configuration has no gate with a quota; add one"}
	if exists {
		f.Problem = fmt.Sprintf("gate %q has no quota", gate)
	}
	if names := quotaGates(spec); len(names) > 0 {
		f.Instead = "gates with a quota are " + strings.Join(names[:min(len(names), 10)], ", ")
	}
	return f
}

// quotaGates are the names of the gates that have a quota.
func quotaGates(spec *policy.Spec) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(spec.Gates)) {
		if spec.Gates[name].Quota != nil {
			names = append(names, name)
		}
	}
	return names
}

// silent is a source of no readings: to check rules is to poll nothing.
type silent struct{}

// Readings implements control.Source.
func (silent) Readings(into []control.Reading) []control.Reading { return into }

// compileWith compiles a gate alone with the rules at some places before those of the
// file, and returns the faults of its quota.
func compileWith(spec *policy.Spec, gate string, g policy.GateSpec, rules []Rule, at []int) (faults []policy.Fault) {
	q := policy.QuotaSpec{Debt: g.Quota.Debt, Permissive: g.Quota.Permissive}
	for _, i := range at {
		q.Rules = append(q.Rules, rules[i].QuotaRuleSpec)
	}
	g = policy.GateSpec{Quota: &q}
	alone := policy.Spec{Identity: spec.Identity, Routes: spec.Routes, Gates: map[string]policy.GateSpec{gate: g}}
	p, err := policy.Compile(alone, policy.Options{Readings: silent{}})
	if err == nil {
		p.Close()
		return nil
	}
	var all *policy.Faults
	if !errors.As(err, &all) {
		return []policy.Fault{{Keys: []string{"gates", gate, "quota"}, Problem: err.Error()}}
	}
	for _, f := range all.List { // others are of routes whose gates have been left out
		if len(f.Keys) >= 3 && f.Keys[0] == "gates" && f.Keys[1] == gate && f.Keys[2] == "quota" {
			faults = append(faults, f)
		}
	}
	return faults
}

// fit writes down a fault of the quota under the rule that it is about. One about no
// rule is about all that look at addresses: so far only those have such.
func fit(f policy.Fault, rules []Rule, at []int, found map[int][]Fault) {
	fault := Fault{Problem: f.Problem, Instead: f.Instead}
	if len(f.Keys) >= 5 && f.Keys[3] == "rules" {
		if n, err := strconv.Atoi(f.Keys[4]); err == nil && n < len(at) {
			fault.Field = strings.Join(f.Keys[5:], ".")
			found[at[n]] = append(found[at[n]], fault)
			return
		}
	}
	for _, i := range at {
		if rules[i].Address != "" || len(at) == 1 {
			found[i] = append(found[i], fault)
		}
	}
}
