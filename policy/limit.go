package policy

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/internal/setting"
	"github.com/weir-go/weir/limit"
)

func (c *compiler) checkGate(name string) {
	at := fault.Path{"gates", name}
	g := c.spec.Gates[name]
	c.checkName(at, "gate", name)
	setting.Check(at, g, &c.List)
	if g.Each != nil {
		c.checkEach(at.At("each"), &g)
	}
	if g.Shed != nil {
		c.checkShed(at.At("shed"), g.Shed)
	}
	if g.Quota != nil {
		c.checkQuota(at.At("quota"), name, g.Quota)
	}
	switch {
	case g.Quota != nil && (g.Limit != nil || g.Shed != nil):
		c.Add(at.At("quota"), "the gate has a limit or sheds too", "write two gates, and name the one with the quota first in the routes")
	case g.Quota != nil:
		return
	case g.Shed != nil && g.Limit != nil:
		c.Add(at.At("shed"), "the gate has a limit too", "write two gates, and name the one that sheds first in the routes")
	case g.Shed != nil:
		return
	case g.Limit == nil:
		if g.Each == nil {
			c.Add(at, "the gate has no mechanism", "write limit: {limit: 20}, or limit: {} for one that is found by itself")
		}
		return
	}
	c.checkLimit(at.At("limit"), g.Limit)
	c.checkPair(at, &g)
	c.checkQueue(at.At("limit", "queue"), &g.Limit.Queue)
}

func (c *compiler) checkQueue(at fault.Path, q *QueueSpec) {
	c.checkClassShares(at.At("shares"), q.Shares)
	c.checkWeights(at.At("weights", "users"), "user", q.Weights.Users)
	c.checkWeights(at.At("weights", "tenants"), "tenant", q.Weights.Tenants)
}

// checkClassShares checks what priorities are promised.
func (c *compiler) checkClassShares(at fault.Path, shares map[string]float64) {
	sum := 0.0
	for _, class := range slices.Sorted(maps.Keys(shares)) {
		share := shares[class]
		if !slices.Contains(priorities, class) {
			c.Add(at.At(class), fmt.Sprintf("%q is not a priority", class), fault.Suggest(class, priorities, "priorities"))
		}
		sum += share
	}
	if sum > 1+1e-9 && !c.Has(at) { // 0.7, 0.2 and 0.1 add up to a little more than 1
		c.Add(at, fmt.Sprintf("the shares are %.4g together", sum), "write shares that are no more than 1 together")
	}
}

// mostWeights bounds those of a gate: a list that people write.
const mostWeights = 10_000

func (c *compiler) checkWeights(at fault.Path, who string, weights map[string]float64) {
	if len(weights) > mostWeights {
		c.Add(at, fmt.Sprintf("weights of %d %ss", len(weights), who), fmt.Sprintf("write at most %d", mostWeights))
		return
	}
	for _, name := range slices.Sorted(maps.Keys(weights)) {
		if bounded(name) != name {
			c.Add(at.At(name), fmt.Sprintf("no %s has this name: long names, and names with characters that cannot be printed, are replaced by a hash", who),
				fmt.Sprintf("write %q", bounded(name)))
		}
	}
}

// checkLimit checks a concurrency gate. It first reports faults for which it has a better text than
// the controller. Then it checks that the controller uses each setting, and lets the controller
// check the values.
func (c *compiler) checkLimit(at fault.Path, l *LimitSpec) {
	if l.Count == "requests" && l.RefuseOversize {
		c.Add(at.At("refuse_oversize"), "means nothing where each request takes one slot", "leave it out, or count")
	}
	k, ok := l.kind()
	if !ok {
		return
	}
	if k.word == "fixed" && l.Limit == 0 {
		c.Add(at.At("limit"), "the controller fixed has no limit to keep",
			"write the number of slots, 1 or more, or choose a controller that finds it")
	}
	c.checkForeign(at, l, k)
	if k.word != "fixed" {
		c.checkBounds(at, l, k)
		c.askController(at, l, k)
	}
	c.checkGateSignals(at, l, k)
}

// checkForeign finds settings that mean nothing to the controller.
func (c *compiler) checkForeign(at fault.Path, l *LimitSpec, k kind) {
	for _, key := range given(l) {
		if slices.Contains(commonKeys, key) || k.takes(key) || c.Has(at.At(key)) {
			continue
		}
		problem := "means nothing to the controller " + k.word
		if k.word == "fixed" {
			problem += ", whose limit does not move"
		}
		c.Add(at.At(key), problem, "leave it out, or write controller: "+strings.Join(takers(key), " or "))
	}
}

// takers lists the controllers that a setting means something to.
func takers(key string) []string {
	var words []string
	for _, k := range kinds {
		if k.takes(key) {
			words = append(words, k.word)
		}
	}
	return words
}

// checkBounds checks the least, the first and the largest limit against each
// other.
func (c *compiler) checkBounds(at fault.Path, l *LimitSpec, k kind) {
	low, high := k.bounds(l)
	switch {
	case low > 0 && high > 0 && low > high:
		if l.Min == 0 {
			c.Add(at.At("max"), fmt.Sprintf("%d is below min (%d, the default)", high, low),
				fmt.Sprintf("write at least %d, or a min that is not above max", low))
			break
		}
		note := ""
		if l.Max == 0 {
			note = ", the default"
		}
		c.Add(at.At("min"), fmt.Sprintf("%d is above max (%d%s)", low, high, note),
			"write a min that is not above max, or a higher max")
	case l.Probe.ReadWrite && l.Limit > 0 && (l.Limit < 2*low || l.Limit > 2*high):
		c.Add(at.At("limit"), fmt.Sprintf("%d slots for two pools are not between twice min (%d) and twice max (%d)", l.Limit, low, high),
			"write a limit between them, or leave it out")
	case l.Probe.ReadWrite:
	case l.Limit > 0 && low > 0 && high > 0 && (l.Limit < low || l.Limit > high):
		c.Add(at.At("limit"), fmt.Sprintf("%d is not between min (%d) and max (%d)", l.Limit, low, high),
			"write a limit between them, or leave it out")
	}
}

// askController makes a controller of the settings. It reports the faults that the controller
// finds, if they have not been reported yet.
func (c *compiler) askController(at fault.Path, l *LimitSpec, k kind) {
	_, err := k.make(l)
	var faults *fault.Faults
	if !errors.As(err, &faults) {
		c.AddError(at, err)
		return
	}
	bounds := c.Has(at.At("limit")) || c.Has(at.At("min")) || c.Has(at.At("max"))
	for _, f := range faults.List {
		f.Path = at.At(k.path(f.Path[0])...)
		if of := f.Path[len(f.Path)-1]; !c.Has(f.Path) && !(bounds && (of == "limit" || of == "min" || of == "max")) {
			c.AddFault(f)
		}
	}
}

// kind is what a policy knows of a controller: its word, its configuration, and how it is made. A
// limit has settings for it in two places. What the configuration has keys for stands in the group
// called like the controller. The other fields are those of the same name in [LimitSpec].
type kind struct {
	word   string
	config reflect.Type
	make   func(l *LimitSpec) (control.Controller, error)
}

// automatic is the controller of a limit that names none and has no number: the library's.
var automatic = control.Default().Name()

// kinds are the controllers, automatic first.
var kinds = []kind{
	by("belief", control.NewBelief),
	by("knee", control.NewKnee),
	{"fixed", reflect.TypeFor[struct{}](), func(l *LimitSpec) (control.Controller, error) { return control.Fixed(l.Limit), nil }},
	by("aimd", control.NewAIMD),
	by("vegas", control.NewVegas),
	by("gradient2", control.NewGradient2),
	{"probe", reflect.TypeFor[control.ProbeConfig](), probeOf},
	by("lag", control.NewLagMap),
	by("drain", control.NewDrain),
	by("resource", control.NewResource),
}

func by[K any, C control.Controller](word string, new func(K) (C, error)) kind {
	return kind{word, reflect.TypeFor[K](), func(l *LimitSpec) (control.Controller, error) { return made(new(configOf[K](l, word))) }}
}

// probeOf makes the one of a pair that ticks, where there are two; the gate makes both.
func probeOf(l *LimitSpec) (control.Controller, error) {
	cfg := configOf[control.ProbeConfig](l, "probe")
	if !l.Probe.ReadWrite {
		return made(control.NewProbe(cfg))
	}
	pair, err := control.NewProbePair(cfg)
	if err != nil {
		return nil, err
	}
	return pair.Read(), nil
}

// made keeps a nil pointer from becoming a controller that is not nil.
func made[C control.Controller](c C, err error) (control.Controller, error) {
	if err != nil {
		return nil, err
	}
	return c, nil
}

// configOf returns the configuration of a controller, as the limit and its group say.
func configOf[K any](l *LimitSpec, word string) (cfg K) {
	limit := reflect.ValueOf(l).Elem()
	var group reflect.Value
	if f := fieldOf(limit.Type(), func(f *setting.Field) bool { return f.Key == word }); f != nil {
		group = limit.FieldByIndex(f.Index)
		cfg = group.Field(0).Interface().(K)
	}
	into := reflect.ValueOf(&cfg).Elem()
	for i := range into.NumField() {
		field := into.Type().Field(i)
		if hasKey(into.Type(), field.Name) {
			continue
		}
		from := limit.FieldByName(inLimit(field.Name))
		if group.IsValid() {
			if own, ok := group.Type().FieldByName(field.Name); ok && len(own.Index) == 1 {
				from = group.FieldByIndex(own.Index)
			}
		}
		if from.IsValid() {
			into.Field(i).Set(from.Convert(field.Type))
		}
	}
	return cfg
}

// inLimit returns the name in [LimitSpec] of a field that controllers share.
func inLimit(field string) string {
	if field == "Initial" {
		return "Limit"
	}
	return field
}

func fieldOf(t reflect.Type, is func(*setting.Field) bool) *setting.Field {
	fields := setting.Fields(t)
	if i := slices.IndexFunc(fields, func(f setting.Field) bool { return is(&f) }); i >= 0 {
		return &fields[i]
	}
	return nil
}

// hasKey reports whether the field of a configuration is a setting of the controller's group.
// The other fields are settings of the limit, whichever its controller is.
func hasKey(config reflect.Type, field string) bool {
	return fieldOf(config, func(f *setting.Field) bool { return f.Go == field }) != nil
}

// path returns where a limit has the setting that is a field of the configuration.
func (k *kind) path(field string) fault.Path {
	limit := reflect.TypeFor[LimitSpec]()
	if group := fieldOf(limit, func(f *setting.Field) bool { return f.Key == k.word }); group != nil {
		if f := fieldOf(group.Type, func(f *setting.Field) bool { return f.Go == field }); f != nil {
			return fault.Path{k.word, f.Key}
		}
	}
	if f := fieldOf(limit, func(f *setting.Field) bool { return f.Go == inLimit(field) }); f != nil {
		return fault.Path{f.Key}
	}
	return nil
}

// Controllers returns the words for LimitSpec.Controller. The first is the
// default where there is no limit to keep; fixed is where there is one.
func Controllers() []string {
	words := make([]string, len(kinds))
	for i, k := range kinds {
		words[i] = k.word
	}
	return words
}

// kind describes the spec's controller, or the default one if the spec names none. It is false if
// the name is not known.
func (l *LimitSpec) kind() (kind, bool) {
	word := l.Controller
	switch {
	case word == "" && l.Limit != 0:
		word = "fixed"
	case word == "":
		word = automatic
	}
	i := slices.IndexFunc(kinds, func(k kind) bool { return k.word == word })
	if i < 0 {
		return kind{}, false
	}
	return kinds[i], true
}

// takes reports whether a setting means something to the controller.
func (k *kind) takes(key string) bool {
	f := fieldOf(reflect.TypeFor[LimitSpec](), func(f *setting.Field) bool { return f.Key == key })
	_, known := k.config.FieldByName(f.Go)
	return key == k.word || known && !hasKey(k.config, f.Go)
}

// heeds reports whether the controller reads the gate's signals itself.
func (k *kind) heeds() bool { return k.takes("signals") }

// byLag reports whether the controller goes by a lag.
func (k *kind) byLag() bool { return k.word == "lag" || k.word == "drain" }

// bounds returns the least and the largest limit; 0 if the limit does not move.
func (k *kind) bounds(l *LimitSpec) (low, high int64) {
	return cmp.Or(l.Min, k.defaultOf("Min")), cmp.Or(l.Max, k.defaultOf("Max"))
}

func (k *kind) defaultOf(field string) int64 {
	f, _ := k.config.FieldByName(field)
	n, _ := strconv.ParseInt(f.Tag.Get("default"), 10, 64)
	return n
}

// given lists the settings that a group gives, by their keys. group points to a struct.
func given(group any) []string {
	var keys []string
	v := reflect.ValueOf(group).Elem()
	for _, f := range setting.Fields(v.Type()) {
		if !v.FieldByIndex(f.Index).IsZero() {
			keys = append(keys, f.Key)
		}
	}
	return keys
}

// commonKeys are the settings that do not depend on the controller.
var commonKeys = []string{"controller", "limit", "queue", "signals", "exempt", "count", "refuse_oversize"}

// ceiling is the highest limit a gate can ever have, 0 if the spec does not say.
func (l *LimitSpec) ceiling() int64 {
	k, ok := l.kind()
	if !ok || k.word == "fixed" {
		return l.Limit
	}
	_, high := k.bounds(l)
	return high
}

// edf is the order "earliest deadline first".
const edf = "edf"

// config returns the limiter's settings, with a controller of their own, for a
// spec that has been checked.
func (l *LimitSpec) config() (limit.Config, error) {
	cfg := limit.Config{Queue: l.Queue.queue(), Exempt: l.Exempt, RefuseOversize: l.RefuseOversize}
	k, _ := l.kind()
	if k.word == "fixed" && len(l.Signals) == 0 {
		cfg.Limit = l.Limit // limit.New makes a fixed controller of it
		return cfg, nil
	}
	inner, err := k.make(l)
	if err == nil && len(l.Signals) > 0 && !k.heeds() {
		// The signals are named, because a lag that the controller reads is no pressure.
		least, _ := k.bounds(l)
		inner, err = made(control.NewCapped(inner, control.CapConfig{Min: least, Signals: l.Signals}))
	}
	cfg.Controller = inner
	return cfg, err
}

func (q *QueueSpec) queue() limit.Queue {
	room := limit.Queue{
		Len: q.Len, MaxWait: time.Duration(q.MaxWait), ByTime: q.ByTime,
		Weights: limit.Weights{Users: q.Weights.Users, Tenants: q.Weights.Tenants},
	}
	for word, share := range q.Shares {
		if p, ok := weir.ParsePriority(word); ok {
			if room.Shares == nil {
				room.Shares = make(map[weir.Priority]float64, len(q.Shares))
			}
			room.Shares[p] = share
		}
	}
	switch q.Order {
	case "fifo":
		room.Order = limit.FIFO
	case "lifo":
		room.Order = limit.LIFO
	case edf:
		room.Order = limit.EDF
	default:
		room.Order = limit.Adaptive
	}
	return room
}

// config returns the settings of a gate with one limit.
func (c *compiler) config(name string) (limit.Config, error) {
	spec := c.spec.Gates[name].Limit
	cfg, err := spec.config()
	cfg.Signals = c.sourceOf(spec.sources())
	cfg.Name = name
	cfg.Hooks = c.hooks()
	cfg.FindLeaks = c.opts.FindLeaks
	cfg.Now = c.opts.Now
	return cfg, err
}
