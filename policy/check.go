package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxName bounds names of gates and routes, which become metric labels.
const maxName = 256

// check finds every fault that can be seen in the spec itself, and returns the
// parts of the policy that need no gates: identity, routes, matcher.
func (c *compiler) check() *Policy {
	p := &Policy{now: c.opts.Now}
	p.identity = c.checkIdentity()
	p.timeouts = c.checkTimeouts()
	c.checkSignals()
	p.names = slices.Sorted(maps.Keys(c.spec.Gates))
	for _, name := range p.names {
		c.checkGate(name)
		if l := c.spec.Gates[name].Limit; l != nil && l.Queue.Order == edf {
			p.edf = true
		}
	}
	c.checkRoutes(p)
	c.checkAdmissions(p)
	c.checkWildcards(p)
	return p
}

// checkName refuses names that would spoil a log line or a metric label.
func (c *compiler) checkName(at place, what, name string) {
	switch {
	case name == "":
		c.add(at, "a "+what+" without a name", "give it one")
	case len(name) > maxName:
		c.add(at, fmt.Sprintf("a name of %d bytes", len(name)), fmt.Sprintf("write one of at most %d", maxName))
	case !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl):
		c.add(at, fmt.Sprintf("the name %q has characters that cannot be printed", name), "leave them out")
	}
}

// checkWord refuses a word that is not known; the empty word is the default.
func (c *compiler) checkWord(at place, what, word string, known []string) bool {
	if word == "" || slices.Contains(known, word) {
		return true
	}
	c.add(at, fmt.Sprintf("%q is no %s", word, what), suggest(word, known, what+"s"))
	return false
}

var modes = []string{string(Enforce), string(Observe), string(Off)}

// priorities are the words for weir.Priority, least important first.
var priorities = []string{"background", "normal", "high", "critical"}
