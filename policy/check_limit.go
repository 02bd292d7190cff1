package policy

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// checkLimit checks a concurrency gate. What a value may be does not depend on
// the controller; whether it may stand there at all does.
func (c *compiler) checkLimit(at place, l *LimitSpec) {
	for _, f := range []struct {
		key   string
		value int64
	}{{"limit", l.Limit}, {"min", l.Min}, {"max", l.Max}} {
		switch {
		case f.value < 0:
			c.add(at.at(f.key), fmt.Sprintf("%d is negative", f.value), "write 1 or more slots")
		case f.value > maxLimit:
			c.add(at.at(f.key), fmt.Sprintf("%d slots is more than the %d a gate can have", f.value, maxLimit),
				fmt.Sprintf("write at most %d", maxLimit))
		}
	}
	if !c.checkWord(at.at("controller"), "controller", l.Controller, Controllers()) {
		return
	}
	k, _ := l.kind()
	if k.word == "fixed" && l.Limit == 0 {
		c.add(at.at("limit"), "the controller fixed has no limit to keep",
			"write the number of slots, 1 or more, or choose a controller that finds it")
	}
	for _, s := range l.settings() {
		switch {
		case !s.set:
		case !slices.Contains(k.keys, s.key):
			c.add(at.at(s.key), k.foreign(s.key), "leave it out, or write controller: "+takers(s.key))
		case s.problem != "":
			c.add(at.at(s.key), s.problem, s.instead)
		}
	}
	if k.word != "fixed" {
		c.checkBounds(at, l, k)
	}
}

// foreign says why a setting does not belong to a controller.
func (k *kind) foreign(key string) string {
	if k.word == "fixed" {
		return "means nothing to the controller fixed, whose limit does not move"
	}
	return "means nothing to the controller " + k.word
}

// takers lists the controllers that a setting means something to.
func takers(key string) string {
	var words []string
	for _, k := range kinds {
		if slices.Contains(k.keys, key) {
			words = append(words, k.word)
		}
	}
	return strings.Join(words, " or ")
}

// checkBounds checks the least, the first and the largest limit against each
// other.
func (c *compiler) checkBounds(at place, l *LimitSpec, k kind) {
	low, high := orDefault(l.Min, k.min), orDefault(l.Max, k.max)
	switch {
	case low > 0 && high > 0 && low > high:
		note := ""
		if l.Max == 0 {
			note = ", the default"
		}
		c.add(at.at("min"), fmt.Sprintf("%d is above max (%d%s)", low, high, note),
			"write a min that is not above max, or a higher max")
	case l.Limit > 0 && low > 0 && high > 0 && (l.Limit < low || l.Limit > high):
		c.add(at.at("limit"), fmt.Sprintf("%d is not between min (%d) and max (%d)", l.Limit, low, high),
			"write a limit to start from between them, or leave it out")
	}
}

// setting is a setting that some controllers have, as a spec gives it.
type setting struct {
	key              string
	set              bool
	problem, instead string // empty: nothing is wrong with the value
}

// settings lists the settings that depend on the controller.
func (l *LimitSpec) settings() []setting {
	return []setting{
		{key: "min", set: l.Min != 0},
		{key: "max", set: l.Max != 0},
		atLeast("threshold", l.Threshold, 1, "the latency above which a window counts as overloaded, such as 500ms"),
		share("percentile", l.Percentile, 0, 1, "a share above 0 and at most 1, such as 0.95"),
		factor("backoff", l.Backoff, 0.5, 1, "what to multiply the limit by on overload, such as 0.9"),
		atLeast("window", l.Window, minWindow, "how long to gather samples, such as 1s"),
		count("min_samples", l.MinSamples, "1 or more outcomes"),
	}
}

// minWindow is the shortest window of control.AIMDConfig.
const minWindow = 10 * time.Millisecond

// atLeast is a duration with a least value.
func atLeast(key string, d Duration, least time.Duration, want string) setting {
	s := setting{key: key, set: d != 0}
	switch v := time.Duration(d); {
	case v < 0:
		s.problem, s.instead = fmt.Sprintf("%v is negative", v), "write "+want
	case v < least:
		s.problem, s.instead = fmt.Sprintf("%v is too short to measure anything", v), fmt.Sprintf("write at least %v", least)
	}
	return s
}

// share is a number in (least, most], which somebody may have written in percent.
func share(key string, x, least, most float64, want string) setting {
	s := setting{key: key, set: x != 0}
	if x > least && x <= most {
		return s
	}
	s.problem, s.instead = fmt.Sprintf("%g is not a share in (%g, %g]", x, least, most), "write "+want
	if x > most && x > 1 && x/100 > least && x/100 <= most {
		s.instead = fmt.Sprintf("write %g", x/100)
	}
	return s
}

// factor is a number in [least, below).
func factor(key string, x, least, below float64, want string) setting {
	s := setting{key: key, set: x != 0}
	if !(x >= least && x < below) {
		s.problem, s.instead = fmt.Sprintf("%g is not in [%g, %g)", x, least, below), "write "+want
	}
	return s
}

// count is a whole number above 0.
func count(key string, n int64, want string) setting {
	s := setting{key: key, set: n != 0}
	if n < 0 {
		s.problem, s.instead = fmt.Sprintf("%d is negative", n), "write "+want
	}
	return s
}

func orDefault(value, def int64) int64 {
	if value == 0 {
		return def
	}
	return value
}
