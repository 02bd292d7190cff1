package main

import (
	"cmp"
	"errors"
	"log/slog"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/keyed"
	"github.com/weir-go/weir/limit"
	"github.com/weir-go/weir/signal"
	"github.com/weir-go/weir/weirkafka"
)

// admissionConfig says how many batches of a database may be under way, by how far the processors are behind.
type admissionConfig struct {
	// controller is line, drain, or off: as many as come.
	controller       string
	min, max         int64   // slots of a database
	target, critical float64 // lag in messages
	every            time.Duration
	wait             time.Duration // the longest wait for a slot; 0: none
}

// Controllers of the slots.
const (
	byLine  = "line"  // the seed's: a straight line between target and critical
	byDrain = "drain" // by what was applied meanwhile
	byNone  = "off"
)

// smallMachine has thresholds for two cores. EvidentDB's are 10 to 1,000 slots at a lag of 10,000 to 100,000,
// read every 5 s.
var smallMachine = admissionConfig{controller: byLine, min: 1, max: 20, target: 200, critical: 2000, every: time.Second, wait: 100 * time.Millisecond}

// admission is the gate of an API server.
type admission struct {
	*keyed.Pools
	poller *signal.Poller
	lag    *weirkafka.Lag
}

// openAdmission begins to read the lag, and returns the gate that follows it.
func openAdmission(cfg admissionConfig, brokers []string, log *slog.Logger) (_ *admission, err error) {
	a := &admission{}
	defer func() {
		if err != nil {
			a.close()
		}
	}()
	if a.lag, err = weirkafka.NewLag(weirkafka.LagConfig{Brokers: brokers, Group: group, Topics: []string{topic}}); err != nil {
		return nil, err
	}
	a.poller, err = signal.NewPoller(signal.Config{
		// A lag that is unknown is no lag of 0: the controller holds its limit, then goes to the least.
		Watches: []signal.Watch{{Signal: a.lag, Interval: cfg.every, Hold: 3 * cfg.every}},
		Hooks: signal.Hooks{
			Trouble:   func(name string, err error) { log.Warn("the lag is unknown", "signal", name, "error", err) },
			Recovered: func(name string) { log.Info("the lag is known again", "signal", name) },
		},
	})
	if err != nil {
		return nil, err
	}
	queue := limit.Queue{MaxWait: cfg.wait}
	if cfg.wait <= 0 {
		queue = limit.Queue{Len: -1}
	}
	controller, err := cfg.build(a.lag.Name())
	if err != nil {
		return nil, err
	}
	a.Pools, err = keyed.New(keyed.Config{
		Name: "databases", Controller: controller, Signals: a.poller,
		Queue: queue,
		Hooks: weir.Hooks{LimitChanged: func(_ string, from, to int64, reason string) {
			log.Info("slots of each database", "from", from, "to", to, "why", reason)
		}},
	})
	return a, err
}

func (cfg admissionConfig) build(lag string) (control.Controller, error) {
	switch cfg.controller {
	case byLine:
		return control.NewLagMap(control.LagMapConfig{Min: cfg.min, Max: cfg.max, Signal: lag, Target: cfg.target, Critical: cfg.critical, Interval: cfg.every})
	case byDrain:
		return control.NewDrain(control.DrainConfig{Min: cfg.min, Max: cfg.max, Signal: lag, Target: cfg.target, Interval: cfg.every})
	case byNone:
		return control.Fixed(limit.MaxLimit), nil
	}
	return nil, errors.New("-admission is line, drain or off, not " + cmp.Or(cfg.controller, "empty"))
}

// shown is what /status has of it.
type shown struct {
	Slots     int64          `json:"slots_of_a_database"`
	InFlight  int64          `json:"in_flight"`
	Lag       float64        `json:"lag"`
	LagKnown  bool           `json:"lag_known"`
	Databases []keyed.KeyUse `json:"databases"` // those with most in flight
}

const shownDatabases = 10

func (a *admission) status() any {
	u := a.Usage(shownDatabases)
	s := shown{Slots: u.Limit, InFlight: u.InFlight, Databases: u.Top}
	for _, r := range a.poller.Readings(nil) {
		s.Lag, s.LagKnown = r.Value, r.Known
	}
	return s
}

func (a *admission) close() {
	if a.Pools != nil {
		a.Pools.Close()
	}
	if a.poller != nil {
		a.poller.Close()
	}
	if a.lag != nil {
		a.lag.Close()
	}
}
