package explain

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/quotas"
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
	for _, r := range q.Explain(w) {
		rule := Rule{Rule: r.Name, Gives: gives(&r.Rule), Counts: r.Why != "", Why: r.Why}
		if v.From != nil {
			rule.From = v.From(q.Name(), &r.Rule)
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

// printRules prints the rules that match, of all gates.
func (a *Answer) printRules(out io.Writer, word func(string) string) error {
	p := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	head := "\nGATE\tRULE THAT MATCHES\tGIVES\tFROM\tCOUNTS\n"
	for _, g := range a.Gates {
		for _, r := range g.Rules {
			counts, from := "no", "-"
			if r.Counts {
				counts = "yes: " + quotas.Clean(r.Why)
			}
			if r.From != "" {
				from = quotas.Clean(r.From)
			}
			fmt.Fprintf(p, "%s%s\t%s\t%s\t%s\t%s\n", head, g.Name, word(r.Rule), r.Gives, from, counts)
			head = ""
		}
	}
	return p.Flush()
}
