package policy

import (
	"context"
	"fmt"
	"maps"
	"math"
	"net/url"
	"slices"
	"strings"

	"github.com/weir-go/weir/signal"
)

// checkSignals checks the signals that the spec defines.
func (c *compiler) checkSignals() {
	for _, name := range slices.Sorted(maps.Keys(c.spec.Signals)) {
		at := place{"signals", name}
		spec := c.spec.Signals[name]
		c.checkName(at, "signal", name)
		r, ok := c.reads(name)
		if !ok {
			if spec.Read != "" {
				at = at.at("read")
			}
			word := spec.Read
			if word == "" {
				word = name
			}
			c.add(at, fmt.Sprintf("%q is nothing that a signal can read", word), c.suggestReading(word))
			continue
		}
		for _, key := range spec.given() {
			if !slices.Contains(r.keys, key) {
				c.add(at.at(key), "means nothing to a signal that reads "+r.word, "leave it out")
			}
		}
		c.checkWord(at.at("then"), "word for then", spec.Then, thens)
		for _, err := range r.problems(name, spec) {
			c.add(at.at(err.key), err.problem, err.instead)
		}
	}
}

func (c *compiler) suggestReading(word string) string {
	known := append(slices.Sorted(maps.Keys(c.opts.Signals)), SignalKinds()...)
	if n := nearest(word, known); n != "" {
		return "write read: " + n
	}
	return "write read: and one of " + strings.Join(known, ", ")
}

// checkGateSignals checks which signals a gate goes by.
func (c *compiler) checkGateSignals(at place, l *LimitSpec, k kind) {
	for i, name := range l.Signals {
		at := at.at("signals").index(i)
		switch {
		case slices.Contains(l.Signals[:i], name):
			c.add(at, fmt.Sprintf("%q is in the list already", name), "leave one of them out")
		case name == l.lagSignal():
			c.add(at, fmt.Sprintf("%q is a lag and no pressure", name), "leave it out here; the controller "+k.word+" goes by it")
		default:
			c.checkSignalName(at, name)
		}
	}
	if k.word == "lag" || k.word == "drain" {
		at := at.at(k.word, "signal")
		if lag := l.lagSignal(); lag != "" {
			c.checkSignalName(at, lag)
		} else {
			c.add(at, "the controller "+k.word+" has no lag to go by", "name a signal whose value is the lag")
		}
	}
	if k.heeds && len(l.Signals) == 0 {
		c.add(at.at("signals"), "the controller "+k.word+" has nothing to go by", "write for instance [cpu, memory]")
	}
	if len(l.sources()) > 0 && c.opts.Now != nil && c.opts.Readings == nil {
		c.add(at, "signals are read from this machine in its own time, and there is none on virtual time",
			"leave them out, or hand in Options.Readings")
	}
}

// checkSignalName checks that there is a signal of that name.
func (c *compiler) checkSignalName(at place, name string) {
	if _, defined := c.spec.Signals[name]; defined {
		return // and has been checked
	}
	r, ok := c.reads(name)
	if !ok {
		known := append(slices.Sorted(maps.Keys(c.spec.Signals)), slices.Sorted(maps.Keys(c.opts.Signals))...)
		known = append(known, SignalKinds()...)
		instead := suggest(name, known, "signals")
		if nearest(name, known) == "" {
			instead = "say under signals: what it reads, or " + instead
		}
		c.add(at, fmt.Sprintf("there is no signal %q", name), instead)
		return
	}
	for _, p := range r.problems(name, SignalSpec{}) {
		c.add(at, fmt.Sprintf("the signal %s has to be told its %s", name, p.key), fmt.Sprintf("write it under signals: %s:", name))
	}
}

// given lists the settings that depend on what is read and that the spec gives.
func (s *SignalSpec) given() []string {
	var keys []string
	for _, f := range []struct {
		key string
		set bool
	}{
		{"threshold", s.Threshold != 0}, {"wait", s.Wait != 0}, {"over", s.Over != 0},
		{"path", s.Path != ""}, {"url", s.URL != ""}, {"field", s.Field != ""},
	} {
		if f.set {
			keys = append(keys, f.key)
		}
	}
	return keys
}

// problem is what is wrong with one setting.
type problem struct{ key, problem, instead string }

// problems returns everything that is wrong with the values of a signal's
// settings. How it is polled is tried on a signal that costs nothing to read.
func (r *reading) problems(name string, spec SignalSpec) []problem {
	var all []problem
	if t := spec.Threshold; t < 0 || math.IsNaN(t) || math.IsInf(t, 0) {
		return []problem{{"threshold", fmt.Sprintf("%g will not do", t), "write the most that is wanted, a number above 0"}}
	}
	switch {
	case r.word == "file" && spec.Path == "":
		all = append(all, problem{"path", "no file is named", "write the file that holds the number"})
	case r.word == "http":
		if u, err := url.Parse(spec.URL); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			all = append(all, problem{"url", fmt.Sprintf("%q is no http or https URL", spec.URL), "write for instance http://127.0.0.1:8000/lag"})
		}
	}
	if spec.Then == "safe" && spec.SafeValue == 0 {
		all = append(all, problem{"safe_value", "then: safe has no value to put in place of a missing one",
			"write the pressure to go by, such as 2 (above 1 the limit shrinks), or the lag"})
	}
	w, err := r.watch(name, spec)
	if err != nil {
		return append(all, asProblems(err)...)
	}
	w.Signal = signal.Func(name, func(context.Context) (float64, error) { return 0, signal.ErrNoValue })
	p, err := signal.NewPoller(signal.Config{Watches: []signal.Watch{w}})
	if err != nil {
		return append(all, asProblems(err)...)
	}
	p.Close()
	return all
}

// asProblems turns the errors of package signal, which begin with the name of a
// field, into the problems of settings.
func asProblems(err error) []problem {
	var all []problem
	for _, e := range leaves(err) {
		name, rest, _ := strings.Cut(e.Error(), " ")
		value, must, _ := strings.Cut(rest, ": ")
		key := snake(name)
		switch key {
		case "share", "per_proc", "max":
			key = "threshold"
		}
		all = append(all, problem{key, value + " will not do", inKeys(must)})
	}
	return all
}
