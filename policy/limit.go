package policy

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
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
		c.checkQuota(at.At("quota"), g.Quota)
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
			c.Add(at.At(class), fmt.Sprintf("%q is no priority", class), fault.Suggest(class, priorities, "priorities"))
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
	for _, key := range l.given() {
		if k.takes(key) || c.Has(at.At(key)) {
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
			"write a limit to start from between them, or leave it out")
	case l.Probe.ReadWrite:
	case l.Limit > 0 && low > 0 && high > 0 && (l.Limit < low || l.Limit > high):
		c.Add(at.At("limit"), fmt.Sprintf("%d is not between min (%d) and max (%d)", l.Limit, low, high),
			"write a limit to start from between them, or leave it out")
	}
}

// askController makes a controller of the settings. It reports the faults that the controller
// finds, if they have not been reported yet.
func (c *compiler) askController(at fault.Path, l *LimitSpec, k kind) {
	_, err := k.make(l, k.word)
	var faults *fault.Faults
	if !errors.As(err, &faults) {
		c.AddError(at, err)
		return
	}
	bounds := c.Has(at.At("limit")) || c.Has(at.At("min")) || c.Has(at.At("max"))
	for _, f := range faults.List {
		switch key := f.Path[0]; {
		case slices.Contains(k.keys, key):
			f.Path = at.At(key)
		case key == "initial":
			f.Path = at.At("limit")
		default:
			f.Path = at.At(k.word, key)
		}
		if of := f.Path[len(f.Path)-1]; !c.Has(f.Path) && !(bounds && (of == "limit" || of == "min" || of == "max")) {
			c.AddFault(f)
		}
	}
}

func orDefault(value, def int64) int64 {
	if value == 0 {
		return def
	}
	return value
}

// kind is what a policy knows of a controller: which settings of a LimitSpec mean
// something to it, and how it is made of them. The group of settings that is
// called like the controller is always its own.
type kind struct {
	word     string
	keys     []string
	min, max int64 // the defaults of its bounds; 0 if its limit does not move
	heeds    bool  // it reads the gate's signals itself
	make     func(l *LimitSpec, word string) (control.Controller, error)
}

// The settings that controllers share.
var (
	boundKeys  = []string{"min", "max"}
	windowKeys = []string{"min", "max", "take", "percentile", "backoff", "window", "min_samples"}
)

// kinds are the controllers, the default first.
var kinds = []kind{
	{word: "knee", keys: boundKeys, min: 2, max: 10_000, make: by(control.NewKnee)},
	{word: "fixed", make: fixedOf},
	{word: "aimd", keys: append([]string{"threshold"}, windowKeys...), min: 1, max: 1000, make: by(control.NewAIMD)},
	{word: "vegas", keys: windowKeys, min: 1, max: 1000, make: by(control.NewVegas)},
	{word: "gradient2", keys: windowKeys, min: 20, max: 200, make: by(control.NewGradient2)},
	{word: "probe", keys: boundKeys, min: 4, max: 128, make: probeOf},
	{word: "lag", keys: boundKeys, min: 10, max: 1000, make: by(control.NewLagMap)},
	{word: "drain", keys: boundKeys, min: 10, max: 1000, make: by(control.NewDrain)},
	{word: "resource", keys: append([]string{"window", "backoff"}, boundKeys...), min: 1, max: 1000, heeds: true, make: by(control.NewResource)},
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
		word = kinds[0].word
	}
	i := slices.IndexFunc(kinds, func(k kind) bool { return k.word == word })
	if i < 0 {
		return kind{}, false
	}
	return kinds[i], true
}

// takes reports whether a setting means something to the controller.
func (k *kind) takes(key string) bool { return key == k.word || slices.Contains(k.keys, key) }

// bounds returns the least and the largest limit.
func (k *kind) bounds(l *LimitSpec) (low, high int64) {
	return orDefault(l.Min, k.min), orDefault(l.Max, k.max)
}

// given lists the settings that depend on the controller and that the spec gives,
// by their keys.
func (l *LimitSpec) given() []string {
	var keys []string
	v := reflect.ValueOf(l).Elem()
	for _, f := range setting.Fields(v.Type()) {
		switch f.Key {
		case "controller", "limit", "queue", "signals", "exempt", "count", "refuse_oversize":
		default:
			if !v.FieldByIndex(f.Index).IsZero() {
				keys = append(keys, f.Key)
			}
		}
	}
	return keys
}

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
	inner, err := k.make(l, k.word)
	if err == nil && len(l.Signals) > 0 && !k.heeds {
		// The signals are named, because a lag that the controller reads is no pressure.
		inner, err = made(control.NewCapped(inner, control.CapConfig{Min: l.Min, Signals: l.Signals}))
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

// made keeps a nil pointer from becoming a controller that is not nil.
func made[C control.Controller](c C, err error) (control.Controller, error) {
	if err != nil {
		return nil, err
	}
	return c, nil
}

// by builds a controller from the settings of a limit. A setting has the same name in the
// controller's configuration as in the limit, or in the limit's group named after the controller.
func by[K any, C control.Controller](new func(K) (C, error)) func(*LimitSpec, string) (control.Controller, error) {
	return func(l *LimitSpec, word string) (control.Controller, error) {
		return made(new(configOf[K](l, word)))
	}
}

func configOf[K any](l *LimitSpec, word string) (cfg K) {
	into, from := reflect.ValueOf(&cfg).Elem(), reflect.ValueOf(l).Elem()
	for i := range into.NumField() {
		name := into.Type().Field(i).Name
		if name == "Initial" {
			name = "Limit"
		}
		value := from.FieldByName(name)
		for _, f := range setting.Fields(from.Type()) {
			if own := from.FieldByIndex(f.Index); f.Key == word && own.FieldByName(name).IsValid() {
				value = own.FieldByName(name)
			}
		}
		if value.IsValid() && value.CanConvert(into.Field(i).Type()) {
			into.Field(i).Set(value.Convert(into.Field(i).Type()))
		}
	}
	return cfg
}

func fixedOf(l *LimitSpec, _ string) (control.Controller, error) { return control.Fixed(l.Limit), nil }

// probeOf makes the one of a pair that ticks, where there are two; the gate makes both.
func probeOf(l *LimitSpec, word string) (control.Controller, error) {
	if cfg := configOf[control.ProbeConfig](l, word); l.Probe.ReadWrite {
		if pair, err := control.NewProbePair(cfg); err == nil {
			return pair.Read(), nil
		}
	}
	return by(control.NewProbe)(l, word)
}
