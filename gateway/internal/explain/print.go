package explain

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/weir-go/weir/gateway/internal/quotas"
)

// Print writes the answer for people. word makes a name fit for a terminal.
func (a *Answer) Print(out io.Writer, word func(string) string) error {
	fmt.Fprintln(out, a.subject(word))
	p := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	line := func(cells ...string) {
		for i, c := range cells {
			if c == "" {
				cells[i] = "-"
			}
		}
		fmt.Fprintln(p, strings.Join(cells, "\t"))
	}
	if a.Route != "" {
		line("route", word(a.Route)+a.where())
	}
	if a.connects() {
		line("address", named(a.User, word))
	} else {
		line("user", named(a.User, word))
		line("client", named(a.Client, word))
	}
	if a.Kafka == nil {
		line("tenant", named(a.Tenant, word))
		line("priority", a.Priority)
	}
	if a.Cost < 0 {
		line("cost", "cannot be read")
	} else {
		line("cost", fmt.Sprint(a.Cost))
	}
	if a.Descriptor == "" && a.Kafka == nil {
		line("headers", map[bool]string{true: "believed", false: "not believed: the address is not trusted"}[a.Trusted])
	}
	if len(a.Gates) > 0 {
		fmt.Fprintln(p)
		line("GATE", "KIND", "MODE", "RULE", "BUCKET", "LIMITS", "SAYS", "WHY")
	}
	for _, g := range a.Gates {
		line(g.Name, g.Kind, string(g.Mode), named(g.Rule, word), named(g.Bucket, word), strings.Join(g.Limits, "; "), string(g.Says), g.Why)
	}
	if err := p.Flush(); err != nil {
		return err
	}
	if err := a.printRules(out, word); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(out, "\n%s\n", a.verdict()); err != nil {
		return err
	}
	for _, note := range a.Notes {
		if _, err := fmt.Fprintln(out, quotas.Clean(note)); err != nil {
			return err
		}
	}
	return nil
}

// subject is what the answer is about.
func (a *Answer) subject(word func(string) string) string {
	switch k := a.Kafka; {
	case a.connects():
		return "new connection to " + word(k.Cluster)
	case k != nil:
		return fmt.Sprintf("%s version %d at %s", k.API, k.Version, word(k.Cluster))
	case a.Descriptor != "":
		return "descriptor " + word(a.Descriptor)
	}
	return word(a.Method) + " " + word(a.Path)
}

// connects reports whether the answer is about a new connection of Kafka.
func (a *Answer) connects() bool { return a.Kafka != nil && a.Kafka.API == connect }

func named(name string, word func(string) string) string {
	if name == "" {
		return ""
	}
	return word(name)
}

// where says what is known of the route.
func (a *Answer) where() string {
	text := ""
	if a.Upstream != "" {
		text = " to " + a.Upstream
	}
	if a.TimeoutMS > 0 {
		text += ", timeout " + (time.Duration(a.TimeoutMS) * time.Millisecond).String()
	}
	if a.Exempt {
		text += ", exempt"
	}
	return text
}

// verdict is what becomes of the request, in a sentence.
func (a *Answer) verdict() string {
	var waits []string
	for _, g := range a.Gates {
		if g.Says == Waits {
			waits = append(waits, g.Name)
		}
	}
	switch {
	case a.Kafka != nil:
		return a.Kafka.verdict(a.Gates)
	case a.Status == http.StatusNotFound && a.Route == "":
		return "No route matches: 404."
	case a.By == "" && a.Status != 0:
		return fmt.Sprintf("The path or the host means different things to different servers: %d.", a.Status)
	case a.Status != 0 && a.AfterMS > 0:
		return fmt.Sprintf("Refused by %s: %d, come back in %v.", a.By, a.Status, time.Duration(a.AfterMS)*time.Millisecond)
	case a.Status != 0:
		return fmt.Sprintf("Refused by %s: %d.", a.By, a.Status)
	case a.Descriptor != "":
		return "OK."
	case len(waits) > 0:
		return "Waits at " + strings.Join(waits, " and then at ") + ", until it is served or refused."
	case len(a.Gates) == 0:
		return "Goes to the upstream: no gate is on its way."
	}
	return "Goes to the upstream."
}
