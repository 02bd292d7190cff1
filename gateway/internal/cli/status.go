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
		Short: "Show the gates of a running gateway: limits, work in flight, work that waits",
		Long: `Status asks a gateway's admin listener for its gates and prints a line for each. The
line has the limit, its controller, the signal that lowers it, and why it changed last.
It also says how much is in flight, waits, was admitted or refused, and left while it
waited. More tables follow if there is something to show:

  gates      work that waits by priority, exempt work, pools of reads and of writes
  keys       pools for each key, and the busiest of them
  quotas     the buckets that were refused most
  sources    signals and stores
  clients    connections of each listener, TLS handshakes that failed, and the tenants
             that send most

--json prints all of this and more as JSON, as /gates does.`,
		Example: "  weir status\n  weir status --admin 10.0.0.5:9090 --top 20\n  weir status --json | jq '.gates[].waiting_by_class'",
		Args:    needs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Out = cmd.OutOrStdout()
			return runStatus(cmd.Context(), o)
		},
	}
	adminFlag(cmd, &o.Admin)
	cmd.Flags().BoolVar(&o.JSON, "json", false, "print the gateway's answer as JSON")
	cmd.Flags().IntVar(&o.Top, "top", 5, "how many pools and buckets of each gate, and how many tenants, to show by name")
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
	var l gatewayStatus
	if err := json.Unmarshal(res.text, &l); err != nil {
		return fmt.Errorf("%s does not answer as a gateway does: %w", o.Admin, err)
	}
	if o.JSON {
		_, err := o.Out.Write(res.text)
		return err
	}
	return l.print(o.Out, o.Top)
}

// gatewayStatus is the part of /gates that status shows.
type gatewayStatus struct {
	Ready    bool         `json:"ready"`
	InFlight int64        `json:"requests_in_flight"`
	Gates    []gateStatus `json:"gates"`
	Signals  []struct {
		Name  string   `json:"name"`
		State string   `json:"state"`
		Value *float64 `json:"value"`
		Error string   `json:"error"`
	} `json:"signals"`
	Stores    []storeStatus    `json:"stores"`
	Tenants   []tenantStatus   `json:"tenants"` // the last is the rest of them
	Listeners []listenerStatus `json:"connections"`
}

type gateStatus struct {
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
	Keys           *keysStatus       `json:"keys"`
	Quota          *quotaStatus      `json:"quota"`
	Parts          map[string]struct {
		Limit    int64  `json:"limit"`
		InFlight int64  `json:"in_flight"`
		Waiting  int64  `json:"waiting"`
		Admitted uint64 `json:"admitted"`
	} `json:"parts"`
}

// kindQuota is the kind of gates with a quota. They have no slots to show.
const kindQuota = "quota"

// quotaStatus is the part of a quota that status shows.
type quotaStatus struct {
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

type keysStatus struct {
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

// storeStatus is the part of a store that status shows.
type storeStatus struct {
	Name   string            `json:"name"`
	Down   bool              `json:"down"`
	Why    string            `json:"why"`
	Takes  uint64            `json:"takes"`
	Failed map[string]uint64 `json:"failed"`
	Trips  uint64            `json:"trips"`
}

// listenerStatus is a listener. Its connections pass a gate of their own.
type listenerStatus struct {
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

type tenantStatus struct {
	Tenant  string  `json:"tenant"`
	Served  uint64  `json:"served"`
	Refused uint64  `json:"refused"`
	Failed  uint64  `json:"failed"`
	Seconds float64 `json:"served_seconds"`
}

// print writes all tables. It names at most top keys of each gate, and top tenants.
func (l *gatewayStatus) print(out io.Writer, top int) error {
	state := "ready"
	if !l.Ready {
		state = "shutting down"
	}
	fmt.Fprintf(out, "%s, %d requests in progress\n", state, l.InFlight)
	p := &page{Writer: tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)}
	for _, each := range []func(*page, *gateStatus){rowOfGate, rowOfQuota, rowByClass, rowExempt, rowsOfParts, rowOfPools} {
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
	for _, each := range []func(*page, *listenerStatus){rowOfListener, rowOfObserved, rowOfHandshakes} {
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

func rowOfGate(p *page, g *gateStatus) {
	if g.Kind == kindQuota {
		return
	}
	refused, left := g.refused()
	p.row("GATE|MODE|LIMIT|IN FLIGHT|WAITING|ADMITTED|REFUSED|LEFT|CONTROLLER|BOUND BY|WHY",
		g.Name, g.Mode, g.Limit, g.InFlight, g.Waiting, g.Admitted, refused, left, g.Controller, g.Signal, g.Reason)
}

func rowOfQuota(p *page, g *gateStatus) {
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

func rowByClass(p *page, g *gateStatus) {
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

func rowExempt(p *page, g *gateStatus) {
	if g.Exempt > 0 || g.ExemptAdmitted > 0 {
		p.row("EXEMPT AT|NOW|ADMITTED", g.Name, g.Exempt, g.ExemptAdmitted)
	}
}

func rowsOfParts(p *page, g *gateStatus) {
	for _, part := range slices.Sorted(maps.Keys(g.Parts)) {
		s := g.Parts[part]
		p.row("PART|OF|LIMIT|IN FLIGHT|WAITING|ADMITTED", part, g.Name, s.Limit, s.InFlight, s.Waiting, s.Admitted)
	}
}

func rowOfPools(p *page, g *gateStatus) {
	if k := g.Keys; k != nil {
		kib := ""
		if k.Bytes > 0 {
			kib = strconv.FormatInt((k.Bytes+1023)/1024, 10)
		}
		p.row("POOLS OF|KNOWN|AT MOST|IN USE|FORGOTTEN|KIB", g.Name, k.Known, k.Max, k.Busy, k.Evicted, kib)
	}
}

func rowsOfKeys(p *page, g *gateStatus, top int) {
	if g.Keys == nil {
		return
	}
	for _, k := range g.Keys.Top[:min(top, len(g.Keys.Top))] {
		p.row("POOL|OF|LIMIT|IN FLIGHT|WAITING|ADMITTED|REFUSED", printable(k.Key), g.Name, k.Limit, k.InFlight, k.Waiting, k.Admitted, k.Refused)
	}
}

// rowsOfRefused writes the buckets that were refused most, and the sum of the others in
// brackets.
func rowsOfRefused(p *page, g *gateStatus, top int) {
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

// refused returns how much work a gate has refused, and how much left its wait room before
// it was admitted or refused.
func (g *gateStatus) refused() (refused, left uint64) {
	left = g.Rejected[weir.ReasonCanceled.String()]
	for _, n := range g.Rejected {
		refused += n
	}
	return refused - left, left
}

func rowOfStore(p *page, s *storeStatus) {
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

func rowOfListener(p *page, l *listenerStatus) {
	var refused uint64
	for _, n := range l.Refused {
		refused += n
	}
	p.row("LISTENER|CONNECTIONS|AT MOST|TAKEN|REFUSED|BY|ADDRESSES|AT MOST|OTHERS",
		l.Listener, l.InFlight, l.Limit, l.Admitted, refused, counted(l.Refused), l.Addresses, l.MaxAddresses, l.Crowd)
}

// rowOfObserved writes what limits in observe mode would have refused.
func rowOfObserved(p *page, l *listenerStatus) {
	if l.Mode == string(policy.Observe) {
		why := counted(l.Observed)
		if why == "" {
			why = "nothing"
		}
		p.row("CONNECTIONS OF|ONLY OBSERVED, WOULD REFUSE", l.Listener, why)
	}
}

func rowOfHandshakes(p *page, l *listenerStatus) {
	if why := counted(l.Handshakes); why != "" {
		p.row("HANDSHAKES AT|FAILED", l.Listener, why)
	}
}

// counted lists the counts above 0, the highest first.
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

// rowOfTenant writes the row of a tenant, or of all other tenants in brackets.
func rowOfTenant(p *page, t *tenantStatus, rest bool) {
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

// row writes a row. Under another heading than the last one it begins a new table.
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

// printable returns a name that a client has chosen. It is quoted if it is empty, or has
// characters that a terminal or a reader could misread.
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

// figure formats a signal: a pressure to three digits, a lag in full.
func figure(v *float64) string {
	switch {
	case v == nil:
		return ""
	case *v >= 1000:
		return strconv.FormatFloat(*v, 'f', 0, 64)
	}
	return fmt.Sprintf("%.3g", *v)
}
