package explain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/gateway/internal/quotas"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/weirhttp"
)

// Answer is what would become of a request.
type Answer struct {
	Method string `json:"method"`
	Path   string `json:"path"`
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
	Cost     int64  `json:"cost"`
	Exempt   bool   `json:"exempt,omitempty"`
	Trusted  bool   `json:"trusted"`

	Gates []Gate `json:"gates"`
	// Status is what the gateway itself would answer, 0 where the request goes on to
	// the upstream, and By the gate that refuses.
	Status int    `json:"status,omitempty"`
	By     string `json:"by,omitempty"`
	// AfterMS is when to come back, where that is known.
	AfterMS int64 `json:"retry_after_ms,omitempty"`
	// Notes say what the answer goes by, where that is not all there is.
	Notes []string `json:"notes,omitempty"`

	told *weir.Rejection // what the answer would say
}

// Gate is what a gate says.
type Gate struct {
	Name string      `json:"gate"`
	Kind string      `json:"kind"`
	Mode policy.Mode `json:"mode"`
	// Rule, Bucket and Limits are those of a quota; Bucket is also the key of a gate
	// with a pool for each.
	Rule   string   `json:"rule,omitempty"`
	Bucket string   `json:"bucket,omitempty"`
	Limits []string `json:"limits,omitempty"`
	// Left is the tokens of the limit that binds, nil where there is none. Rules are all
	// that match, the one that counts first.
	Left  *float64 `json:"left,omitempty"`
	Rules []Rule   `json:"rules,omitempty"`
	// Says is what would come of it: one of the constants.
	Says Verdict `json:"says"`
	Why  string  `json:"why,omitempty"`
}

// Verdict is what a gate says, in one word.
type Verdict string

// The verdicts.
const (
	Passes     Verdict = "passes"
	Waits      Verdict = "waits"       // until there is room, or until it is refused
	Refuses    Verdict = "refuses"     // and the request ends here
	Observes   Verdict = "observes"    // would refuse, in observe mode
	Off        Verdict = "off"         // is not asked
	NotReached Verdict = "not reached" // an earlier gate refuses
)

// View is what an answer goes by.
type View struct {
	Config *config.Config
	Policy *policy.Policy
	// From says where a rule of a gate's quota comes from, as in weir.yaml:12. It may be
	// nil.
	From func(gate string, r *quota.Rule) string
	// Notes go into the answer.
	Notes []string
}

// Of says what would become of a request. The error is for an Ask that makes no sense.
func Of(v View, ask Ask) (*Answer, error) {
	cfg, p := v.Config, v.Policy
	r, err := ask.request()
	if err != nil {
		return nil, err
	}
	rt, w := p.Match(r)
	if err := ask.rename(&w); err != nil {
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
	case policy.Ambiguous(r.URL):
		a.Status = 400
	}
	a.Route, a.Patterns, a.TimeoutMS = rt.Name(), rt.Patterns(), rt.Timeout().Milliseconds()
	a.Upstream = rt.Upstream()
	gates := rt.Gates()
	for i, g := range gates {
		a.ask(g, cfg.Gates[g.Name()].Quota, w, i == len(gates)-1)
		if q := g.Quota(); q != nil && !w.Exempt && g.Mode() != policy.Off {
			a.Gates[i].Rules = v.rules(q, w)
		}
	}
	return a, nil
}

// ask adds what a gate says. Work may wait at the last one only.
func (a *Answer) ask(g *policy.Gate, spec *policy.QuotaSpec, w weir.Work, last bool) {
	look := Gate{Name: g.Name(), Kind: g.Snapshot().Kind, Mode: g.Mode(), Says: Passes}
	rej := look.describe(g, spec, w, last)
	if look.Says == Waits && !last {
		rej = &weir.Rejection{Reason: weir.ReasonLimit, Retryable: true}
	}
	switch {
	case g.Mode() == policy.Off:
		look.Says, look.Why = Off, ""
	case a.Status != 0:
		a.askToo(&look, g, w)
	case g.Mode() == policy.Observe && (rej != nil || look.Says == Waits):
		look.Says = Observes
	case rej != nil:
		look.Says = Refuses
		a.refuse(g, rej)
	}
	a.Gates = append(a.Gates, look)
}

// askToo adds what a gate says after another has refused: a quota that would refuse too
// is told of, if it is to be waited for longer; see [weir.All].
func (a *Answer) askToo(look *Gate, g *policy.Gate, w weir.Work) {
	var rej *weir.Rejection
	if a.told != nil && a.told.Reason == weir.ReasonQuota {
		rej = g.Predict(context.Background(), w)
	}
	if rej == nil {
		look.Says, look.Why = NotReached, ""
		return
	}
	look.Says = Refuses
	if a.told.Retryable && (!rej.Retryable || rej.RetryAfter > a.told.RetryAfter) {
		a.refuse(g, rej)
	}
}

func (a *Answer) refuse(g *policy.Gate, rej *weir.Rejection) {
	a.Status, a.By, a.told = weirhttp.Status(rej), g.Name(), rej
	a.AfterMS = (rej.RetryAfter.Nanoseconds() + 999_999) / 1_000_000
}

// describe fills in what there is to say of a gate by itself, and returns the refusal
// that w would get.
func (look *Gate) describe(g *policy.Gate, spec *policy.QuotaSpec, w weir.Work, last bool) *weir.Rejection {
	switch {
	case g.Quota() != nil:
		return look.quota(g, spec, w, last)
	case g.Shedder() != nil:
		return look.shed(g, w)
	case w.Exempt:
		look.Why = "exempt: takes no slot"
	case g.Pools() != nil:
		look.pool(g.Pools(), w)
	default:
		look.limit(g.Snapshot(), w)
	}
	return nil
}

// quota asks a quota what it would do. last says that work may wait for its tokens, if
// the gate is so set.
func (look *Gate) quota(g *policy.Gate, spec *policy.QuotaSpec, w weir.Work, last bool) *weir.Rejection {
	d, err := g.Quota().Peek(context.Background(), w)
	look.Rule, look.Bucket = g.Quota().Key(w)
	for _, l := range d.Windows {
		look.Limits = append(look.Limits, l.String())
	}
	if len(d.Windows) > 0 && !d.Free {
		left := math.Floor(d.Remaining*1000+1e-6) / 1000
		look.Left = &left
	}
	rej := weir.AsRejection(err)
	switch {
	case rej == nil && d.Free && w.Exempt:
		look.Rule, look.Bucket, look.Why = "", "", "exempt: not counted"
	case rej == nil && d.Free && look.Rule == "":
		look.Why = "not counted: no rule is about it"
	case rej == nil && d.Free:
		look.Why = "the rule exempts it"
	case rej == nil:
		look.Why = left(&d)
	case rej.Reason == weir.ReasonBlocked:
		look.Why = "the rule blocks it"
	case rej.Reason == weir.ReasonTooLarge && w.Cost < 0:
		look.Why = "its cost cannot be read"
	case rej.Reason == weir.ReasonTooLarge:
		look.Why = fmt.Sprintf("costs %d, more than can ever be there", d.Cost)
	case rej.Reason == weir.ReasonQuota:
		look.Why = left(&d) + ", costs " + strconv.FormatInt(d.Cost, 10)
	default:
		look.Why = rej.Reason.String()
	}
	switch {
	case rej == nil || rej.Reason != weir.ReasonQuota && rej.Reason != weir.ReasonTooLarge || spec == nil:
	case spec.Permissive && w.Cost >= 0:
		look.Why += ": goes into debt"
		return nil
	case last && waits(&spec.Queue, rej):
		look.Says, look.Why = Waits, look.Why+", there in "+rej.RetryAfter.String()
		return nil
	}
	return rej
}

// waits reports whether work may wait so long for its tokens.
func waits(room *policy.QuotaQueueSpec, rej *weir.Rejection) bool {
	most := time.Duration(room.MaxWait)
	if most == 0 {
		most = quota.DefaultMaxWait
	}
	return room.Len > 0 && rej.Retryable && (most < 0 || rej.RetryAfter <= most)
}

// left says how much is left of the window that binds.
func left(d *quota.Answer) string {
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

// amount writes tokens: whole ones, unless there is less than one, or a debt.
func amount(f float64) string {
	if f >= 1 {
		return strconv.FormatFloat(math.Floor(f+1e-6), 'f', -1, 64)
	}
	return strconv.FormatFloat(math.Floor(f*100+1e-6)/100, 'f', -1, 64)
}

// shed asks a gate that sheds whether w is important enough now.
func (look *Gate) shed(g *policy.Gate, w weir.Work) *weir.Rejection {
	if w.Exempt {
		look.Why = "exempt: never shed"
		return nil
	}
	least, level := g.Shedder().Level(), g.Shedder().LevelOf(w)
	switch from := weir.PriorityOf(least.Class()); {
	case least == 0:
		look.Why = "lets everything through"
	case least.String() == "none":
		look.Why = "lets nothing through"
	case from.Class() == level.Class():
		who := map[bool]string{true: "this one too", false: "not this one"}[level >= least]
		look.Why = fmt.Sprintf("lets through what is above %v, and some users of it, %s", from, who)
	default:
		look.Why = fmt.Sprintf("lets through from %v", from)
	}
	if level >= least {
		return nil
	}
	return &weir.Rejection{Gate: look.Name, Reason: weir.ReasonShed, Retryable: true}
}

// pool describes the pool that w draws on.
func (look *Gate) pool(p policy.Pools, w weir.Work) {
	look.Bucket = p.KeyOf(w)
	use, known := p.Key(look.Bucket)
	if !known {
		look.Why = "nothing is known of this key: all of its pool is free"
		return
	}
	look.slots(use.Limit, use.InFlight, use.Waiting, 0, w)
}

// limit describes a gate with one limit.
func (look *Gate) limit(s weir.Snapshot, w weir.Work) {
	look.slots(s.Limit, s.InFlight, s.Waiting, s.Wait, w)
}

// slots says whether there is room. Whether what waits is served in the end depends on
// who comes meanwhile.
func (look *Gate) slots(limit, inFlight, waiting int64, wait time.Duration, w weir.Work) {
	look.Why = fmt.Sprintf("%d of %d slots taken", inFlight, limit)
	if waiting > 0 {
		look.Why += fmt.Sprintf(", %d waiting", waiting)
	}
	if waiting > 0 || inFlight > 0 && inFlight+w.CostOrOne() > limit {
		look.Says = Waits
		if wait > 0 {
			look.Why += ", about " + wait.Round(time.Millisecond).String()
		}
	}
}

// Handler answers GET requests, whose query is an Ask, with what the gateway would do
// now. current returns what is in force.
func Handler(current func() View) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ask, err := Parse(r.URL.Query())
		var a *Answer
		if err == nil {
			a, err = Of(current(), ask)
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

// Offline says what a gateway that has just been started with a configuration would do:
// every bucket is full, and nothing is in progress. It connects to nothing. Rules that
// were set at run time are read from their file, which a gateway may have open; those in
// a store are not known, and the answer says so.
func Offline(cfg *config.Config, ask Ask) (*Answer, error) {
	opts := policy.Options{Readings: silent{}, Stores: map[string]quota.Store{}}
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
	p, err := policy.Compile(spec, opts)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	if n := plan.Faulty(); n > 0 {
		by += fmt.Sprintf(", %d of which do not fit it and are not in force", n)
	}
	note := "Judged by " + by + ", as if just started: every bucket is full."
	return Of(View{Config: cfg, Policy: p, From: plan.From, Notes: []string{note, whatIsLeft(cfg)}}, ask)
}

// ErrRules is the error of Offline where rules are kept that cannot be read.
var ErrRules = errors.New("rules that were set at run time cannot be read, and no gateway would start with them")

// setAtRunTime returns the rules that were set at run time, as far as they can be known
// here, and what the answer is judged by then.
func setAtRunTime(cfg *config.Config) (kept *quotas.Kept, by string, err error) {
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

// whatIsLeft says how to ask a gateway that runs with a configuration.
func whatIsLeft(cfg *config.Config) string {
	at := cfg.Admin.Address
	switch {
	case !cfg.Admin.Enabled():
		return "What is left now nobody can say: the configuration has no admin listener."
	case cfg.Admin.Socket != "":
		at = "unix:" + cfg.Admin.Socket
	}
	return "For what is left now ask the gateway: --admin " + at + " in place of --config."
}

// silent is a source of no readings.
type silent struct{}

// Readings implements control.Source.
func (silent) Readings(into []control.Reading) []control.Reading { return into }
