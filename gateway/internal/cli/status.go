package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/accept"
	"github.com/weir-go/weir/gateway/internal/admin"
	"github.com/weir-go/weir/gateway/internal/kafka"
	"github.com/weir-go/weir/gateway/internal/proxy"
	"github.com/weir-go/weir/policy"
)

// statusOptions are the settings of weir status.
type statusOptions struct {
	Admin string
	JSON  bool
	Top   int
	Watch bool
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
waited. What was refused is told apart by priority and reason. More tables follow if there is something to show:

  gates      work that waits by priority, exempt work, pools of reads and of writes
  keys       pools for each key, and the busiest of them
  quotas     the buckets that were refused most; BUCKETS counts one for each limit of a
             key, such as a user
  sources    signals and stores
  upstreams  the requests to each target, and those that failed
  kafka      the nodes of each cluster, logins, delays by quotas, and who has longest to
             wait for one
  clients    connections of each listener, TLS handshakes that failed, and the tenants
             that send most

--watch prints it anew each second until Ctrl-C, in place on a terminal.
--json prints all of this and more as JSON, as /gates does.`,
		Example: "  weir status\n  weir status --watch\n  weir status --admin 10.0.0.5:8090 --top 20\n  weir status --json | jq '.gates[].waiting_by_class'",
		Args:    needs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := emptyFlag(cmd); err != nil {
				return err
			}
			o.Out = cmd.OutOrStdout()
			if err := apart(cmd, "json", "watch", "top"); err != nil {
				return err
			}
			if o.Top < 0 {
				return usage("--top %d: must be at least 0", o.Top)
			}
			if !o.Watch {
				return runStatus(cmd.Context(), o)
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return watchStatus(ctx, o, time.Second)
		},
	}
	adminFlag(cmd, &o.Admin)
	cmd.Flags().BoolVar(&o.JSON, "json", false, "print the gateway's answer as JSON")
	cmd.Flags().IntVar(&o.Top, "top", 5, "how many pools and buckets of each gate, how many tenants, and how many waiting clients of Kafka, to show by name")
	cmd.Flags().BoolVarP(&o.Watch, "watch", "w", false, "print it anew each second, until Ctrl-C")
	return cmd
}

func runStatus(ctx context.Context, o statusOptions) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	res, err := askAdmin(ctx, o.Admin, http.MethodGet, "/gates", nil, nil)
	if err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s; is it the admin listener of a gateway?", o.Admin, res.Status)
	}
	if o.JSON {
		if err := res.decode(new(json.RawMessage), "gates"); err != nil {
			return err
		}
		_, err := legibleJSON{o.Out}.Write(res.text)
		return err
	}
	var s gatewayStatus
	if err := res.decode(&s, "gates"); err != nil {
		return err
	}
	return printStatus(o.Out, &s, o.Top)
}

// gatewayStatus is [admin.Status] as the tables read it.
type gatewayStatus struct {
	admin.Status
	Gates       []gateStatus     `json:"gates"`
	Connections []listenerStatus `json:"connections"`
}

type gateStatus struct {
	admin.GateStatus
	wordCounts
	RefusedByClass map[string]map[string]uint64 `json:"refused_by_class"`
	Observed       map[string]uint64            `json:"observed"`
	Parts          map[string]gateStatus        `json:"parts"`
}

type listenerStatus struct {
	accept.Snapshot
	wordCounts
}

// wordCounts stands in for the maps of [weir.Snapshot]. Its keys are text, because a newer
// gateway may have reasons, outcomes and priorities that this program does not know.
type wordCounts struct {
	WaitingByClass map[string]int64  `json:"waiting_by_class"`
	Rejected       map[string]uint64 `json:"rejected"`
	Outcomes       map[string]uint64 `json:"outcomes"`
}

// printStatus writes all tables. It names at most top keys of each gate, and top tenants.
func printStatus(out io.Writer, s *gatewayStatus, top int) error {
	state := "ready"
	if !s.Ready {
		state = "shutting down"
	}
	fmt.Fprintf(out, "%s, %d requests in progress\n", state, s.InFlight)
	p := newPage(out)
	for _, rows := range []func(*page, *gateStatus){rowOfGate, rowOfEstimate, rowsOfProbes, rowOfQuota, rowsOfRefusals, rowOfWouldRefuse, rowByClass, rowExempt, rowsOfParts, rowOfPools} {
		for i := range s.Gates {
			rows(p, &s.Gates[i])
		}
	}
	for i := range s.Gates {
		rowsOfKeys(p, &s.Gates[i], top)
	}
	for i := range s.Gates {
		rowsOfRefused(p, &s.Gates[i], top)
	}
	for _, sig := range s.Signals {
		p.row("SIGNAL|STATE|VALUE|AGE|TROUBLE", sig.Name, sig.State, figure(sig.Value), sig.Age.Round(time.Millisecond), sig.Error)
	}
	for i := range s.Stores {
		rowOfStore(p, &s.Stores[i])
	}
	for _, row := range []func(*page, *accept.Snapshot){rowOfListener, rowOfObserved, rowOfHandshakes} {
		for i := range s.Connections {
			row(p, &s.Connections[i].Snapshot)
		}
	}
	for i := range s.Kafka {
		rowsOfKafka(p, &s.Kafka[i])
	}
	for i := range s.Kafka {
		rowsOfMuted(p, &s.Kafka[i], top)
	}
	for _, row := range []func(*page, string, *proxy.TargetStats){rowOfTarget, rowOfHealth} {
		for _, name := range slices.Sorted(maps.Keys(s.Upstreams)) {
			for i := range s.Upstreams[name] {
				row(p, name, &s.Upstreams[name][i])
			}
		}
	}
	for i := range s.Tenants {
		if rest := i == len(s.Tenants)-1; i < top || rest {
			rowOfTenant(p, &s.Tenants[i], rest)
		}
	}
	return p.Flush()
}

// kindQuota is the kind of gates with a quota. They have no slots to show.
const kindQuota = "quota"

func rowOfGate(p *page, g *gateStatus) {
	if g.Kind == kindQuota {
		return
	}
	refused, left := refusals(g)
	p.row("GATE|MODE|LIMIT|IN FLIGHT|WAITING|ADMITTED|REFUSED|LEFT|CONTROLLER|BOUND BY|WHY",
		g.Name, g.Mode, g.Limit, g.InFlight, g.Waiting, g.Admitted, refused, left, g.Controller, g.Signal, g.LimitReason)
}

// rowOfEstimate writes what the controller believes of the backend.
func rowOfEstimate(p *page, g *gateStatus) {
	if e := g.Estimate; e != nil {
		p.row("BELIEF OF|SHAPE|SIZE|BEST LIMIT|95% FROM|TO|EXPECTED LOSS", g.Name, printable(e.Shape),
			fmt.Sprintf("%.3g", e.Size), fmt.Sprintf("%.3g", e.Best), fmt.Sprintf("%.3g", e.Low), fmt.Sprintf("%.3g", e.High), fmt.Sprintf("%.1f%%", 100*e.Loss))
	}
}

// rowsOfProbes writes what the controller of a gate has tried. Both parts of a gate are one probe.
func rowsOfProbes(p *page, g *gateStatus) {
	probes := g.Probes
	if probes == nil {
		probes = g.Parts["read"].Probes
	}
	if probes == nil {
		return
	}
	p.row("PROBES OF|UP|KEPT|DOWN|KEPT|NUDGED|STABLE AT|FINISHED A SECOND|IN THE PROBE", g.Name, probes.Up, probes.UpKept,
		probes.Down, probes.DownKept, probes.Nudged, fmt.Sprintf("%.1f", probes.Stable), fmt.Sprintf("%.0f", probes.Throughput), fmt.Sprintf("%.0f", probes.Probed))
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
	refused, left := refusals(g)
	p.row("QUOTA|MODE|RULES|BUCKETS|AT MOST|OVERFLOWED|WAITING|ADMITTED|REFUSED|LEFT|STORE ERRORS|UNSETTLED",
		g.Name, g.Mode, q.Rules, buckets, most, overflowed, g.Waiting, g.Admitted, refused, left, q.StoreErrors, q.Unsettled)
}

// rowsOfRefusals writes what a gate has refused, by priority and reason, the most important
// first. An older gateway knows the reasons only.
func rowsOfRefusals(p *page, g *gateStatus) {
	const heading = "REFUSED AT|PRIORITY|TIMES|WHY"
	classes := slices.Sorted(maps.Keys(g.RefusedByClass))
	rank := func(class string) int {
		p, _ := weir.ParsePriority(class)
		return p.Class()
	}
	slices.SortStableFunc(classes, func(a, b string) int { return cmp.Compare(rank(b), rank(a)) })
	for _, class := range classes {
		if why := g.RefusedByClass[class]; sum(why) > 0 {
			p.row(heading, g.Name, class, sum(why), counted(why))
		}
	}
	if refused, _ := refusals(g); len(classes) == 0 && refused > 0 {
		why := maps.Clone(g.Rejected)
		delete(why, weir.ReasonCanceled.String())
		p.row(heading, g.Name, "any", refused, counted(why))
	}
}

// rowOfWouldRefuse writes what a gate in observe mode would have refused, by reason.
func rowOfWouldRefuse(p *page, g *gateStatus) {
	if why := counted(g.Observed); why != "" && g.Mode == string(policy.Observe) {
		p.row("ONLY OBSERVED|WOULD REFUSE", g.Name, why)
	}
}

func rowByClass(p *page, g *gateStatus) {
	if g.Waiting == 0 {
		return
	}
	heading, cells := "WAITING AT", []any{g.Name}
	for class := weir.Classes - 1; class >= 0; class-- {
		priority := weir.PriorityOf(class).String()
		heading += "|" + strings.ToUpper(priority)
		cells = append(cells, g.WaitingByClass[priority])
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

// refusals returns how much work a gate has refused, and how much left its wait room before
// it was admitted or refused.
func refusals(g *gateStatus) (refused, left uint64) {
	left = g.Rejected[weir.ReasonCanceled.String()]
	return sum(g.Rejected) - left, left
}

// sum adds up counts.
func sum[K comparable](counts map[K]uint64) (all uint64) {
	for _, n := range counts {
		all += n
	}
	return all
}

func rowOfStore(p *page, s *admin.Store) {
	state := "answers"
	if s.Down {
		state = "down"
	}
	p.row("STORE|STATE|DECISIONS|FAILED|GIVEN UP|TROUBLE", s.Name, state, s.Takes, sum(s.Failed), s.Trips, s.Why)
}

func rowOfListener(p *page, l *accept.Snapshot) {
	p.row("LISTENER|OPEN|MAX|ACCEPTED|REFUSED|BY|ADDRESSES KNOWN|MAX KNOWN|OPEN OF OTHERS",
		l.Listener, l.InFlight, l.Limit, l.Admitted, sum(l.Refused), counted(l.Refused), l.Addresses, l.MaxAddresses, l.Crowd)
}

// rowOfObserved writes what limits in observe mode would have refused.
func rowOfObserved(p *page, l *accept.Snapshot) {
	if l.Mode == string(policy.Observe) {
		why := counted(l.Observed)
		if why == "" {
			why = "nothing"
		}
		p.row("CONNECTIONS OF|ONLY OBSERVED, WOULD REFUSE", l.Listener, why)
	}
}

func rowOfHandshakes(p *page, l *accept.Snapshot) {
	if why := counted(l.Handshakes); why != "" {
		p.row("HANDSHAKES AT|FAILED", l.Listener, why)
	}
}

// rowsOfKafka writes the nodes of a cluster of Kafka as clients see them.
func rowsOfKafka(p *page, k *kafka.Snapshot) {
	const heading = "KAFKA|NODE|AT|BROKER|OPEN|ACCEPTED|FAILED|TROUBLE"
	row := func(name any, n *kafka.NodeStatus) {
		p.row(heading, k.Cluster, name, n.Address, n.Broker, n.Connections, n.Accepted, n.Failed, n.Trouble)
	}
	row("bootstrap", &k.Bootstrap)
	for i := range k.Nodes {
		row(k.Nodes[i].Node, &k.Nodes[i])
	}
	if k.Logins+k.LoginsFailed > 0 {
		p.row("LOGINS OF|ALL THAT ENDED WELL|WITHOUT A NAME|FAILED", k.Cluster, k.Logins, k.LoginsUnnamed, k.LoginsFailed)
	}
	if in, out, topics := k.ThrottledProduce, k.ThrottledFetch, k.ThrottledMutations; in.Times+out.Times+topics.Times > 0 {
		seconds := func(t kafka.Throttled) string { return fmt.Sprintf("%.1f", t.Seconds) }
		p.row("DELAYS BY QUOTAS OF|NOW|PRODUCE|SECONDS|FETCH|SECONDS|MUTATIONS|SECONDS", k.Cluster, k.Muted, in.Times, seconds(in), out.Times, seconds(out), topics.Times, seconds(topics))
	}
	if k.HeldWaiting > 0 {
		p.row("WAITING FOR MEMORY|CONNECTIONS|HELD BYTES", k.Cluster, k.HeldWaiting, k.HeldBytes)
	}
}

// rowsOfMuted writes the connections that a quota keeps from being read, the last to be read again first.
func rowsOfMuted(p *page, k *kafka.Snapshot, top int) {
	for _, m := range k.MutedLongest[:min(len(k.MutedLongest), top)] {
		node := "bootstrap"
		if m.Node >= 0 {
			node = strconv.Itoa(int(m.Node))
		}
		p.row("MUTED AT|NODE|FROM|USER|CLIENT|BY|UNTIL|FOR", k.Cluster, node, m.From, printable(m.User), printable(m.Client), m.Quota,
			m.Until.Local().Format(time.TimeOnly), time.Duration(m.Seconds*float64(time.Second)).Round(time.Millisecond))
	}
}

func rowOfTarget(p *page, upstream string, t *proxy.TargetStats) {
	state := "in use"
	if t.Ejected {
		state = "ejected"
	}
	if t.Health != nil && t.Health.State == "unhealthy" {
		state = "unhealthy"
	}
	p.row("UPSTREAM|TARGET|STATE|IN FLIGHT|REQUESTS|FAILED|HOW", upstream, t.Target, state, t.InFlight, t.Requests, sum(t.Failures), counted(t.Failures))
}

// rowOfHealth writes what active checks say of a target.
func rowOfHealth(p *page, upstream string, t *proxy.TargetStats) {
	if h := t.Health; h != nil {
		p.row("HEALTH OF|TARGET|CHECKS SAY|PASSED|FAILED|TROUBLE", upstream, t.Target, h.State, h.Passed, h.Failed, h.Error)
	}
}

// counted lists the counts above 0, the highest first.
func counted(counts map[string]uint64) string {
	words := slices.DeleteFunc(slices.Sorted(maps.Keys(counts)), func(w string) bool { return counts[w] == 0 })
	slices.SortStableFunc(words, func(a, b string) int { return cmp.Compare(counts[b], counts[a]) })
	for i, w := range words {
		words[i] = fmt.Sprintf("%s %d", w, counts[w])
	}
	return strings.Join(words, ", ")
}

// rowOfTenant writes the row of a tenant, or of all other tenants in brackets.
func rowOfTenant(p *page, t *admin.TenantUse, rest bool) {
	if t.Served+t.Refused+t.Failed == 0 {
		return
	}
	name, mean := printable(t.Tenant), ""
	switch {
	case rest:
		name = "(" + name + ")"
	case t.Tenant == "":
		name = "(no tenant)"
	}
	if t.Served > 0 {
		mean = time.Duration(t.Seconds / float64(t.Served) * float64(time.Second)).Round(time.Millisecond / 10).String()
	}
	p.row("TENANT|SERVED|REFUSED|FAILED|MEAN TIME", name, t.Served, t.Refused, t.Failed, mean)
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
