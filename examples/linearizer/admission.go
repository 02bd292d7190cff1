package main

import (
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/keyed"
	"github.com/weir-go/weir/limit"
	"github.com/weir-go/weir/weirkafka"
)

// admissionConfig says how many batches of a database may be under way, by how far the processors are behind.
type admissionConfig struct {
	controller       string
	min, max         int64   // slots of a database
	target, critical float64 // lag in messages
	every            time.Duration
	wait             time.Duration // the longest wait for a slot; 0: none
}

// What sets the slots.
const (
	byLine  = "line"  // the seed's: a straight line between target and critical
	byDrain = "drain" // by what was applied meanwhile
	byNone  = "off"   // as many as come
)

var allControllers = []string{byLine, byDrain, byNone}

func errController(name string) error {
	return fmt.Errorf("-admission is line, drain or off, not %q", name)
}

// smallMachine has thresholds for two cores. EvidentDB's are 10 to 1,000 slots at a lag of 10,000 to 100,000,
// read every 5 s. The wait for a slot is a quarter of the time that a batch takes at a lag of 100. Whoever waits
// has the time of the queue before the gate on top of the one behind it.
var smallMachine = admissionConfig{controller: byLine, min: 1, max: 20, target: 200, critical: 2000, every: time.Second, wait: 50 * time.Millisecond}

// flags are the options for it. Several controllers come one after the other.
func (cfg *admissionConfig) flags(f *flag.FlagSet, several bool) {
	means := "what sets the slots of a database: line, drain, or off for no bound"
	if several {
		cfg.controller, means = strings.Join(allControllers, ","), means+"; some of them, with commas between"
	}
	f.StringVar(&cfg.controller, "admission", cfg.controller, means)
	f.Int64Var(&cfg.min, "min", cfg.min, "slots of a database at the critical lag")
	f.Int64Var(&cfg.max, "max", cfg.max, "slots of a database up to the target lag")
	f.Float64Var(&cfg.target, "target", cfg.target, "lag up to which a database has all its slots")
	f.Float64Var(&cfg.critical, "critical", cfg.critical, "lag from which it has the least")
	f.DurationVar(&cfg.every, "every", cfg.every, "how often the lag is read")
	f.DurationVar(&cfg.wait, "wait", cfg.wait, "the longest wait for a slot; 0: none")
}

// check says what is wrong with the options. 0 is wrong for most: a gate would take it for its own default.
func (cfg *admissionConfig) check(controllers []string, wrong func(is bool, option, means string, args ...any)) {
	for _, name := range controllers {
		wrong(!slices.Contains(allControllers, name), "admission", "it is line, drain or off, not %q", name)
	}
	wrong(cfg.min < 1 || cfg.min > limit.MaxLimit, "min", "a database has from 1 to %d slots", limit.MaxLimit)
	wrong(cfg.max < cfg.min || cfg.max > limit.MaxLimit, "max", "a database has from -min, which is %d, to %d slots", cfg.min, limit.MaxLimit)
	wrong(!(cfg.target >= leastLag) || math.IsInf(cfg.target, 0), "target", "a lag is a number from %v", leastLag)
	wrong(slices.Contains(controllers, byLine) && (!(cfg.critical > cfg.target) || math.IsInf(cfg.critical, 0)), "critical", "it is a number above -target, which is %v", cfg.target)
	wrong(cfg.every < leastEvery || cfg.every > mostEvery, "every", "it is from %v to %v", leastEvery, mostEvery)
	wrong(cfg.wait < 0, "wait", "write how long work may wait, 0 for not at all")
}

// Bounds of what weirkafka.AdmissionConfig takes.
const (
	leastLag   = 0.000001
	leastEvery = 10 * time.Millisecond
	mostEvery  = 24 * time.Hour
)

// admission is the gate of an API server.
type admission struct {
	*weirkafka.Admission
	lag *weirkafka.Lag
}

// openAdmission begins to read the lag, and returns the gate that follows it.
func openAdmission(cfg admissionConfig, brokers []string, log *slog.Logger) (*admission, error) {
	lag, err := weirkafka.NewLag(weirkafka.LagConfig{Brokers: brokers, Group: group, Topics: []string{topic}})
	if err != nil {
		return nil, err
	}
	a := weirkafka.AdmissionConfig{Name: "databases", Prefix: "linearizer", Lag: lag, AdjustmentInterval: cfg.every, Logger: log, Queue: limit.Queue{MaxWait: cfg.wait}}
	if cfg.wait <= 0 {
		a.Queue = limit.Queue{Len: -1}
	}
	switch cfg.controller {
	case byLine:
		a.MaxCapacity, a.MinCapacity, a.TargetLag, a.CriticalLag = cfg.max, cfg.min, cfg.target, cfg.critical
	case byDrain:
		a.Controller, err = control.NewDrain(control.DrainConfig{Min: cfg.min, Max: cfg.max, Signal: lag.Name(), Target: cfg.target, Interval: cfg.every})
	case byNone:
		a.Disabled = true
	default:
		err = errController(cfg.controller)
	}
	if err == nil {
		var gate *weirkafka.Admission
		if gate, err = weirkafka.NewAdmission(a); err == nil {
			return &admission{gate, lag}, nil
		}
	}
	lag.Close()
	return nil, err
}

// shown is what /status has of it.
type shown struct {
	Slots     *int64         `json:"slots_of_a_database"` // null without a bound: 0 would be none at all
	InFlight  int64          `json:"in_flight"`
	Lag       *float64       `json:"lag"` // null while it is unknown: that is not 0
	Trouble   string         `json:"lag_trouble,omitempty"`
	Databases []keyed.KeyUse `json:"databases"` // those with most in flight
}

const shownDatabases = 10

func (a *admission) status() any {
	u, lag := a.Usage(shownDatabases), a.Lag()
	s := shown{InFlight: u.InFlight, Databases: u.Top}
	if u.Limit > 0 {
		s.Slots = &u.Limit
	}
	if lag.Known {
		s.Lag = &lag.Value
	}
	if lag.Err != nil {
		s.Trouble = lag.Err.Error()
	}
	return s
}

func (a *admission) close() {
	a.Close()
	a.lag.Close()
}

// watchable is a gate of which an API server shows something. Tests have others.
type watchable interface {
	status() any
	WriteMetrics(w io.Writer) error
}

var _ watchable = (*admission)(nil)
