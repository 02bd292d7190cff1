package policy

import (
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"time"
	"unicode"
)

// checkLimit checks a concurrency gate: what can be said better here than by the
// controller itself, then that each setting means something to the controller,
// then what the controller has to say.
func (c *compiler) checkLimit(at place, l *LimitSpec) {
	c.checkWord(at.at("count"), "count", l.Count, counts)
	if l.Count == "requests" && l.RefuseOversize {
		c.add(at.at("refuse_oversize"), "means nothing where each request takes one slot", "leave it out, or count")
	}
	before := len(c.faults)
	c.checkSlots(at, l)
	if !c.checkWord(at.at("controller"), "controller", l.Controller, Controllers()) {
		return
	}
	k, _ := l.kind()
	if k.word == "fixed" && l.Limit == 0 {
		c.add(at.at("limit"), "the controller fixed has no limit to keep",
			"write the number of slots, 1 or more, or choose a controller that finds it")
	}
	c.checkForeign(at, l, k)
	c.checkShares(at, l, k)
	if k.word != "fixed" {
		c.checkBounds(at, l, k)
		c.askController(at, l, k, c.faults[before:])
	}
	c.checkGateSignals(at, l, k)
}

func (c *compiler) checkSlots(at place, l *LimitSpec) {
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
}

// checkForeign finds settings that mean nothing to the controller.
func (c *compiler) checkForeign(at place, l *LimitSpec, k kind) {
	for _, key := range l.given() {
		if k.takes(key) {
			continue
		}
		problem := "means nothing to the controller " + k.word
		if k.word == "fixed" {
			problem += ", whose limit does not move"
		}
		c.add(at.at(key), problem, "leave it out, or write controller: "+strings.Join(takers(key), " or "))
	}
}

// takers lists the controllers that a setting means something to.
func takers(key string) []string {
	var words []string
	for _, k := range kinds {
		if k.takes(key) {
			words = append(words, k.word)
		}
	}
	return words
}

// checkShares finds what is easily written wrong: shares in percent, durations
// and counts below 0.
func (c *compiler) checkShares(at place, l *LimitSpec, k kind) {
	own := k.takes
	if l.Threshold < 0 && own("threshold") {
		c.add(at.at("threshold"), fmt.Sprintf("%v is negative", time.Duration(l.Threshold)),
			"write the latency above which a window counts as overloaded, such as 500ms")
	}
	if p := l.Percentile; p != 0 && !(p > 0 && p <= 1) && own("percentile") {
		c.add(at.at("percentile"), fmt.Sprintf("%g is not a share in (0, 1]", p), shareInstead(p, "write a share above 0 and at most 1, such as 0.95"))
	}
	if r := l.Probe.ReadRatio; r != 0 && !(r > 0 && r < 1) && own("probe") {
		c.add(at.at("probe", "read_ratio"), fmt.Sprintf("%g is not a share between 0 and 1", r), "write the part of the slots that is for reads, such as 0.5")
	}
	if w := time.Duration(l.Window); w != 0 && w < minWindow && own("window") {
		c.add(at.at("window"), fmt.Sprintf("%v is too short to measure anything", w), fmt.Sprintf("write at least %v", minWindow))
	}
	if l.MinSamples < 0 && own("min_samples") {
		c.add(at.at("min_samples"), fmt.Sprintf("%d is negative", l.MinSamples), "write 1 or more outcomes")
	}
}

// minWindow is the shortest window of the controllers of package control.
const minWindow = 10 * time.Millisecond

// checkBounds checks the least, the first and the largest limit against each
// other.
func (c *compiler) checkBounds(at place, l *LimitSpec, k kind) {
	low, high := k.bounds(l)
	switch {
	case low > 0 && high > 0 && low > high:
		if l.Min == 0 {
			c.add(at.at("max"), fmt.Sprintf("%d is below min (%d, the default)", high, low),
				fmt.Sprintf("write at least %d, or a min that is not above max", low))
			break
		}
		note := ""
		if l.Max == 0 {
			note = ", the default"
		}
		c.add(at.at("min"), fmt.Sprintf("%d is above max (%d%s)", low, high, note),
			"write a min that is not above max, or a higher max")
	case l.Probe.ReadWrite && l.Limit > 0 && (l.Limit < 2*low || l.Limit > 2*high):
		c.add(at.at("limit"), fmt.Sprintf("%d slots for two pools are not between twice min (%d) and twice max (%d)", l.Limit, low, high),
			"write a limit to start from between them, or leave it out")
	case l.Probe.ReadWrite:
	case l.Limit > 0 && low > 0 && high > 0 && (l.Limit < low || l.Limit > high):
		c.add(at.at("limit"), fmt.Sprintf("%d is not between min (%d) and max (%d)", l.Limit, low, high),
			"write a limit to start from between them, or leave it out")
	}
}

// askController makes a controller of the settings and reports what it finds
// wrong with them, where that has not been said. Its errors begin with the name
// of a field of its configuration: "Alpha -1: must be positive".
func (c *compiler) askController(at place, l *LimitSpec, k kind, said []Fault) {
	_, err := k.make(l)
	if err == nil {
		return
	}
	told := map[string]bool{}
	for _, f := range said {
		told[group(f.Keys[len(f.Keys)-1])] = true
	}
	for _, e := range leaves(err) {
		name, rest, _ := strings.Cut(e.Error(), " ")
		key := snake(name)
		switch value, must, ok := strings.Cut(rest, ": "); {
		case told[group(key)]:
		case ok && k.takes(key):
			c.add(at.at(key), value+" will not do", inKeys(must))
		case ok && hasKey(l, k.word, key):
			c.add(at.at(k.word, key), value+" will not do", inKeys(must))
		default:
			c.add(at, e.Error(), "")
		}
	}
}

// group makes one of the settings that bound each other: a fault in one of them
// is often told as a fault of another.
func group(key string) string {
	switch key {
	case "min", "max", "initial", "limit":
		return "bounds"
	}
	return key
}

// hasKey reports whether the group of settings of that name has the key.
func hasKey(l *LimitSpec, group, key string) bool {
	for _, f := range reflect.VisibleFields(reflect.TypeOf(*l)) {
		if jsonKey(f) != group || f.Type.Kind() != reflect.Struct {
			continue
		}
		for _, f := range reflect.VisibleFields(f.Type) {
			if jsonKey(f) == key {
				return true
			}
		}
	}
	return false
}

func jsonKey(f reflect.StructField) string {
	key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return key
}

// leaves returns the errors that err is joined of.
func leaves(err error) []error {
	for e := err; e != nil; e = errors.Unwrap(e) {
		joined, ok := e.(interface{ Unwrap() []error })
		if !ok {
			continue
		}
		var all []error
		for _, part := range joined.Unwrap() {
			all = append(all, leaves(part)...)
		}
		return all
	}
	return []error{err}
}

// snake writes MinSamples as min_samples.
func snake(name string) string {
	var b strings.Builder
	for i, r := range name {
		if unicode.IsUpper(r) && i > 0 {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// fieldName is the name of a field of a Go struct in a sentence.
var fieldName = regexp.MustCompile(`\b(?:[A-Z][a-z]+)+\b`)

// inKeys says with the keys of a file what an error of package control or signal
// says with the fields of a Go struct.
func inKeys(sentence string) string { return fieldName.ReplaceAllStringFunc(sentence, snake) }

func orDefault(value, def int64) int64 {
	if value == 0 {
		return def
	}
	return value
}
