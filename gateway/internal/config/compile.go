package config

import (
	"errors"
	"maps"
	"strconv"

	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/policy"
)

// policy compiles what the file says of gates and routes, to learn what the
// compiler objects to. The limits of upstreams are compiled as gates of their own.
func (m *meaning) policy() {
	m.compile(m.Config.Policy(), "gates")
	limits := map[string]policy.GateSpec{}
	for name, u := range maps.All(m.Upstreams) {
		if u.Limit != nil {
			limits[name] = policy.GateSpec{Limit: u.Limit}
		}
	}
	m.compile(policy.Spec{Signals: m.Signals, Gates: limits}, "upstreams")
}

// compile reports the compiler's faults at their lines, with gates standing
// under the given key in the file. What already had a fault before is left out:
// the compiler saw only a zero value there.
func (m *meaning) compile(spec policy.Spec, gates string) {
	p, err := policy.Compile(spec, policy.Options{Readings: silent{}, Stores: m.unasked()})
	if err == nil {
		p.Close()
		return
	}
	var faults *policy.Faults
	if !errors.As(err, &faults) {
		m.report("", "", "the policy cannot be compiled: %v", err)
		return
	}
	var fresh []Fault
	for _, f := range faults.List {
		if path := m.pathOf(f.Keys, gates); !m.faulty(path) {
			fresh = append(fresh, Fault{Path: path, Problem: f.Problem, Remedy: f.Instead})
		}
	}
	for _, f := range fresh {
		m.add(m.where(f.Path), f.Path, f.Remedy, f.Problem)
	}
}

// silent is a source of no readings, in the place of a poller: to check a file is
// to connect to nothing.
type silent struct{}

// Readings implements control.Source.
func (silent) Readings(into []control.Reading) []control.Reading { return into }

// pathOf turns the steps to a field into a path as the decoder writes it, which
// knows whether a number is an index or a name.
func (m *meaning) pathOf(keys []string, gates string) string {
	path := ""
	for i, k := range keys {
		if i == 0 && k == "gates" {
			k = gates
		}
		item := path + "[" + k + "]"
		if _, ok := m.pos[item]; ok {
			path = item
			continue
		}
		sub := join(path, k)
		if _, err := strconv.Atoi(k); err == nil && m.pos[sub] == (position{}) && path != "" {
			sub = item
		}
		path = sub
	}
	return path
}
