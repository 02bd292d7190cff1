package cli

import (
	"slices"
	"strings"
	"testing"
)

// Every example in the help of weir quota is a command line that is understood, and every
// command has one.
func TestQuotaExamples(t *testing.T) {
	at, token := quotaGateway(t)
	seen := 0
	for _, name := range []string{"", "set", "delete", "reset", "list", "describe"} {
		help, _, err := run(NewQuotaCommand(), "", append(strings.Fields(name), "--help")...)
		_, examples, found := strings.Cut(help, "Examples:\n")
		examples, _, _ = strings.Cut(examples, "\n\n")
		if err != nil || !found {
			t.Errorf("%q has no examples: %v\n%s", name, err, help)
			continue
		}
		for _, line := range strings.Split(strings.Trim(examples, "\n"), "\n") {
			command, _, _ := strings.Cut(strings.TrimSpace(line), "  # ") // a comment, in a shell too
			args := fields(strings.TrimPrefix(command, "weir quota"))
			if strings.HasPrefix(command, "weir explain") {
				continue
			}
			if i := slices.Index(args, "--admin"); i >= 0 {
				args = slices.Delete(args, i, i+2)
			}
			if i := slices.Index(args, "--token-file"); i >= 0 {
				args = slices.Delete(args, i, i+2)
			}
			args = append(args, "--admin", at)
			if !slices.Contains([]string{"list", "describe"}, args[0]) {
				args = append(args, "--token-file", token)
			}
			_, _, err := run(NewQuotaCommand(), "", args...)
			if err != nil && !strings.Contains(err.Error(), "has no rule for") {
				t.Errorf("%s: %v", command, err)
			}
			seen++
		}
	}
	if seen < 15 {
		t.Errorf("only %d examples", seen)
	}
}

// What a filter does not find is told with how to find out what counts.
func TestQuotaDescribeNobody(t *testing.T) {
	at, _ := quotaGateway(t)
	out, _, err := run(NewQuotaCommand(), "", "describe", "--user", "nobody", "--admin", at)
	if err != nil || !strings.Contains(out, "no rule says user=nobody; which one counts for a request, weir explain says") {
		t.Errorf("%v\n%s", err, out)
	}
	if out, _, _ = run(NewQuotaCommand(), "", "list", "--admin", at); strings.Contains(out, "explain") {
		t.Errorf("%s", out)
	}
}
