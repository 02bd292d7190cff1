package main

import (
	"fmt"
	"io"
	"log/slog"
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
	Slots     int64          `json:"slots_of_a_database"`
	InFlight  int64          `json:"in_flight"`
	Lag       *float64       `json:"lag"` // null while it is unknown: that is not 0
	Trouble   string         `json:"lag_trouble,omitempty"`
	Databases []keyed.KeyUse `json:"databases"` // those with most in flight
}

const shownDatabases = 10

func (a *admission) status() any {
	u, lag := a.Usage(shownDatabases), a.Lag()
	s := shown{Slots: u.Limit, InFlight: u.InFlight, Databases: u.Top}
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
