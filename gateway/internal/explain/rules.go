package explain

import (
	"fmt"
	"io"
	"net/netip"
	"strings"
	"text/tabwriter"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/quota"
)

// Rule is a rule of a quota that matches the request.
type Rule struct {
	Rule  string `json:"rule"`
	Gives string `json:"gives"`
	// From is where it was written, or when and by whom it was set at run time.
	From   string `json:"from,omitempty"`
	Counts bool   `json:"counts"`
	// Why says why it counts.
	Why string `json:"why,omitempty"`
}

// rules are those of a quota that match w, the one that counts first.
func (v *View) rules(q *quota.Quota, w weir.Work) (all []Rule) {
	matching := q.Matching(w)
	for i := range matching {
		r := &matching[i]
		rule := Rule{Rule: r.Name, Gives: gives(r)}
		if v.From != nil {
			rule.From = v.From(q.Name(), r)
		}
		if i == 0 {
			rule.Counts, rule.Why = true, "no other matches"
			if len(matching) > 1 {
				rule.Why = moreExact(r, &matching[1])
			}
		}
		all = append(all, rule)
	}
	return all
}

// gives says what a rule gives.
func gives(r *quota.Rule) string {
	switch {
	case r.Exempt:
		return "exempt"
	case r.Blocked:
		return "blocked"
	}
	words := make([]string, len(r.Windows))
	for i, l := range r.Windows {
		words[i] = l.String()
	}
	return strings.Join(words, "; ")
}

// How a rule looks at a part of an identity, the most exact last.
const (
	unseen = iota
	forEach
	byName
)

func exactness(m quota.Match) int {
	if _, ok := m.Value(); ok {
		return byName
	}
	if m == quota.Every {
		return forEach
	}
	return unseen
}

// moreExact says why first counts and next, which matches too, does not: by the first
// part that they do not look at alike.
func moreExact(first, next *quota.Rule) string {
	for _, part := range quota.Parts() {
		is, not := *first.Part(part), *next.Part(part)
		switch a, b := exactness(is), exactness(not); {
		case a == byName && b == forEach:
			return fmt.Sprintf("it names the %s, and %s is for each", part, next.Name)
		case a == byName && b == unseen:
			return fmt.Sprintf("it names the %s, at which %s does not look", part, next.Name)
		case a == forEach && b == unseen:
			return fmt.Sprintf("it is for each %s, at which %s does not look", part, next.Name)
		case a == byName && smaller(is, not):
			return fmt.Sprintf("its network is smaller than that of %s", next.Name)
		}
	}
	return "it is the most exact" // cannot be: alike in all parts they are one rule
}

// smaller reports whether a network is smaller than another.
func smaller(a, b quota.Match) bool {
	bits := func(m quota.Match) int {
		name, _ := m.Value()
		if n, err := netip.ParsePrefix(name); err == nil {
			return n.Bits()
		}
		if a, err := netip.ParseAddr(name); err == nil {
			return a.BitLen()
		}
		return 0
	}
	return bits(a) > bits(b)
}

// printRules prints the rules that match, of all gates.
func (a *Answer) printRules(out io.Writer, word func(string) string) error {
	p := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	head := "\nGATE\tRULE THAT MATCHES\tGIVES\tFROM\tCOUNTS\n"
	for _, g := range a.Gates {
		for _, r := range g.Rules {
			counts, from := "no", "-"
			if r.Counts {
				counts = "yes: " + clean(r.Why)
			}
			if r.From != "" {
				from = clean(r.From)
			}
			fmt.Fprintf(p, "%s%s\t%s\t%s\t%s\t%s\n", head, g.Name, word(r.Rule), r.Gives, from, counts)
			head = ""
		}
	}
	return p.Flush()
}
