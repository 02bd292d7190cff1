package policy

import "github.com/weir-go/weir/control"

// capped puts a controller under the cap of the gate's signals.
func capped(inner control.Controller, l *LimitSpec) (control.Controller, error) {
	cfg := control.CapConfig{Min: l.Min}
	lag := l.lagSignal()
	if lag == "" {
		return made(control.NewCapped(inner, cfg))
	}
	shown := &shown{Controller: inner}
	outer, err := control.NewCapped(shown, cfg)
	if err != nil {
		return nil, err
	}
	return &sorted{Capped: outer, shown: shown, lag: lag}, nil
}

// sorted keeps apart what a cap takes for pressures and the lag that its inner
// controller goes by.
type sorted struct {
	*control.Capped
	shown     *shown
	lag       string
	pressures []control.Reading
}

// Update implements [control.Controller].
func (s *sorted) Update(w *control.Window) control.Decision {
	all := w.Readings
	s.shown.readings, s.pressures = s.shown.readings[:0], s.pressures[:0]
	for _, r := range all {
		if r.Name == s.lag {
			s.shown.readings = append(s.shown.readings, r)
		} else {
			s.pressures = append(s.pressures, r)
		}
	}
	w.Readings = s.pressures
	d := s.Capped.Update(w)
	w.Readings = all
	return d
}

// shown is a controller that sees only the readings it is shown.
type shown struct {
	control.Controller
	readings []control.Reading
}

// Update implements [control.Controller].
func (s *shown) Update(w *control.Window) control.Decision {
	all := w.Readings
	w.Readings = s.readings
	d := s.Controller.Update(w)
	w.Readings = all
	return d
}

// Save implements [control.Saver]. The controllers that go by a lag are savers.
func (s *shown) Save() control.State {
	if saver, ok := s.Controller.(control.Saver); ok {
		return saver.Save()
	}
	return control.State{Limit: float64(s.Start().Limit)}
}

// Restore implements [control.Saver].
func (s *shown) Restore(state control.State) {
	if saver, ok := s.Controller.(control.Saver); ok {
		saver.Restore(state)
	}
}
