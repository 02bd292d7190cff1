package shed

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir"
)

// Shedder is a gate that lets work through by its priority: the higher the
// pressure, the more important work must be. Work never waits in it and holds
// nothing of it: the permit is the zero Permit. A decision takes no lock and
// allocates nothing.
type Shedder struct {
	name    string
	clock   func() time.Duration
	virtual bool          // the clock is Config.Now
	draw    func() uint64 // a level for work that names nobody

	book    book
	verdict atomic.Pointer[verdict]

	mu     sync.Mutex // guards what follows
	core   core
	salter salter
	feed   *feed         // nil once closed
	ticked time.Duration // the last tick
	due    time.Duration // when to step, on virtual time
	closed bool
}

// verdict is what newcomers are told until the next one. It is not written to
// after it has been published.
type verdict struct {
	level   Level
	closed  bool
	salt    uint64
	refusal [Classes]*weir.Rejection // only of classes that are refused
	hooks   weir.Hooks

	pressure float64
	known    bool
	signal   string
}

// New makes a Shedder and starts to read the pressure. Close ends that. The
// error names every setting out of range.
func New(cfg Config) (*Shedder, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	s := &Shedder{name: cfg.Name, clock: cfg.Now, virtual: cfg.Now != nil, draw: rand.Uint64}
	s.salter = salter{secret: cfg.Salt, period: cfg.Resalt}
	if s.virtual {
		s.draw = counted()
	} else {
		epoch := time.Now()
		s.clock = func() time.Duration { return time.Since(epoch) }
		s.salter.origin = time.Duration(epoch.UnixNano())
		if cfg.Salt == 0 {
			s.salter.secret = rand.Uint64()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock()
	s.core.configure(now, cfg, &s.book)
	if err := s.start(cfg); err != nil {
		return nil, err
	}
	s.publish(now)
	return s, nil
}

// counted draws numbers that are the same in every run.
func counted() func() uint64 {
	var n atomic.Uint64
	return func() uint64 { return mix(n.Add(1)*golden, odd) }
}

// Admit implements [weir.Gate]. It never waits.
func (s *Shedder) Admit(ctx context.Context, w weir.Work) (weir.Permit, error) {
	if p, ok := weir.Nested(ctx, s); ok {
		return p, nil // the work it is part of has been let through
	}
	return weir.Permit{}, s.decide(&w)
}

// TryAdmit implements [weir.TryAdmitter].
func (s *Shedder) TryAdmit(w weir.Work) (weir.Permit, error) {
	return weir.Permit{}, s.decide(&w)
}

// Arrive implements [weir.Arriver]. It never calls wake.
func (s *Shedder) Arrive(w weir.Work, _ func(weir.Permit, error)) (weir.Permit, weir.Waiter, error) {
	return weir.Permit{}, nil, s.decide(&w)
}

// decide lets w through, or says why not.
func (s *Shedder) decide(w *weir.Work) error {
	v := s.verdict.Load()
	if v.closed {
		return s.refuse(v, w, v.refusal[0])
	}
	if w.Exempt {
		s.book.exempt.Add(1)
	} else {
		l := s.levelOf(v.salt, w)
		if l < v.level {
			s.book.refused[l].Add(1)
			return s.refuse(v, w, v.refusal[l.Class()])
		}
		s.book.admitted[l].Add(1)
	}
	if v.hooks.Admitted != nil {
		v.hooks.Admitted(s.name, *w, 0)
	}
	return nil
}

func (s *Shedder) refuse(v *verdict, w *weir.Work, r *weir.Rejection) error {
	if v.closed {
		s.book.closed.Add(1)
	}
	if v.hooks.Rejected != nil {
		v.hooks.Rejected(*w, r)
	}
	return r
}

func (s *Shedder) levelOf(salt uint64, w *weir.Work) Level {
	h, ok := named(salt, w)
	if !ok {
		h = s.draw()
	}
	return level(w.Priority.Class(), h)
}

// Level returns the lowest level that is let through now. A server may tell its
// callers, so that they do not send what would be refused: see LevelOf.
func (s *Shedder) Level() Level { return s.verdict.Load().level }

// LevelOf returns the level of w now: by its priority, and by its User, or by
// its Tenant if it names no User. Work that names neither gets another level
// each time. Instances with the same Salt agree on it, so a caller that has
// learned another's Level can refuse what is below.
func (s *Shedder) LevelOf(w weir.Work) Level { return s.levelOf(s.verdict.Load().salt, &w) }

// Reconfigure takes up new settings while the gate runs. The level stays until
// the next reading, the counts go on. A change of Name or Now is ignored, as is
// a Salt of 0 where the gate has made its own; a closed gate refuses, and a
// faulty configuration changes nothing.
func (s *Shedder) Reconfigure(cfg Config) error {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return fmt.Errorf("shed: gate %q: %w", s.name, ErrClosed)
	}
	before := s.feed
	if err := s.start(cfg); err != nil {
		return err
	}
	before.end()
	if cfg.Salt != 0 {
		s.salter.secret = cfg.Salt
	}
	s.salter.period = cfg.Resalt
	now := s.clock()
	s.core.configure(now, cfg, &s.book)
	s.publish(now)
	return nil
}

// ErrClosed is the error of changing a gate that has been closed. Work is
// refused with a Rejection for [weir.ReasonDraining] instead.
var ErrClosed = errors.New("closed")

// Close refuses all work from now on with [weir.ReasonDraining], and ends the
// readings without waiting for one that hangs. Closing twice does nothing.
func (s *Shedder) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.closed = true
	s.feed.end()
	s.feed = nil
	s.publish(s.clock())
}
