package policy

import (
	"fmt"
	"time"

	"github.com/weir-go/weir/control"
)

// Saved is what the gates of a policy have learned, to be kept over a restart.
// It survives a JSON round trip.
type Saved struct {
	// At is when it was saved.
	At time.Time `json:"saved_at"`
	// Gates holds what each gate has learned, by name. Gates that learn
	// nothing are left out.
	Gates map[string]SavedGate `json:"gates"`
}

// SavedGate is what one gate has learned.
type SavedGate struct {
	// Controller is the name of the controller that learned it. Another one
	// does not take it up.
	Controller string `json:"controller"`
	control.State
}

// maxClockStep is how far ahead of the clock a saved time may lie.
const maxClockStep = time.Minute

// Save returns what the gates have learned so far.
func (p *Policy) Save() Saved {
	s := Saved{At: time.Now().UTC(), Gates: map[string]SavedGate{}}
	for name, g := range p.Gates() {
		m, ok := g.mechanism.(learner)
		if !ok {
			continue
		}
		if state, ok := m.Save(); ok {
			s.Gates[name] = SavedGate{g.mechanism.Snapshot().Controller, state}
		}
	}
	return s
}

// Restore takes up what gates of the same names and controllers had learned, and
// returns their names, sorted. Nothing is taken up, and the error says why, if s
// is older than maxAge (0 means that any age will do) or comes from the future
// by more than a minute: what was true of the backend then may be long gone.
// Values outside a gate's bounds are clamped.
func (p *Policy) Restore(s Saved, maxAge time.Duration) ([]string, error) {
	age := time.Since(s.At)
	switch {
	case maxAge > 0 && age > maxAge:
		return nil, fmt.Errorf("policy: learned limits are %v old, more than the %v allowed; starting from the configured ones",
			age.Round(time.Second), maxAge)
	case age < -maxClockStep:
		return nil, fmt.Errorf("policy: learned limits were saved %v in the future; check the clock; starting from the configured ones",
			(-age).Round(time.Second))
	}
	var restored []string
	for name, g := range p.Gates() {
		saved, ok := s.Gates[name]
		m, learns := g.mechanism.(learner)
		if !ok || !learns || saved.Controller != g.mechanism.Snapshot().Controller {
			continue
		}
		m.Restore(saved.State)
		restored = append(restored, name)
	}
	return restored, nil
}
