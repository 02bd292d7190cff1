package explain

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/gateway/internal/proxy"
	"github.com/weir-go/weir/gateway/internal/quotas"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/weirhttp"
)

// Answer says what would happen to a request.
type Answer struct {
	Method string `json:"method"`
	Path   string `json:"path"`
	// Descriptor is what was asked about in place of a request.
	Descriptor string `json:"descriptor,omitempty"`
	// Kafka is what was asked about in place of a request of HTTP.
	Kafka *Kafka `json:"kafka,omitempty"`
	// Route is the name of the route, empty if none matches; Patterns, Upstream and
	// TimeoutMS are the route's.
	Route     string   `json:"route,omitempty"`
	Patterns  []string `json:"patterns,omitempty"`
	Upstream  string   `json:"upstream,omitempty"`
	TimeoutMS int64    `json:"timeout_ms,omitempty"`

	User     string `json:"user"`
	Client   string `json:"client"`
	Tenant   string `json:"tenant"`
	Priority string `json:"priority"`
	Cost     int64  `json:"cost"` // below 0 if it cannot be read
	Exempt   bool   `json:"exempt,omitempty"`
	Trusted  bool   `json:"trusted"`

	Gates []Gate `json:"gates"`
	// Status is what the gateway itself would answer, 0 where the request goes on to
	// the upstream, and By the gate that refuses.
	Status int    `json:"status,omitempty"`
	By     string `json:"by,omitempty"`
	// AfterMS is the time to come back after, if it is known.
	AfterMS int64 `json:"retry_after_ms,omitempty"`
	// Notes say what the answer is based on, where something is not known.
	Notes []string `json:"notes,omitempty"`

	refusal *weir.Rejection // what the client would be told
}

// Refused reports whether the gateway itself would answer, with a refusal.
func (a *Answer) Refused() bool {
	return a.Status != 0 || a.Kafka != nil && (a.Kafka.Code != 0 || a.Kafka.Reset)
}

// Gate is what one gate would do.
type Gate struct {
	Name string      `json:"gate"`
	Kind string      `json:"kind"`
	Mode policy.Mode `json:"mode"`
	// Rule, Bucket and Limits are those of a quota. Bucket is also the key of a gate with a
	// pool for each key.
	Rule   string   `json:"rule,omitempty"`
	Bucket string   `json:"bucket,omitempty"`
	Limits []string `json:"limits,omitempty"`
	// Left is the tokens of the limit that binds, nil where there is none. Rules are all that
	// match; the first one counts.
	Left  *float64 `json:"left,omitempty"`
	Rules []Rule   `json:"rules,omitempty"`
	// Says is one of the constants.
	Says Verdict `json:"says"`
	Why  string  `json:"why,omitempty"`
}

// Verdict is what a gate would do, in one word.
type Verdict string

// The verdicts.
const (
	Passes     Verdict = "passes"
	Delays     Verdict = "delays"      // a client of Kafka
	Waits      Verdict = "waits"       // until there is room, or until it is refused
	Refuses    Verdict = "refuses"     // and the request ends here
	Observes   Verdict = "observes"    // would refuse, in observe mode
	Off        Verdict = "off"         // is not asked
	NotReached Verdict = "not reached" // an earlier gate refuses
)

// View is what an answer is based on.
type View struct {
	Config *config.Config
	Policy *policy.Policy
	// From returns the place where a rule of a gate's quota was written, for example weir.yaml:12.
	// It may be nil.
	From func(gate string, r *quota.Rule) string
	// LeftOut returns the names of the gates of an upstream's targets that get no requests now. It may be nil.
	LeftOut func(upstream string) []string
	// Notes go into the answer.
	Notes []string
}

// Explain says what would happen to a request. It takes no token and no slot, and nothing
// counts it. The error is for an Ask that no request can match.
func (v View) Explain(ask Ask) (*Answer, error) {
	switch {
	case ask.Descriptor != "" || ask.Domain != "":
		return v.explainDescriptor(ask)
	case ask.Kafka != "" || ask.API != "":
		return v.explainKafka(ask)
	}
	cfg, p := v.Config, v.Policy
	r, err := ask.request()
	if err != nil {
		return nil, err
	}
	rt, w := p.Match(r)
	if err := ask.override(&w); err != nil {
		return nil, err
	}
	a := &Answer{
		Method: r.Method, Path: r.URL.RequestURI(), Gates: []Gate{},
		User: w.User, Client: w.Client, Tenant: w.Tenant, Priority: w.Priority.String(),
		Cost: w.CostOrOne(), Exempt: w.Exempt, Trusted: p.Trusted(r), Notes: v.Notes,
	}
	switch {
	case rt == nil:
		a.Status = 404
		return a, nil
	case policy.Ambiguous(r.URL) || p.AmbiguousHost(r.Host):
		a.Status = 400
	}
	a.Route, a.Patterns, a.TimeoutMS = rt.Name(), rt.Patterns(), rt.Timeout().Milliseconds()
	a.Upstream = rt.Upstream()
	gates := rt.Gates()
	for i, g := range gates {
		a.addGate(g, cfg.Gates[g.Name()], w, i == len(gates)-1)
		if q := g.Quota(); q != nil && !w.Exempt && g.Mode() != policy.Off {
			a.Gates[i].Rules = v.rules(q, w)
		}
	}
	a.addTarget(&v, rt.Upstream(), w)
	return a, nil
}

// explainDescriptor says what Envoy would be told about a descriptor.
func (v View) explainDescriptor(ask Ask) (*Answer, error) {
	descriptor, err := quota.ParseDescriptor(ask.Descriptor)
	if err != nil {
		return nil, fmt.Errorf("descriptor %w", err)
	}
	w := weir.Work{Descriptor: descriptor}
	if err := ask.override(&w); err != nil {
		return nil, err
	}
	a := &Answer{Descriptor: descriptor, Gates: []Gate{}, User: w.User, Client: w.Client, Tenant: w.Tenant, Priority: w.Priority.String(), Cost: w.CostOrOne(), Notes: v.Notes}
	for name, g := range v.Policy.Gates() {
		if !looksAtDescriptors(g.Quota()) || ask.Domain != "" && ask.Domain != name {
			continue
		}
		gate := &Answer{} // on its own: Envoy asks one domain
		gate.addGate(g, v.Config.Gates[name], w, false)
		gate.Gates[0].Rules = v.rules(g.Quota(), w)
		a.Gates = append(a.Gates, gate.Gates[0])
		if a.Status == 0 {
			a.Status, a.By, a.AfterMS = gate.Status, gate.By, gate.AfterMS
		}
	}
	if len(a.Gates) == 0 {
		return nil, fmt.Errorf("domain %q has no rule about descriptors; name a gate whose quota has one", ask.Domain)
	}
	return a, nil
}

func looksAtDescriptors(q *quota.Quota) bool {
	return q != nil && slices.ContainsFunc(q.Rules(), func(r quota.Rule) bool { return r.Descriptor != "" })
}

// addGate adds what a gate would do. Work may wait at the last gate only.
func (a *Answer) addGate(g *policy.Gate, spec policy.GateSpec, w weir.Work, last bool) {
	gate := Gate{Name: g.Name(), Kind: g.Snapshot().Kind, Mode: g.Mode(), Says: Passes}
	rej := gate.describe(g, spec, w, last)
	if gate.Says == Waits && !last {
		rej = &weir.Rejection{Reason: weir.ReasonLimit, Retryable: true}
	}
	switch {
	case g.Mode() == policy.Off:
		gate.Says, gate.Why = Off, ""
	case a.Status != 0:
		a.addAfterRefusal(&gate, g, w, last)
	case g.Mode() == policy.Observe && (rej != nil || gate.Says == Waits):
		gate.Says = Observes
	case rej != nil:
		gate.Says = Refuses
		a.setRefusal(g, rej)
	}
	a.Gates = append(a.Gates, gate)
}

// addAfterRefusal is addGate after an earlier gate has refused. A quota that would refuse too
// decides when to come back, if that is later; see [weir.All].
func (a *Answer) addAfterRefusal(gate *Gate, g *policy.Gate, w weir.Work, last bool) {
	var rej *weir.Rejection
	if !last {
		w.MaxWait = weir.NoWait
	}
	if a.refusal != nil && a.refusal.Reason == weir.ReasonQuota {
		rej = g.Predict(context.Background(), w)
	}
	if rej == nil {
		gate.Says, gate.Why = NotReached, ""
		return
	}
	gate.Says = Refuses
	if a.refusal.Retryable && (!rej.Retryable || rej.RetryAfter > a.refusal.RetryAfter) {
		a.setRefusal(g, rej)
	}
}

// setRefusal makes rej the answer.
func (a *Answer) setRefusal(g *policy.Gate, rej *weir.Rejection) {
	a.Status, a.By, a.refusal = weirhttp.Status(rej), g.Name(), rej
	a.AfterMS = (rej.RetryAfter.Nanoseconds() + 999_999) / 1_000_000
}

// describe fills in what the gate itself would do, and returns the refusal that w would get.
func (gate *Gate) describe(g *policy.Gate, spec policy.GateSpec, w weir.Work, last bool) *weir.Rejection {
	switch {
	case g.Quota() != nil:
		return gate.quota(g, spec.Quota, w, last)
	case g.Shedder() != nil:
		return gate.shed(g, w)
	}
	return gate.slots(g, spec.Limit, w)
}

// quota describes a gate with a quota. last says that work may wait for its tokens, if the
// gate has a queue.
func (gate *Gate) quota(g *policy.Gate, spec *policy.QuotaSpec, w weir.Work, last bool) *weir.Rejection {
	_, rej := gate.peek(g, w)
	switch {
	case rej == nil || rej.Reason != weir.ReasonQuota && rej.Reason != weir.ReasonTooLarge || spec == nil:
	case spec.Permissive && w.Cost >= 0:
		gate.Why += ": goes into debt"
		return nil
	case last && waits(&spec.Queue, rej):
		gate.Says, gate.Why = Waits, gate.Why+", there in "+rej.RetryAfter.String()
		return nil
	}
	return rej
}

// peek asks a quota, and says which bucket it is and what is in it.
func (gate *Gate) peek(g *policy.Gate, w weir.Work) (quota.Answer, *weir.Rejection) {
	d, err := g.Quota().Peek(context.Background(), w)
	gate.Rule, gate.Bucket = d.Rule, d.Key
	for _, l := range d.Windows {
		gate.Limits = append(gate.Limits, l.String())
	}
	if len(d.Windows) > 0 && !d.Free {
		left := quotas.Rounded(d.Remaining)
		gate.Left = &left
	}
	rej := weir.AsRejection(err)
	switch {
	case rej == nil && d.Free && w.Exempt:
		gate.Why = "exempt: not counted"
	case rej == nil && d.Free && gate.Rule == "":
		gate.Why = "not counted: no rule is about it"
	case rej == nil && d.Free:
		gate.Why = "the rule exempts it"
	case rej == nil:
		gate.Why = remainingText(&d)
	case rej.Reason == weir.ReasonBlocked:
		gate.Why = "the rule blocks it"
	case rej.Reason == weir.ReasonTooLarge && w.Cost < 0:
		gate.Why = "its cost cannot be read"
	case rej.Reason == weir.ReasonTooLarge:
		gate.Why = fmt.Sprintf("costs %d, more than can ever be there", d.Cost)
	case rej.Reason == weir.ReasonQuota:
		gate.Why = remainingText(&d) + ", costs " + strconv.FormatInt(d.Cost, 10)
	default:
		gate.Why = rej.Reason.String()
	}
	return d, rej
}

// waits reports whether work may wait for its tokens as long as rej says.
func waits(room *policy.QuotaQueueSpec, rej *weir.Rejection) bool {
	most := cmp.Or(time.Duration(room.MaxWait), quota.DefaultMaxWait)
	return room.Len > 0 && rej.Retryable && (most < 0 || rej.RetryAfter <= most)
}

// remainingText says how much is left of the limit that binds.
func remainingText(d *quota.Answer) string {
	if len(d.Windows) == 0 {
		return ""
	}
	l := d.Windows[d.Window]
	text := amount(d.Remaining) + " of " + amount(l.Burst) + " left"
	if len(d.Windows) > 1 {
		text += " of " + l.String()
	}
	return text
}

// amount writes tokens: whole ones, unless there is less than one or a debt.
func amount(f float64) string {
	if f >= 1 {
		return strconv.FormatFloat(math.Floor(f+1e-6), 'f', -1, 64)
	}
	return strconv.FormatFloat(math.Floor(f*100+1e-6)/100, 'f', -1, 64)
}

// shed describes a gate that sheds load: whether w is important enough now.
func (gate *Gate) shed(g *policy.Gate, w weir.Work) *weir.Rejection {
	if w.Exempt {
		gate.Why = "exempt: never shed"
		return nil
	}
	least, level := g.Shedder().Level(), g.Shedder().LevelOf(w)
	switch from := weir.PriorityOf(least.Class()); {
	case least == 0:
		gate.Why = "lets everything through"
	case least.String() == "none":
		gate.Why = "lets nothing through"
	case from.Class() == level.Class():
		who := map[bool]string{true: "this one too", false: "not this one"}[level >= least]
		gate.Why = fmt.Sprintf("lets through what is above %v, and some users of it, %s", from, who)
	default:
		gate.Why = fmt.Sprintf("lets through from %v", from)
	}
	if level >= least {
		return nil
	}
	return &weir.Rejection{Gate: gate.Name, Reason: weir.ReasonShed, Retryable: true}
}

// Handler answers GET requests with what the gateway would do now. The query is an Ask. current
// returns the View now.
func Handler(current func() View) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ask, err := Parse(r.URL.Query())
		var a *Answer
		if err == nil {
			a, err = current().Explain(ask)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		body, err := json.MarshalIndent(a, "", "  ")
		if err != nil { // cannot be: texts and whole numbers
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(append(body, '\n')) // whoever asked has gone
	})
}

// Offline says what a gateway would do that has just been started with a configuration:
// every bucket is full, and nothing is in progress. It connects to nothing. Rules that were
// set at run time are read from their file, which a gateway may have open. Those in a store
// are not known, and the answer says so.
func Offline(cfg *config.Config, ask Ask) (*Answer, error) {
	opts := cfg.Unread()
	opts.Stores = map[string]quota.Store{}
	for name := range cfg.Stores {
		m, err := quota.NewMemory(quota.MemoryConfig{})
		if err != nil {
			return nil, err
		}
		opts.Stores[name] = m
	}
	kept, by, err := setAtRunTime(cfg)
	if err != nil {
		return nil, err
	}
	spec := cfg.Policy()
	plan := kept.Plan(spec, cfg.QuotaPlace)
	opts.QuotaRules = plan.Rules
	spec.Gates = proxy.WithTargetGates(spec.Gates, cfg.Upstreams)
	p, err := policy.Compile(spec, opts)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	if n := plan.Faulty(); n > 0 {
		by += fmt.Sprintf(", %d of which do not fit it and are not in force", n)
	}
	note := "Judged by " + by + ", as if just started: every bucket is full."
	return View{Config: cfg, Policy: p, From: plan.From, Notes: []string{note, howToAsk(cfg)}}.Explain(ask)
}

// ErrRules is the error of Offline where rules are kept that cannot be read.
var ErrRules = errors.New("rules that were set at run time cannot be read, and no gateway would start with them")

// setAtRunTime returns the rules that were set at run time, if this process can read them. by says
// which rules the answer is based on.
func setAtRunTime(cfg *config.Config) (kept *quotas.Saved, by string, err error) {
	const alone = "the configuration file alone"
	none, err := quotas.Read(context.Background(), nil, false)
	if err != nil { // cannot be: nothing is read
		return nil, "", err
	}
	switch {
	case cfg.Quotas.Store != "":
		return none, fmt.Sprintf("%s, without rules that were set at run time: they are in the store %s, which is not asked", alone, cfg.Quotas.Store), nil
	case cfg.Quotas.File == "":
		return none, alone, nil
	}
	kept, err = quotas.ReadFile(context.Background(), cfg.Quotas.File)
	switch {
	case err == nil:
		return kept, fmt.Sprintf("the configuration file and the rules set at run time in %s (%d)", cfg.Quotas.File, kept.Len()), nil
	case errors.Is(err, fs.ErrPermission) || cfg.Quotas.StartBroken:
		return none, fmt.Sprintf("%s, without rules that were set at run time: %v", alone, err), nil
	}
	return nil, "", fmt.Errorf("%w: %w", ErrRules, err)
}

// howToAsk says how to ask a gateway that is running.
func howToAsk(cfg *config.Config) string {
	at := cfg.Admin.Address
	switch {
	case !cfg.Admin.Enabled():
		return "What is left now nobody can say: the configuration has no admin listener."
	case cfg.Admin.Socket != "":
		at = "unix:" + cfg.Admin.Socket
	}
	return "For what is left now ask the gateway: --admin " + at + " in place of --config."
}
