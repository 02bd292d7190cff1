package peers

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/weir-go/weir/sim"
)

// Run plays a scenario with a peer before its backend, once for each seed, each
// in a bubble of its own. Whatever policy the scenario names is left out.
func Run(t *testing.T, s *sim.Scenario, p *Peer, seeds []uint64) (*sim.Report, error) {
	if p.alone != nil {
		p.alone.Lock()
		defer p.alone.Unlock()
	}
	if p.Untold {
		s = untold(s)
	}
	var report *sim.Report
	for _, seed := range seeds {
		var one *sim.Report
		var err error
		synctest.Test(t, func(t *testing.T) {
			one, err = sim.Run(context.Background(), s, sim.Options{Seeds: []uint64{seed}, Outside: func(seed uint64) (sim.Outside, error) {
				_, best := s.Backend.Capacity()
				return newBubble(p, &Env{Scenario: s, Seed: seed, Best: best})
			}})
		})
		if err != nil {
			return nil, err
		}
		if report == nil {
			report = one
			continue
		}
		report.Seeds = append(report.Seeds, seed)
		report.Runs = append(report.Runs, one.Runs...)
	}
	return report, nil
}

// untold is the scenario with nobody telling deadlines.
func untold(s *sim.Scenario) *sim.Scenario {
	c := *s
	c.Traffic = append([]sim.Class(nil), s.Traffic...)
	no := false
	for i := range c.Traffic {
		c.Traffic[i].TellDeadline = &no
	}
	return &c
}
