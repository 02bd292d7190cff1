package cli

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/weir-go/weir"
)

// look is what status reads of /gates.
type look struct {
	Ready    bool       `json:"ready"`
	InFlight int64      `json:"requests_in_flight"`
	Gates    []gateLook `json:"gates"`
	Signals  []struct {
		Name  string   `json:"name"`
		State string   `json:"state"`
		Value *float64 `json:"value"`
		Error string   `json:"error"`
	} `json:"signals"`
	Stores    []storeLook    `json:"stores"`
	Tenants   []tenantLook   `json:"tenants"` // the last is the rest of them
	Listeners []listenerLook `json:"connections"`
}

type tenantLook struct {
	Tenant  string  `json:"tenant"`
	Served  uint64  `json:"served"`
	Refused uint64  `json:"refused"`
	Failed  uint64  `json:"failed"`
	Seconds float64 `json:"served_seconds"`
}

type gateLook struct {
	Name           string            `json:"name"`
	Mode           string            `json:"mode"`
	Limit          int64             `json:"limit"`
	InFlight       int64             `json:"in_flight"`
	Waiting        int64             `json:"waiting"`
	WaitingByClass map[string]int64  `json:"waiting_by_class"`
	Exempt         int64             `json:"exempt"`
	ExemptAdmitted uint64            `json:"exempt_admitted"`
	Admitted       uint64            `json:"admitted"`
	Rejected       map[string]uint64 `json:"rejected"`
	Controller     string            `json:"controller"`
	Reason         string            `json:"limit_reason"`
	Signal         string            `json:"signal"`
	Kind           string            `json:"kind"`
	Keys           *keysLook         `json:"keys"`
	Quota          *quotaLook        `json:"quota"`
	Parts          map[string]struct {
		Limit    int64  `json:"limit"`
		InFlight int64  `json:"in_flight"`
		Waiting  int64  `json:"waiting"`
		Admitted uint64 `json:"admitted"`
	} `json:"parts"`
}

type keysLook struct {
	Known   int64  `json:"known"`
	Max     int64  `json:"max"`
	Busy    int64  `json:"busy"`
	Evicted uint64 `json:"evicted"`
	Bytes   int64  `json:"bytes"`
	Top     []struct {
		Key      string `json:"key"`
		Limit    int64  `json:"limit"`
		InFlight int64  `json:"in_flight"`
		Waiting  int64  `json:"waiting"`
		Admitted uint64 `json:"admitted"`
		Refused  uint64 `json:"refused"`
	} `json:"top"`
}

// page writes tables, each with a heading and a blank line before it.
type page struct {
	*tabwriter.Writer
	headed string
}

// row writes a row of the table with that heading, which it begins if need be.
func (p *page) row(heading string, cells ...any) {
	if p.headed != heading {
		fmt.Fprintf(p, "\n%s\n", strings.ReplaceAll(heading, "|", "\t"))
		p.headed = heading
	}
	text := make([]string, len(cells))
	for i, c := range cells {
		if text[i] = fmt.Sprint(c); text[i] == "" {
			text[i] = "-"
		}
	}
	fmt.Fprintln(p, strings.Join(text, "\t"))
}

// print writes tables of everything, with so many of the keys and tenants.
func (l *look) print(out io.Writer, top int) error {
	state := "ready"
	if !l.Ready {
		state = "shutting down"
	}
	fmt.Fprintf(out, "%s, %d requests in progress\n", state, l.InFlight)
	p := &page{Writer: tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)}
	for _, each := range []func(*page, *gateLook){rowOfGate, rowOfQuota, rowByClass, rowExempt, rowsOfParts, rowOfPools} {
		for i := range l.Gates {
			each(p, &l.Gates[i])
		}
	}
	for i := range l.Gates {
		rowsOfKeys(p, &l.Gates[i], top)
	}
	for i := range l.Gates {
		rowsOfRefused(p, &l.Gates[i], top)
	}
	for _, s := range l.Signals {
		p.row("SIGNAL|STATE|VALUE|TROUBLE", s.Name, s.State, figure(s.Value), s.Error)
	}
	for i := range l.Stores {
		rowOfStore(p, &l.Stores[i])
	}
	for _, each := range []func(*page, *listenerLook){rowOfListener, rowOfObserved, rowOfHandshakes} {
		for i := range l.Listeners {
			each(p, &l.Listeners[i])
		}
	}
	for i := range l.Tenants {
		if rest := i == len(l.Tenants)-1; i < top || rest {
			rowOfTenant(p, &l.Tenants[i], rest)
		}
	}
	return p.Flush()
}

// figure writes a pressure to three digits, and a lag in full.
func figure(v *float64) string {
	switch {
	case v == nil:
		return ""
	case *v >= 1000:
		return strconv.FormatFloat(*v, 'f', 0, 64)
	}
	return fmt.Sprintf("%.3g", *v)
}

// rowOfTenant writes a row of a tenant, or in brackets that of the rest of them.
func rowOfTenant(p *page, t *tenantLook, rest bool) {
	if t.Served+t.Refused+t.Failed == 0 {
		return
	}
	name, mean := printable(t.Tenant), ""
	if rest {
		name = "(" + name + ")"
	}
	if t.Served > 0 {
		mean = time.Duration(t.Seconds / float64(t.Served) * float64(time.Second)).Round(time.Millisecond / 10).String()
	}
	p.row("TENANT|SERVED|REFUSED|FAILED|MEAN TIME", name, t.Served, t.Refused, t.Failed, mean)
}

func rowOfGate(p *page, g *gateLook) {
	if g.Kind == kindQuota {
		return
	}
	refused, left := g.refused()
	p.row("GATE|MODE|LIMIT|IN FLIGHT|WAITING|ADMITTED|REFUSED|LEFT|CONTROLLER|BOUND BY|WHY",
		g.Name, g.Mode, g.Limit, g.InFlight, g.Waiting, g.Admitted, refused, left, g.Controller, g.Signal, g.Reason)
}

func rowByClass(p *page, g *gateLook) {
	if g.Waiting == 0 {
		return
	}
	heading, cells := "WAITING AT", []any{g.Name}
	for class := weir.Classes - 1; class >= 0; class-- {
		name := weir.OfClass(class).String()
		heading += "|" + strings.ToUpper(name)
		cells = append(cells, g.WaitingByClass[name])
	}
	p.row(heading, cells...)
}

func rowExempt(p *page, g *gateLook) {
	if g.Exempt > 0 || g.ExemptAdmitted > 0 {
		p.row("EXEMPT AT|NOW|ADMITTED", g.Name, g.Exempt, g.ExemptAdmitted)
	}
}

func rowsOfParts(p *page, g *gateLook) {
	for _, part := range slices.Sorted(maps.Keys(g.Parts)) {
		s := g.Parts[part]
		p.row("PART|OF|LIMIT|IN FLIGHT|WAITING|ADMITTED", part, g.Name, s.Limit, s.InFlight, s.Waiting, s.Admitted)
	}
}

func rowOfPools(p *page, g *gateLook) {
	if k := g.Keys; k != nil {
		kib := ""
		if k.Bytes > 0 {
			kib = strconv.FormatInt((k.Bytes+1023)/1024, 10)
		}
		p.row("POOLS OF|KNOWN|AT MOST|IN USE|FORGOTTEN|KIB", g.Name, k.Known, k.Max, k.Busy, k.Evicted, kib)
	}
}

func rowsOfKeys(p *page, g *gateLook, top int) {
	if g.Keys == nil {
		return
	}
	for _, k := range g.Keys.Top[:min(top, len(g.Keys.Top))] {
		p.row("POOL|OF|LIMIT|IN FLIGHT|WAITING|ADMITTED|REFUSED", printable(k.Key), g.Name, k.Limit, k.InFlight, k.Waiting, k.Admitted, k.Refused)
	}
}

// printable returns a name that somebody else has chosen, in quotes where it is
// empty or has in it what a terminal or a reader might take for something else.
func printable(name string) string {
	const longest = 40
	if runes := []rune(name); len(runes) > longest {
		name = string(runes[:longest-1]) + "…"
	}
	odd := func(r rune) bool {
		return !unicode.IsGraphic(r) || unicode.IsSpace(r) || r == '"' || r == unicode.ReplacementChar
	}
	if name == "" || strings.ContainsFunc(name, odd) {
		return strconv.QuoteToGraphic(name)
	}
	return name
}
