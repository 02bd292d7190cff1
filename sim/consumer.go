package sim

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/internal/station"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/signal"
)

// Consumer is what works off a queue behind the backend: each request that the backend answers
// leaves a batch there. Batches are applied one by one, in order. How many there are is a signal,
// which the scenario's policy reads by its name.
type Consumer struct {
	// Signal is the name under which policies read the backlog. Default behind.
	Signal string `json:"signal,omitempty"`
	// Phases are how many batches are applied a second, one after the other. The last one goes on to
	// the end of the run.
	Phases []ConsumerPhase `json:"phases" required:"true" example:"[{\"for\": \"60s\", \"rps\": 1000}]"`
	// Holds keeps the permit, and the client's answer, until the batch of the request was applied.
	// Default: both end with the backend's answer.
	Holds bool `json:"holds,omitempty"`
	// Every is the time between two readings of the backlog, Late how old a reading is when it comes.
	// Defaults 5 s and 0.
	Every policy.Duration `json:"every,omitempty" min:"1ms" max:"1h"`
	Late  policy.Duration `json:"late,omitempty" min:"0s" max:"1h"`
	// Unread are stretches in which no reading can be taken. Then the signal is unknown.
	Unread []Span `json:"unread,omitempty"`
}

// ConsumerPhase is a stretch of time with one rate of a [Consumer].
type ConsumerPhase struct {
	// For is how long it lasts.
	For policy.Duration `json:"for" min:"1ns" max:"1000h" required:"true" example:"\"60s\""`
	// RPS is how many batches are applied a second. 0 means that the consumer stands still.
	RPS float64 `json:"rps,omitempty" min:"0" max:"1e9"`
}

// Span is a stretch of the run.
type Span struct {
	// From and To are its ends, counted from the start of the run.
	From policy.Duration `json:"from,omitempty" min:"0s"`
	To   policy.Duration `json:"to" min:"1ns" required:"true" example:"\"60s\""`
}

const (
	defaultSignal = "behind"
	defaultEvery  = 5 * time.Second
)

func (c *Consumer) check(f *fault.List, path fault.Path) {
	f.Require(len(c.Phases) > 0, path.At("phases"), "missing: at least one {\"for\": \"60s\", \"rps\": 1000}")
	f.Require(len(c.Phases) == 0 || c.fastest() > 0, path.At("phases"), "no phase has a rate: nothing would ever be applied")
	for i, s := range c.Unread {
		f.Require(s.To > s.From, path.At("unread").Index(i).At("to"), "%v: must be after from, %v", s.To, s.From)
	}
}

// checkSignals refuses signals that there are none of in virtual time.
func (s *Scenario) checkSignals(f *fault.List) {
	if s.Consumer == nil {
		return
	}
	for name, g := range s.Policy.Spec.Gates {
		if g.Limit == nil {
			continue
		}
		at := fault.Path{"policy", "gates", name, "limit"}
		for i, signal := range g.Limit.Signals {
			f.Require(false, at.At("signals").Index(i), "%q: there is no pressure in virtual time, only the backlog %q of the consumer, for the controllers lag and drain", signal, s.Consumer.signal())
		}
		for word, signal := range map[string]string{"lag": g.Limit.Lag.Signal, "drain": g.Limit.Drain.Signal} {
			f.Require(signal == "" || signal == s.Consumer.signal(), at.At(word, "signal"), "%q: the scenario's consumer is the signal %q", signal, s.Consumer.signal())
		}
	}
}

func (c *Consumer) signal() string {
	if c.Signal == "" {
		return defaultSignal
	}
	return c.Signal
}

// fastest is the largest of its rates.
func (c *Consumer) fastest() (rps float64) {
	for _, p := range c.Phases {
		rps = max(rps, p.RPS)
	}
	return rps
}

// options are what policies are compiled with that may read the consumer's backlog.
func (s *Scenario) options(now func() time.Duration, source control.Source) policy.Options {
	opts := policy.Options{Now: now}
	if s.Consumer != nil {
		name := s.Consumer.signal()
		opts.Readings = source
		opts.Signals = map[string]signal.Signal{name: signal.Func(name, func(context.Context) (float64, error) { return 0, signal.ErrNoValue })}
	}
	return opts
}

// silent is a source without readings.
type silent struct{}

func (silent) Readings(into []control.Reading) []control.Reading { return into }

// consumer is a Consumer at work.
type consumer struct {
	spec    *Consumer
	fastest float64
	queue   station.Station
	rate    float64
	batches []*attempt // by job; nil where the permit has gone already
	spare   []int32
	coming  []lateReading   // the oldest first
	newest  control.Reading // of those that have come
	now     func() time.Duration
}

// lateReading is a reading and when it comes.
type lateReading struct {
	at time.Duration
	control.Reading
}

func newConsumer(spec *Consumer, now func() time.Duration) *consumer {
	return &consumer{
		spec: spec, fastest: spec.fastest(), queue: station.New(station.Law{Slots: 1}), now: now,
		newest: control.Reading{Name: spec.signal()},
	}
}

// begin schedules what happens by itself.
func (c *consumer) begin(w *world) {
	at := time.Duration(0)
	for i, p := range c.spec.Phases {
		w.events.push(event{at: at, kind: eventConsumer, subject: int32(i)})
		at += time.Duration(p.For)
	}
	w.events.push(event{at: c.every(), kind: eventReading})
}

func (c *consumer) every() time.Duration {
	if c.spec.Every > 0 {
		return time.Duration(c.spec.Every)
	}
	return defaultEvery
}

// enterPhase changes the rate.
func (c *consumer) enterPhase(w *world, phase int32) {
	c.rate = c.spec.Phases[phase].RPS
	c.queue.SetCapacity(w.now, c.rate/c.fastest, 1)
	w.stats.setDrain(w.now, c.rate)
}

// take brings the batch of an answered request, and reports whether its permit is held.
func (c *consumer) take(w *world, a *attempt) bool {
	if !c.spec.Holds {
		a = nil
	}
	job := int32(len(c.batches))
	if n := len(c.spare); n > 0 {
		job, c.spare = c.spare[n-1], c.spare[:n-1]
		c.batches[job] = a
	} else {
		c.batches = append(c.batches, a)
	}
	c.queue.Enter(w.now, job, 1/c.fastest)
	w.stats.setBacklog(w.now, c.queue.Len())
	return a != nil
}

// step applies the batch that is due.
func (c *consumer) step(w *world) {
	job := c.queue.Finish(w.now)
	a := c.batches[job]
	c.batches[job] = nil
	c.spare = append(c.spare, job)
	w.stats.applied(w.now)
	w.stats.setBacklog(w.now, c.queue.Len())
	if a != nil {
		w.concluded(a)
	}
}

// read takes a reading.
func (c *consumer) read(w *world) {
	r := control.Reading{Name: c.spec.signal(), Value: float64(c.queue.Len()), Known: true}
	if slices.ContainsFunc(c.spec.Unread, func(s Span) bool {
		return time.Duration(s.From) <= w.now && w.now < time.Duration(s.To)
	}) {
		r = control.Reading{Name: r.Name}
	}
	c.coming = append(c.coming, lateReading{w.now + time.Duration(c.spec.Late), r})
	w.events.push(event{at: w.now + c.every(), kind: eventReading})
}

// Readings implements [control.Source].
func (c *consumer) Readings(into []control.Reading) []control.Reading {
	for len(c.coming) > 0 && c.coming[0].at <= c.now() {
		c.newest = c.coming[0].Reading
		c.coming = c.coming[1:]
	}
	return append(into, c.newest)
}

// held is how many permits wait for their batches.
func (w *world) held() int {
	if w.consumer == nil || !w.consumer.spec.Holds {
		return 0
	}
	return w.consumer.queue.Len()
}

// lagMetrics are figures about a scenario's consumer.
var lagMetrics = []metric{
	{"applied", "", "", "batches that the consumer applied over what it could have applied", ofSummary(func(s *Summary) float64 { return s.Applied })},
	{"lag_min", "", "", "lowest backlog of the consumer", ofSummary(func(s *Summary) float64 { return s.Backlog.Min })},
	{"lag_mean", "", "", "mean backlog of it", ofSummary(func(s *Summary) float64 { return s.Backlog.Mean })},
	{"lag_max", "", "", "highest backlog of it", ofSummary(func(s *Summary) float64 { return s.Backlog.Max })},
	{"limit_swing", "", "", "the limit's peak to peak over its mean", ofSummary(func(s *Summary) float64 { return share(s.Limit.Max-s.Limit.Min, s.Limit.Mean) })},
}

// aboutLag reports whether a metric needs a consumer.
func aboutLag(name string) bool {
	return name == "applied" || strings.HasPrefix(name, "lag_")
}
