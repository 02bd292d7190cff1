package cli

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/weir-go/weir/gateway/internal/quotas"
)

// printSteps prints what a change has done.
func printSteps(out io.Writer, res *quotas.Result) error {
	did := "now"
	if res.ValidateOnly {
		did = "would be"
	}
	if len(res.Steps) == 0 {
		_, err := fmt.Fprintln(out, "nothing to change")
		return err
	}
	for i := range res.Steps {
		s := &res.Steps[i]
		if _, err := fmt.Fprintf(out, "gate %s, %s: %s %s\n", s.Gate, printable(s.Matches), did, outcomeOf(s)); err != nil {
			return err
		}
	}
	return nil
}

// outcomeOf says what holds after a step, and what it took the place of.
func outcomeOf(s *quotas.Step) string {
	var was []string
	if s.Before != nil {
		was = append(was, "set before: "+quotas.InFull(&s.Before.QuotaRuleSpec))
	}
	text := s.Gives
	switch {
	case s.After == nil:
		text = "as the file says: " + cmp.Or(s.FileGives, "no rule for it")
	case s.FileGives != "":
		was = append(was, "the file gives "+s.FileGives)
	}
	if len(was) > 0 {
		text += " (" + strings.Join(was, "; ") + ")"
	}
	return text
}

// printRules prints rules as a table.
func printRules(out io.Writer, l *quotas.Look, dynamicOnly bool) error {
	if l.KeptIn == "" {
		fmt.Fprintln(out, "no rules can be set at run time: quotas: in the configuration says where they are kept")
	} else {
		fmt.Fprintf(out, "rules set at run time are kept in %s, ETag %s\n", l.KeptIn, l.ETag)
	}
	if l.Trouble != "" {
		fmt.Fprintf(out, "they cannot be read now, and those that are known stay in force: %s\n", l.Trouble)
	}
	p := &page{Writer: tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)}
	for i := range l.Rules {
		v := &l.Rules[i]
		force := "yes"
		if !v.InForce {
			force = "no: " + v.Because
		}
		if dynamicOnly {
			p.row("GATE|MATCHES|GIVES|SET|BY|IN FORCE", v.Gate, printable(v.Matches), v.Gives, when(v.SetAt), orDash(v.SetBy), force)
			continue
		}
		p.row("GATE|MATCHES|GIVES|FROM|IN FORCE", v.Gate, printable(v.Matches), v.Gives, v.Origin(), force)
	}
	if len(l.Rules) == 0 {
		fmt.Fprintln(p, "none")
	}
	return p.Flush()
}

func when(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format(time.RFC3339)
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
