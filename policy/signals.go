package policy

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/internal/setting"
	"github.com/weir-go/weir/signal"
)

// checkSignals checks the signals that the spec defines.
func (c *compiler) checkSignals() {
	for _, name := range slices.Sorted(maps.Keys(c.spec.Signals)) {
		at := fault.Path{"signals", name}
		spec := c.spec.Signals[name]
		c.checkName(at, "signal", name)
		setting.Check(at, spec, &c.List)
		r, ok := c.reads(name)
		if !ok {
			if spec.Read != "" {
				at = at.At("read")
			}
			word := spec.Read
			if word == "" {
				word = name
			}
			c.Add(at, fmt.Sprintf("%q is nothing that a signal can read", word), c.suggestReading(word))
			continue
		}
		for _, key := range given(&spec) {
			if slices.Contains(readingKeys, key) && !slices.Contains(r.keys, key) && !c.Has(at.At(key)) {
				c.Add(at.At(key), "means nothing to a signal that reads "+r.word, "leave it out")
			}
		}
		c.AddFresh(at, r.check(name, spec))
	}
}

func (c *compiler) suggestReading(word string) string {
	known := append(slices.Sorted(maps.Keys(c.opts.Signals)), SignalKinds()...)
	if n := nearestSignal(word, known); n != "" {
		return "write read: " + n
	}
	return "write read: and one of " + strings.Join(known, ", ")
}

// nearestSignal knows that psi_cpu had kinds of its own once: cgroup_psi_cpu, psi_cpu_full.
func nearestSignal(word string, known []string) string {
	return fault.Nearest(strings.TrimSuffix(strings.TrimPrefix(word, "cgroup_"), "_full"), known)
}

// checkGateSignals checks the signals of a gate.
func (c *compiler) checkGateSignals(at fault.Path, l *LimitSpec, k kind) {
	for i, name := range l.Signals {
		at := at.At("signals").Index(i)
		switch {
		case slices.Contains(l.Signals[:i], name):
			c.Add(at, fmt.Sprintf("%q is in the list already", name), "leave one of them out")
		case name == l.lagSignal():
			c.Add(at, fmt.Sprintf("%q is a lag and no pressure", name), "leave it out here; the controller "+k.word+" reads it")
		default:
			c.checkSignalName(at, name)
		}
	}
	if k.byLag() {
		at := at.At(k.word, "signal")
		if lag := l.lagSignal(); lag != "" {
			c.checkSignalName(at, lag)
		} else {
			c.Add(at, "the controller "+k.word+" has no lag signal", "name the signal with the lag")
		}
	}
	if k.heeds() && len(l.Signals) == 0 {
		c.Add(at.At("signals"), "the controller "+k.word+" has no signals", "write for instance [cpu, memory]")
	}
	if len(l.sources()) > 0 && c.opts.Now != nil && c.opts.Readings == nil {
		c.Add(at, "signals are read from this machine in its own time, and there is none on virtual time",
			"leave them out")
	}
}

// checkSignalName checks that there is a signal of that name.
func (c *compiler) checkSignalName(at fault.Path, name string) {
	if _, defined := c.spec.Signals[name]; defined {
		return // and has been checked
	}
	r, ok := c.reads(name)
	if !ok {
		known := slices.Sorted(maps.Keys(c.spec.Signals))
		for _, word := range append(slices.Sorted(maps.Keys(c.opts.Signals)), SignalKinds()...) {
			if !slices.Contains(known, word) {
				known = append(known, word)
			}
		}
		instead := "say under signals: what it reads, or " + fault.Suggest(name, known, "signals")
		if n := nearestSignal(name, known); n != "" {
			instead = "did you mean " + n + "?"
		}
		c.Add(at, fmt.Sprintf("there is no signal %q", name), instead)
		return
	}
	var faults *fault.Faults
	if errors.As(r.check(name, SignalSpec{}), &faults) {
		c.Add(at, fmt.Sprintf("the signal %s has to be told its %v", name, faults.List[0].Path), fmt.Sprintf("write it under signals: %s:", name))
	}
}

// check returns everything that is wrong with the values of a signal's settings. How it is
// polled is tried on a signal that costs nothing to read.
func (r *reading) check(name string, spec SignalSpec) error {
	var faults fault.List
	switch {
	case r.word == "file" && spec.Path == "":
		faults.Add(fault.Path{"path"}, "no file is named", "write the file that holds the number")
	case r.word == "http":
		if u, err := url.Parse(spec.URL); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			faults.Add(fault.Path{"url"}, fmt.Sprintf("%q is not an http or https URL", spec.URL), "write for instance http://127.0.0.1:8000/lag")
		}
	}
	if spec.Then == "safe" && spec.SafeValue == 0 {
		faults.Add(fault.Path{"safe_value"}, "then: safe has no value to put in place of a missing one",
			"write the pressure to use then, such as 2 (above 1 the limit shrinks), or the lag")
	}
	if spec.Then != "safe" && spec.SafeValue != 0 {
		faults.Add(fault.Path{"safe_value"}, fmt.Sprintf("%g will not do", spec.SafeValue), "only used with then: safe")
	}
	w, err := r.watch(name, spec)
	if err == nil {
		w.Signal = signal.Func(name, func(context.Context) (float64, error) { return 0, signal.ErrNoValue })
		err = w.Check()
	}
	faults.AddError(nil, withKeys(err))
	return faults.Err("")
}

// otherKeys are the keys of fields that the file calls otherwise.
var otherKeys = map[string]string{"Share": "threshold", "PerProc": "threshold", "Max": "threshold", "Fallback": "safe_value"}

// withKeys gives the faults of a configuration in Go the keys of the file in place of the names of
// its fields.
func withKeys(err error) error {
	var faults *fault.Faults
	if errors.As(err, &faults) {
		for _, f := range faults.List {
			for i, field := range f.Path {
				f.Path[i] = cmp.Or(otherKeys[field], strings.ToLower(field))
			}
		}
	}
	return err
}

// readingKeys are the settings that mean something to some readings only.
var readingKeys = []string{"threshold", "wait", "over", "path", "url", "field"}

// reading is one kind of signal that a policy can read.
type reading struct {
	word string
	keys []string // settings of SignalSpec that mean something to it
	fast bool     // worth reading every 10 ms
	raw  bool     // no pressure yet: what is read is divided by the threshold, if one is given
	make func(SignalSpec) (signal.Signal, error)
}

// readings are what signals can read.
var readings = append([]reading{
	{word: "sched_latency", keys: []string{"threshold", "wait", "over"}, fast: true, make: func(s SignalSpec) (signal.Signal, error) {
		return signal.NewSchedLatency(signal.SchedLatencyConfig{
			Wait: time.Duration(s.Wait), Share: s.Threshold, Over: time.Duration(s.Over),
		})
	}},
	{word: "runnable", keys: []string{"threshold"}, fast: true, make: func(s SignalSpec) (signal.Signal, error) {
		return signal.NewRunnable(signal.RunnableConfig{PerProc: s.Threshold})
	}},
	{word: "cpu", keys: []string{"threshold", "over"}, make: func(s SignalSpec) (signal.Signal, error) {
		return signal.NewCPU(signal.CPUConfig{Threshold: s.Threshold, Over: time.Duration(s.Over)})
	}},
	{word: "cpu_throttling", keys: []string{"threshold", "over"}, make: func(s SignalSpec) (signal.Signal, error) {
		return signal.NewThrottling(signal.ThrottlingConfig{Threshold: s.Threshold, Over: time.Duration(s.Over)})
	}},
	{word: "memory", keys: []string{"threshold"}, make: func(s SignalSpec) (signal.Signal, error) {
		return signal.NewMemory(signal.MemoryConfig{Threshold: s.Threshold})
	}},
	{word: "heap", keys: []string{"threshold"}, make: func(s SignalSpec) (signal.Signal, error) {
		return signal.NewHeap(signal.HeapConfig{Threshold: s.Threshold})
	}},
	{word: "goroutines", keys: []string{"threshold"}, make: func(s SignalSpec) (signal.Signal, error) {
		return signal.NewGoroutines(signal.GoroutinesConfig{Max: int64(min(s.Threshold, 1e15))})
	}},
	{word: "file", keys: []string{"threshold", "path", "field"}, raw: true, make: func(s SignalSpec) (signal.Signal, error) {
		return signal.Func("file", s.fromFile), nil
	}},
	{word: "http", keys: []string{"threshold", "url", "field"}, raw: true, make: func(s SignalSpec) (signal.Signal, error) {
		return signal.Func("http", s.fromHTTP), nil
	}},
}, stalls()...)

// stalls are the pressure stall signals of the machine.
func stalls() []reading {
	var all []reading
	for _, resource := range []signal.Resource{signal.CPU, signal.IO, signal.Memory} {
		all = append(all, reading{word: "psi_" + string(resource), keys: []string{"threshold", "over"}, make: func(s SignalSpec) (signal.Signal, error) {
			return signal.NewPSI(signal.PSIConfig{Resource: resource, Threshold: s.Threshold, Over: time.Duration(s.Over)})
		}})
	}
	return all
}

// SignalKinds returns the words for SignalSpec.Read.
func SignalKinds() []string {
	words := make([]string, len(readings))
	for i, r := range readings {
		words[i] = r.word
	}
	return words
}

// external is a reading of Options.Signals.
func external(name string, s signal.Signal) reading {
	return reading{word: name, keys: []string{"threshold"}, raw: true, make: func(SignalSpec) (signal.Signal, error) { return s, nil }}
}

// reads returns how to read the signal of that name, and false if there is no such signal.
func (c *compiler) reads(name string) (reading, bool) {
	word := c.spec.Signals[name].Read
	if word == "" {
		word = name
	}
	if s, ok := c.opts.Signals[word]; ok && s != nil {
		return external(word, s), true
	}
	i := slices.IndexFunc(readings, func(r reading) bool { return r.word == word })
	if i < 0 {
		return reading{}, false
	}
	return readings[i], true
}

// watch returns how to poll the signal of that name.
func (r *reading) watch(name string, spec SignalSpec) (signal.Watch, error) {
	s, err := r.make(spec)
	if err != nil {
		return signal.Watch{}, err
	}
	w := signal.Watch{
		Interval: time.Duration(spec.Interval), Timeout: time.Duration(spec.Timeout),
		Hold: time.Duration(spec.Hold), Smooth: time.Duration(spec.Smooth),
	}
	if w.Interval == 0 && r.fast {
		w.Interval = 10 * time.Millisecond
	}
	if spec.Then == "safe" {
		w.Fallback = spec.SafeValue
	}
	w.Signal = signal.Func(name, s.Read)
	if r.raw && spec.Threshold != 0 {
		w.Signal = signal.Func(name, func(ctx context.Context) (float64, error) {
			v, err := s.Read(ctx)
			return v / spec.Threshold, err
		})
	}
	return w, nil
}

// polled is the poller of a policy. The next policy keeps it if it wants the same signals.
type polled struct {
	*signal.Poller
	specs    map[string]SignalSpec
	external map[string]signal.Signal // by the name of the signal that reads it
}

// same reports whether both poll the same signals in the same way.
func (p *polled) same(other *polled) bool {
	return maps.Equal(p.specs, other.specs) && maps.EqualFunc(p.external, other.external, same)
}

// same reports whether both are one, as far as they can be compared.
func same[T any](a, b T) bool { return reflect.ValueOf(a).Comparable() && any(a) == any(b) }

// poll starts to poll the signals of the gates, or keeps the poller of the policy in force.
func (c *compiler) poll(p *Policy) {
	names := c.signalNames()
	if len(names) == 0 {
		return
	}
	if c.opts.Readings != nil {
		c.source = c.opts.Readings
		return
	}
	next := &polled{specs: map[string]SignalSpec{}, external: map[string]signal.Signal{}}
	var watches []signal.Watch
	for _, name := range names {
		r, _ := c.reads(name)
		spec := c.spec.Signals[name]
		w, err := r.watch(name, spec)
		if err != nil {
			c.AddError(fault.Path{"signals", name}, err)
			continue
		}
		watches = append(watches, w)
		next.specs[name] = spec
		if s, ok := c.opts.Signals[r.word]; ok {
			next.external[name] = s
		}
	}
	if prev := c.opts.Previous; prev != nil && prev.polled != nil && prev.polled.same(next) {
		p.polled = prev.polled
	} else {
		poller, err := signal.NewPoller(signal.Config{Watches: watches, Hooks: c.opts.SignalHooks})
		if err != nil {
			c.AddError(fault.Path{"signals"}, err)
			return
		}
		next.Poller = poller
		p.polled = next
	}
	c.source = p.polled
}

// shares reports whether the policy in force has this poller too.
func (c *compiler) shares(p *polled) bool {
	return c.opts.Previous != nil && c.opts.Previous.polled == p
}

// signalNames returns the signals that gates use, sorted.
func (c *compiler) signalNames() []string {
	used := map[string]bool{}
	for _, g := range c.spec.Gates {
		for _, name := range g.sources() {
			used[name] = true
		}
	}
	return slices.Sorted(maps.Keys(used))
}

// sources lists the signals that the gate needs: those that can lower its limit, and the lag
// signal.
func (l *LimitSpec) sources() []string {
	if lag := l.lagSignal(); lag != "" {
		return append(slices.Clone(l.Signals), lag)
	}
	return l.Signals
}

// lagSignal is the signal with a lag, not a pressure, as its value. It is empty if the controller
// needs none.
func (l *LimitSpec) lagSignal() string {
	switch l.Controller {
	case "lag":
		return l.Lag.Signal
	case "drain":
		return l.Drain.Signal
	}
	return ""
}

// chosen is the part of a source that one gate reads.
type chosen struct {
	from  control.Source
	names []string
}

// Readings implements [control.Source].
func (s chosen) Readings(into []control.Reading) []control.Reading {
	kept := len(into)
	into = s.from.Readings(into)
	for _, r := range into[kept:] {
		if slices.Contains(s.names, r.Name) {
			into[kept] = r
			kept++
		}
	}
	return into[:kept]
}

// sources lists the signals that a gate needs.
func (g *GateSpec) sources() []string {
	switch {
	case g.Shed != nil:
		return g.Shed.Signals
	case g.Limit != nil:
		return g.Limit.sources()
	}
	return nil
}

// sourceOf returns the readings of the named signals, nil for none.
func (c *compiler) sourceOf(names []string) control.Source {
	if len(names) == 0 {
		return nil
	}
	return chosen{c.source, names}
}

// maxDocument bounds what is read from a file or an answer for one number.
const maxDocument = 64 << 10

// numberClient reads numbers from servers. It follows no redirects: the server could choose what
// else this machine asks. A header may be no longer than a body.
var numberClient = &http.Client{
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	Transport: &http.Transport{
		Proxy: http.ProxyFromEnvironment, MaxResponseHeaderBytes: maxDocument, IdleConnTimeout: time.Minute,
	},
}

// fromFile reads the number in a file. A pipe is refused, because opening one waits for a writer,
// possibly for ever.
func (s SignalSpec) fromFile(context.Context) (float64, error) {
	switch info, err := os.Stat(s.Path); {
	case err != nil:
		return 0, err
	case !info.Mode().IsRegular():
		return 0, fmt.Errorf("%s is not a regular file (%s)", s.Path, info.Mode())
	}
	f, err := os.Open(s.Path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return numberIn(f, s.Field)
}

// fromHTTP asks a server for a number.
func (s SignalSpec) fromHTTP(ctx context.Context) (float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL, nil)
	if err != nil {
		return 0, err
	}
	res, err := numberClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("the answer is %s, not 200 OK", res.Status)
	}
	return numberIn(res.Body, s.Field)
}

// numberIn returns the number that the text is, or the one at field in the JSON
// that it is.
func numberIn(r io.Reader, field string) (float64, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxDocument+1))
	switch {
	case err != nil:
		return 0, err
	case len(data) > maxDocument:
		return 0, fmt.Errorf("longer than %d bytes", maxDocument)
	case field == "":
		return parseNumber(strings.TrimSpace(string(data)))
	}
	var v any
	if err := json.Unmarshal(data, &v); err != nil {
		return 0, fmt.Errorf("no JSON: %w", err)
	}
	for step := range strings.SplitSeq(field, ".") {
		if v, err = stepInto(v, step); err != nil {
			return 0, fmt.Errorf("field %s: %w", field, err)
		}
	}
	switch v := v.(type) {
	case float64:
		return v, nil
	case string:
		return parseNumber(v)
	}
	return 0, fmt.Errorf("field %s: holds no number", field)
}

// stepInto returns the value under a key of an object, or at an index of a list.
func stepInto(v any, step string) (any, error) {
	switch v := v.(type) {
	case map[string]any:
		if in, ok := v[step]; ok {
			return in, nil
		}
	case []any:
		if i, err := strconv.Atoi(step); err == nil && i >= 0 && i < len(v) {
			return v[i], nil
		}
	}
	return nil, fmt.Errorf("there is no %q", step)
}

func parseNumber(text string) (float64, error) {
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return 0, fmt.Errorf("%.40q is not a number", text)
	}
	return v, nil
}
