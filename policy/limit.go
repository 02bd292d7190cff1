package policy

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/limit"
)

func (c *compiler) checkGate(name string) {
	at := place{"gates", name}
	g := c.spec.Gates[name]
	c.checkName(at, "gate", name)
	c.checkWord(at.at("mode"), "mode", string(g.Mode), modes)
	if g.Each != nil {
		c.checkEach(at.at("each"), &g)
	}
	if g.Shed != nil {
		c.checkShed(at.at("shed"), g.Shed)
	}
	if g.Quota != nil {
		c.checkQuota(at.at("quota"), g.Quota)
	}
	switch {
	case g.Quota != nil && (g.Limit != nil || g.Shed != nil):
		c.add(at.at("quota"), "the gate has a limit or sheds too", "write two gates, and name the one with the quota first in the routes")
	case g.Quota != nil:
		return
	case g.Shed != nil && g.Limit != nil:
		c.add(at.at("shed"), "the gate has a limit too", "write two gates, and name the one that sheds first in the routes")
	case g.Shed != nil:
		return
	case g.Limit == nil:
		if g.Each == nil {
			c.add(at, "the gate has no mechanism", "write limit: {limit: 20}, or limit: {} for one that is found by itself")
		}
		return
	}
	c.checkLimit(at.at("limit"), g.Limit)
	c.checkPair(at, &g)
	if e := g.Limit.Exempt; e < -1 || e > maxLimit {
		c.add(at.at("limit", "exempt"), fmt.Sprintf("%d is no bound", e),
			fmt.Sprintf("write how much exempt work there may be at once, at most %d, or -1 for none", maxLimit))
	}
	c.checkQueue(at.at("limit", "queue"), &g.Limit.Queue)
}

// Bounds of a concurrency gate: far above what one process can use, and low
// enough that a slip of the finger cannot ask for terabytes.
const (
	maxLimit    = 1_000_000
	maxQueueLen = 1_000_000
)

func (c *compiler) checkQueue(at place, q *QueueSpec) {
	switch {
	case q.Len < -1:
		c.add(at.at("len"), fmt.Sprintf("%d is negative", q.Len),
			"write how many may wait, or -1 for a gate where nothing waits")
	case q.Len > maxQueueLen:
		c.add(at.at("len"), fmt.Sprintf("room for %d is more than the %d a gate can have", q.Len, maxQueueLen),
			fmt.Sprintf("write at most %d", maxQueueLen))
	}
	if q.MaxWait < 0 && q.MaxWait != NoDuration {
		c.add(at.at("max_wait"), fmt.Sprintf("%v is negative", time.Duration(q.MaxWait)),
			"write the longest wait, such as 500ms, or -1 for none but the deadline of the work")
	}
	c.checkWord(at.at("order"), "order", q.Order, orders)
	c.checkClassShares(at.at("shares"), q.Shares)
	c.checkWeights(at.at("weights", "users"), "user", q.Weights.Users)
	c.checkWeights(at.at("weights", "tenants"), "tenant", q.Weights.Tenants)
}

// checkClassShares checks what priorities are promised.
func (c *compiler) checkClassShares(at place, shares map[string]float64) {
	sum := 0.0
	for _, class := range slices.Sorted(maps.Keys(shares)) {
		share := shares[class]
		if !slices.Contains(priorities, class) {
			c.add(at.at(class), fmt.Sprintf("%q is no priority", class), suggest(class, priorities, "priorities"))
		}
		if !(share >= 0 && share <= 1) {
			c.add(at.at(class), fmt.Sprintf("%g is no share", share), shareInstead(share, "write a share from 0 to 1, such as 0.05"))
			continue
		}
		sum += share
	}
	if sum > 1+1e-9 { // 0.7, 0.2 and 0.1 add up to a little more than 1
		c.add(at, fmt.Sprintf("the shares are %.4g together", sum), "write shares that are no more than 1 together")
	}
}

// shareInstead is what to write in the place of what is no share. Above 2 it can only be
// meant in percent; just above 1 it may be that, or too much.
func shareInstead(share float64, usual string) string {
	switch {
	case share > 1 && share < 2:
		return fmt.Sprintf("write 1 for all, or %g for %g %%", share/100, share)
	case share >= 2 && share <= 100:
		return fmt.Sprintf("write %g", share/100)
	}
	return usual
}

// mostWeights bounds those of a gate: a list that people write.
const mostWeights = 10_000

func (c *compiler) checkWeights(at place, who string, weights map[string]float64) {
	if len(weights) > mostWeights {
		c.add(at, fmt.Sprintf("weights of %d %ss", len(weights), who), fmt.Sprintf("write at most %d", mostWeights))
		return
	}
	for _, name := range slices.Sorted(maps.Keys(weights)) {
		if bounded(name) != name {
			c.add(at.at(name), fmt.Sprintf("no %s has this name: longer ones, and such with signs that cannot be printed, are told apart by a hash", who),
				fmt.Sprintf("write %q", bounded(name)))
		}
		if w := weights[name]; !(w >= limit.MinWeight && w <= limit.MaxWeight) {
			c.add(at.at(name), fmt.Sprintf("the weight %g is out of range", w),
				fmt.Sprintf("write a number from %g to %.0f; who is not named has 1", limit.MinWeight, float64(limit.MaxWeight)))
		}
	}
}

// checkLimit checks a concurrency gate: what can be said better here than by the
// controller itself, then that each setting means something to the controller,
// then what the controller has to say.
func (c *compiler) checkLimit(at place, l *LimitSpec) {
	c.checkWord(at.at("count"), "count", l.Count, counts)
	if l.Count == "requests" && l.RefuseOversize {
		c.add(at.at("refuse_oversize"), "means nothing where each request takes one slot", "leave it out, or count")
	}
	before := len(c.faults)
	c.checkSlots(at, l)
	if !c.checkWord(at.at("controller"), "controller", l.Controller, Controllers()) {
		return
	}
	k, _ := l.kind()
	if k.word == "fixed" && l.Limit == 0 {
		c.add(at.at("limit"), "the controller fixed has no limit to keep",
			"write the number of slots, 1 or more, or choose a controller that finds it")
	}
	c.checkForeign(at, l, k)
	c.checkShares(at, l, k)
	if k.word != "fixed" {
		c.checkBounds(at, l, k)
		c.askController(at, l, k, c.faults[before:])
	}
	c.checkGateSignals(at, l, k)
}

func (c *compiler) checkSlots(at place, l *LimitSpec) {
	for _, f := range []struct {
		key   string
		value int64
	}{{"limit", l.Limit}, {"min", l.Min}, {"max", l.Max}} {
		switch {
		case f.value < 0:
			c.add(at.at(f.key), fmt.Sprintf("%d is negative", f.value), "write 1 or more slots")
		case f.value > maxLimit:
			c.add(at.at(f.key), fmt.Sprintf("%d slots is more than the %d a gate can have", f.value, maxLimit),
				fmt.Sprintf("write at most %d", maxLimit))
		}
	}
}

// checkForeign finds settings that mean nothing to the controller.
func (c *compiler) checkForeign(at place, l *LimitSpec, k kind) {
	for _, key := range l.given() {
		if k.takes(key) {
			continue
		}
		problem := "means nothing to the controller " + k.word
		if k.word == "fixed" {
			problem += ", whose limit does not move"
		}
		c.add(at.at(key), problem, "leave it out, or write controller: "+strings.Join(takers(key), " or "))
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

// checkShares finds what is easily written wrong: shares in percent, durations
// and counts below 0.
func (c *compiler) checkShares(at place, l *LimitSpec, k kind) {
	own := k.takes
	if l.Threshold < 0 && own("threshold") {
		c.add(at.at("threshold"), fmt.Sprintf("%v is negative", time.Duration(l.Threshold)),
			"write the latency above which a window counts as overloaded, such as 500ms")
	}
	if p := l.Percentile; p != 0 && !(p > 0 && p <= 1) && own("percentile") {
		c.add(at.at("percentile"), fmt.Sprintf("%g is not a share in (0, 1]", p), shareInstead(p, "write a share above 0 and at most 1, such as 0.95"))
	}
	if r := l.Probe.ReadRatio; r != 0 && !(r > 0 && r < 1) && own("probe") {
		c.add(at.at("probe", "read_ratio"), fmt.Sprintf("%g is not a share between 0 and 1", r), "write the part of the slots that is for reads, such as 0.5")
	}
	if w := time.Duration(l.Window); w != 0 && w < minWindow && own("window") {
		c.add(at.at("window"), fmt.Sprintf("%v is too short to measure anything", w), fmt.Sprintf("write at least %v", minWindow))
	}
	if l.MinSamples < 0 && own("min_samples") {
		c.add(at.at("min_samples"), fmt.Sprintf("%d is negative", l.MinSamples), "write 1 or more outcomes")
	}
}

// minWindow is the shortest window of the controllers of package control.
const minWindow = 10 * time.Millisecond

// checkBounds checks the least, the first and the largest limit against each
// other.
func (c *compiler) checkBounds(at place, l *LimitSpec, k kind) {
	low, high := k.bounds(l)
	switch {
	case low > 0 && high > 0 && low > high:
		if l.Min == 0 {
			c.add(at.at("max"), fmt.Sprintf("%d is below min (%d, the default)", high, low),
				fmt.Sprintf("write at least %d, or a min that is not above max", low))
			break
		}
		note := ""
		if l.Max == 0 {
			note = ", the default"
		}
		c.add(at.at("min"), fmt.Sprintf("%d is above max (%d%s)", low, high, note),
			"write a min that is not above max, or a higher max")
	case l.Probe.ReadWrite && l.Limit > 0 && (l.Limit < 2*low || l.Limit > 2*high):
		c.add(at.at("limit"), fmt.Sprintf("%d slots for two pools are not between twice min (%d) and twice max (%d)", l.Limit, low, high),
			"write a limit to start from between them, or leave it out")
	case l.Probe.ReadWrite:
	case l.Limit > 0 && low > 0 && high > 0 && (l.Limit < low || l.Limit > high):
		c.add(at.at("limit"), fmt.Sprintf("%d is not between min (%d) and max (%d)", l.Limit, low, high),
			"write a limit to start from between them, or leave it out")
	}
}

// askController makes a controller of the settings and reports what it finds
// wrong with them, where that has not been said. Its errors begin with the name
// of a field of its configuration: "Alpha -1: must be positive".
func (c *compiler) askController(at place, l *LimitSpec, k kind, said []Fault) {
	_, err := k.make(l)
	if err == nil {
		return
	}
	told := map[string]bool{}
	for _, f := range said {
		told[group(f.Keys[len(f.Keys)-1])] = true
	}
	for _, e := range leaves(err) {
		name, rest, _ := strings.Cut(e.Error(), " ")
		key := snake(name)
		switch value, must, ok := strings.Cut(rest, ": "); {
		case told[group(key)]:
		case ok && k.takes(key):
			c.add(at.at(key), value+" will not do", inKeys(must))
		case ok && hasKey(l, k.word, key):
			c.add(at.at(k.word, key), value+" will not do", inKeys(must))
		default:
			c.add(at, e.Error(), "")
		}
	}
}

// group makes one of the settings that bound each other: a fault in one of them
// is often told as a fault of another.
func group(key string) string {
	switch key {
	case "min", "max", "initial", "limit":
		return "bounds"
	}
	return key
}

// hasKey reports whether the group of settings of that name has the key.
func hasKey(l *LimitSpec, group, key string) bool {
	for _, f := range reflect.VisibleFields(reflect.TypeOf(*l)) {
		if jsonKey(f) != group || f.Type.Kind() != reflect.Struct {
			continue
		}
		for _, f := range reflect.VisibleFields(f.Type) {
			if jsonKey(f) == key {
				return true
			}
		}
	}
	return false
}

func jsonKey(f reflect.StructField) string {
	key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return key
}

// leaves returns the errors that err is joined of.
func leaves(err error) []error {
	for e := err; e != nil; e = errors.Unwrap(e) {
		joined, ok := e.(interface{ Unwrap() []error })
		if !ok {
			continue
		}
		var all []error
		for _, part := range joined.Unwrap() {
			all = append(all, leaves(part)...)
		}
		return all
	}
	return []error{err}
}

// snake writes MinSamples as min_samples.
func snake(name string) string {
	var b strings.Builder
	for i, r := range name {
		if unicode.IsUpper(r) && i > 0 {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// fieldName is the name of a field of a Go struct in a sentence.
var fieldName = regexp.MustCompile(`\b(?:[A-Z][a-z]+)+\b`)

// inKeys says with the keys of a file what an error of package control or signal
// says with the fields of a Go struct.
func inKeys(sentence string) string { return fieldName.ReplaceAllStringFunc(sentence, snake) }

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
	heeds    bool  // it goes by the gate's signals itself
	make     func(*LimitSpec) (control.Controller, error)
}

// The settings that controllers share.
var (
	boundKeys  = []string{"min", "max"}
	windowKeys = []string{"min", "max", "take", "percentile", "backoff", "window", "min_samples"}
)

// kinds are the controllers, the default first.
var kinds = []kind{
	{word: "knee", keys: boundKeys, min: 2, max: 10_000, make: (*LimitSpec).knee},
	{word: "fixed", make: (*LimitSpec).fixed},
	{word: "aimd", keys: append([]string{"threshold"}, windowKeys...), min: 1, max: 1000, make: (*LimitSpec).aimd},
	{word: "vegas", keys: windowKeys, min: 1, max: 1000, make: (*LimitSpec).vegas},
	{word: "gradient2", keys: windowKeys, min: 20, max: 200, make: (*LimitSpec).gradient2},
	{word: "probe", keys: boundKeys, min: 4, max: 128, make: (*LimitSpec).probe},
	{word: "lag", keys: boundKeys, min: 10, max: 1000, make: (*LimitSpec).lag},
	{word: "drain", keys: boundKeys, min: 10, max: 1000, make: (*LimitSpec).drain},
	{word: "resource", keys: append([]string{"window", "backoff"}, boundKeys...), min: 1, max: 1000, heeds: true, make: (*LimitSpec).resource},
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

// kind returns what is known of the controller that the spec names, or that it
// means by naming none; false if the word is not known.
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
	for i := range v.NumField() {
		switch key := jsonKey(v.Type().Field(i)); key {
		case "controller", "limit", "queue", "signals", "exempt", "count", "refuse_oversize":
		default:
			if !v.Field(i).IsZero() {
				keys = append(keys, key)
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

// edf is the order in which the earliest deadline goes first.
const edf = "edf"

// The words for orders, the default first.
var orders = []string{"adaptive", "fifo", "lifo", edf}

// Orders returns the words for QueueSpec.Order, the default first.
func Orders() []string { return append([]string(nil), orders...) }

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
	if err == nil && len(l.Signals) > 0 && !k.heeds {
		// Named, because a lag that the controller goes by is no pressure.
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

func (l *LimitSpec) fixed() (control.Controller, error) { return control.Fixed(l.Limit), nil }

func (l *LimitSpec) knee() (control.Controller, error) {
	return made(control.NewKnee(control.KneeConfig{Initial: l.Limit, Min: l.Min, Max: l.Max}))
}

func (l *LimitSpec) aimd() (control.Controller, error) {
	return made(control.NewAIMD(control.AIMDConfig{
		Initial: l.Limit, Min: l.Min, Max: l.Max,
		Threshold: time.Duration(l.Threshold), Backoff: l.Backoff,
		Take: control.Aggregate(l.Take), Percentile: l.Percentile,
		Window: time.Duration(l.Window), MinSamples: l.MinSamples,
	}))
}

func (l *LimitSpec) vegas() (control.Controller, error) {
	v := l.Vegas
	return made(control.NewVegas(control.VegasConfig{
		Initial: l.Limit, Min: l.Min, Max: l.Max,
		Alpha: v.Alpha, Beta: v.Beta, Backoff: l.Backoff, Smoothing: v.Smoothing, ProbeMultiplier: v.ProbeMultiplier,
		Take: control.Aggregate(l.Take), Percentile: l.Percentile,
		Window: time.Duration(l.Window), MinSamples: l.MinSamples,
	}))
}

func (l *LimitSpec) gradient2() (control.Controller, error) {
	g := l.Gradient2
	return made(control.NewGradient2(control.Gradient2Config{
		Initial: l.Limit, Min: l.Min, Max: l.Max,
		Smoothing: g.Smoothing, Queue: g.Queue, RootQueue: g.RootQueue, LongWindow: g.LongWindow, Tolerance: g.Tolerance,
		Shipped: g.Shipped, Rise: g.Rise, Recheck: g.Recheck, Backoff: l.Backoff,
		Take: control.Aggregate(l.Take), Percentile: l.Percentile,
		Window: time.Duration(l.Window), MinSamples: l.MinSamples,
	}))
}

// probe makes the one of a pair that ticks, where there are two; the gate makes both.
func (l *LimitSpec) probe() (control.Controller, error) {
	if l.Probe.ReadWrite {
		if pair, err := control.NewProbePair(l.probeConfig()); err == nil {
			return pair.Read(), nil
		}
	}
	return made(control.NewProbe(l.probeConfig()))
}

func (l *LimitSpec) lag() (control.Controller, error) {
	g := l.Lag
	return made(control.NewLagMap(control.LagMapConfig{
		Initial: l.Limit, Min: l.Min, Max: l.Max,
		Target: g.Target, Critical: g.Critical, Interval: time.Duration(g.Interval),
		Signal: g.Signal, Hold: g.Hold, Safe: g.Safe,
		Smoothing: g.Smoothing, MaxChange: g.MaxChange, Hysteresis: g.Hysteresis,
	}))
}

func (l *LimitSpec) drain() (control.Controller, error) {
	d := l.Drain
	return made(control.NewDrain(control.DrainConfig{
		Initial: l.Limit, Min: l.Min, Max: l.Max,
		Target: d.Target, Threshold: d.Threshold, Interval: time.Duration(d.Interval),
		Fudge: d.Fudge, Decay: d.Decay, Adder: d.Adder, Multiplier: d.Multiplier, PerWork: d.PerWork,
		Signal: d.Signal, Hold: d.Hold, Safe: d.Safe,
	}))
}

func (l *LimitSpec) resource() (control.Controller, error) {
	return made(control.NewResource(control.ResourceConfig{
		Initial: l.Limit, Min: l.Min, Max: l.Max,
		Window: time.Duration(l.Window), Backoff: l.Backoff, Growth: l.Resource.Growth,
	}))
}
