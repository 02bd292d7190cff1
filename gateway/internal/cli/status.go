package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/admin"
	"github.com/weir-go/weir/policy"
)

// statusOptions are the settings of weir status.
type statusOptions struct {
	Admin string
	JSON  bool
	Top   int
	Out   io.Writer
}

// NewStatusCommand returns weir status.
func NewStatusCommand() *cobra.Command {
	var o statusOptions
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the gates of a running gateway: limits, who waits, what binds",
		Long: `Status asks a gateway's admin listener for its gates and prints a line for each:
the limit and what set it, what is in flight and waiting, what was admitted and
refused and how many left while they waited, the signal that binds the limit, and
why the limit last changed. There follow, where there are any: who waits, by
priority; exempt work; the pools of reads and of writes; the pools of gates with a
limit for each key, and the busiest of them; the buckets of quotas that were refused
most; the signals that gates go by; the connections of each listener, and TLS
handshakes that failed; and the tenants that ask most. The same as JSON, with more in it, is printed with --json and at /gates.`,
		Example: "  weir status\n  weir status --admin 10.0.0.5:9090 --top 20\n  weir status --json | jq '.gates[].waiting_by_class'",
		Args:    needs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Out = cmd.OutOrStdout()
			return runStatus(cmd.Context(), o)
		},
	}
	adminFlag(cmd, &o.Admin)
	cmd.Flags().BoolVar(&o.JSON, "json", false, "print what the gateway says as JSON")
	cmd.Flags().IntVar(&o.Top, "top", 5, "how many pools and buckets of each gate, and how many tenants, are shown by name")
	cmd.MarkFlagsMutuallyExclusive("top", "json")
	return cmd
}

func runStatus(ctx context.Context, o statusOptions) error {
	if o.Top < 0 {
		return usage("--top %d: must be at least 0", o.Top)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	res, err := askAdmin(ctx, o.Admin, http.MethodGet, "/gates", nil, nil)
	if err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s; is it the admin listener of a gateway?", o.Admin, res.Status)
	}
	var l look
	if err := json.Unmarshal(res.text, &l); err != nil {
		return fmt.Errorf("%s does not answer as a gateway does: %w", o.Admin, err)
	}
	if o.JSON {
		_, err := o.Out.Write(res.text)
		return err
	}
	return l.print(o.Out, o.Top)
}

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

// kindQuota is the kind of a gate with a quota, which has no slots to show.
const kindQuota = "quota"

// quotaLook is what status reads of a gate with a quota.
type quotaLook struct {
	Rules   int `json:"rules"`
	Buckets *struct {
		Known      int64  `json:"known"`
		Max        int64  `json:"max"`
		Overflowed uint64 `json:"overflowed"`
	} `json:"buckets"`
	StoreErrors uint64 `json:"store_errors"`
	Unsettled   uint64 `json:"unsettled"`
	Refused     []struct {
		Bucket string `json:"bucket"`
		Times  uint64 `json:"times"`
	} `json:"refused"` // the last may be the rest of them
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

// storeLook is what status reads of a store.
type storeLook struct {
	Name   string            `json:"name"`
	Down   bool              `json:"down"`
	Why    string            `json:"why"`
	Takes  uint64            `json:"takes"`
	Failed map[string]uint64 `json:"failed"`
	Trips  uint64            `json:"trips"`
}

// listenerLook is a listener, whose connections pass a gate of their own.
type listenerLook struct {
	Listener     string            `json:"listener"`
	Mode         string            `json:"mode"`
	Limit        int64             `json:"limit"`
	InFlight     int64             `json:"in_flight"`
	Admitted     uint64            `json:"admitted"`
	Refused      map[string]uint64 `json:"refused"`
	Observed     map[string]uint64 `json:"observed"`
	Addresses    int               `json:"addresses"`
	MaxAddresses int               `json:"max_addresses"`
	Crowd        int               `json:"crowd"`
	Handshakes   map[string]uint64 `json:"handshakes_failed"`
}

type tenantLook struct {
	Tenant  string  `json:"tenant"`
	Served  uint64  `json:"served"`
	Refused uint64  `json:"refused"`
	Failed  uint64  `json:"failed"`
	Seconds float64 `json:"served_seconds"`
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

func rowOfGate(p *page, g *gateLook) {
	if g.Kind == kindQuota {
		return
	}
	refused, left := g.refused()
	p.row("GATE|MODE|LIMIT|IN FLIGHT|WAITING|ADMITTED|REFUSED|LEFT|CONTROLLER|BOUND BY|WHY",
		g.Name, g.Mode, g.Limit, g.InFlight, g.Waiting, g.Admitted, refused, left, g.Controller, g.Signal, g.Reason)
}

func rowOfQuota(p *page, g *gateLook) {
	q := g.Quota
	if q == nil {
		return
	}
	var buckets, most, overflowed any = "", "", ""
	if b := q.Buckets; b != nil {
		buckets, most, overflowed = b.Known, b.Max, b.Overflowed
	}
	refused, left := g.refused()
	p.row("QUOTA|MODE|RULES|BUCKETS|AT MOST|OVERFLOWED|WAITING|ADMITTED|REFUSED|LEFT|STORE ERRORS|UNSETTLED",
		g.Name, g.Mode, q.Rules, buckets, most, overflowed, g.Waiting, g.Admitted, refused, left, q.StoreErrors, q.Unsettled)
}

func rowByClass(p *page, g *gateLook) {
	if g.Waiting == 0 {
		return
	}
	heading, cells := "WAITING AT", []any{g.Name}
	for class := weir.Classes - 1; class >= 0; class-- {
		name := weir.PriorityOf(class).String()
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

// rowsOfRefused writes the buckets that were refused most, and in brackets all others.
func rowsOfRefused(p *page, g *gateLook, top int) {
	if g.Quota == nil {
		return
	}
	var others uint64
	for i, r := range g.Quota.Refused {
		if i >= top || r.Bucket == admin.Rest {
			others += r.Times
			continue
		}
		p.row(refusedHeading, printable(strings.TrimPrefix(r.Bucket, g.Name+"/")), g.Name, r.Times)
	}
	if others > 0 {
		p.row(refusedHeading, "("+admin.Rest+")", g.Name, others)
	}
}

const refusedHeading = "BUCKET|OF|REFUSED"

// refused returns how much work a gate has refused, and how much has left its wait room,
// which was refused by nobody.
func (g *gateLook) refused() (refused, left uint64) {
	left = g.Rejected[weir.ReasonCanceled.String()]
	for _, n := range g.Rejected {
		refused += n
	}
	return refused - left, left
}

func rowOfStore(p *page, s *storeLook) {
	state := "answers"
	if s.Down {
		state = "down"
	}
	var failed uint64
	for _, n := range s.Failed {
		failed += n
	}
	p.row("STORE|STATE|DECISIONS|FAILED|GIVEN UP|TROUBLE", s.Name, state, s.Takes, failed, s.Trips, s.Why)
}

func rowOfListener(p *page, l *listenerLook) {
	var refused uint64
	for _, n := range l.Refused {
		refused += n
	}
	p.row("LISTENER|CONNECTIONS|AT MOST|TAKEN|REFUSED|BY|ADDRESSES|AT MOST|OTHERS",
		l.Listener, l.InFlight, l.Limit, l.Admitted, refused, counted(l.Refused), l.Addresses, l.MaxAddresses, l.Crowd)
}

// rowOfObserved is what limits that only observe would have refused.
func rowOfObserved(p *page, l *listenerLook) {
	if l.Mode == string(policy.Observe) {
		why := counted(l.Observed)
		if why == "" {
			why = "nothing"
		}
		p.row("CONNECTIONS OF|ONLY OBSERVED, WOULD REFUSE", l.Listener, why)
	}
}

func rowOfHandshakes(p *page, l *listenerLook) {
	if why := counted(l.Handshakes); why != "" {
		p.row("HANDSHAKES AT|FAILED", l.Listener, why)
	}
}

// counted lists what has been counted at all, most first.
func counted(counts map[string]uint64) string {
	words := slices.DeleteFunc(slices.Sorted(maps.Keys(counts)), func(w string) bool { return counts[w] == 0 })
	slices.SortStableFunc(words, func(a, b string) int {
		switch {
		case counts[a] > counts[b]:
			return -1
		case counts[a] < counts[b]:
			return 1
		}
		return 0
	})
	for i, w := range words {
		words[i] = fmt.Sprintf("%s %d", w, counts[w])
	}
	return strings.Join(words, ", ")
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
