package live

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/limit"
	"github.com/weir-go/weir/signal"
	"github.com/weir-go/weir/weirhttp"
)

// Guard is what stands before the handler of a server of part one.
type Guard struct {
	Name string
	// Kind is none, fixed, knee, or refuse: a gate without a free slot.
	Kind string
	// Limit and MaxWait are of fixed.
	Limit   int64         `json:",omitempty"`
	MaxWait time.Duration `json:",omitempty"`
	// NoRoom leaves fixed without a wait room: what finds no slot is refused.
	NoRoom bool `json:",omitempty"`
	// NoYield turns off what lets arrivals reach the gate before a handler runs.
	NoYield bool `json:",omitempty"`
	// Signals caps the limit by the scheduler's latency.
	Signals bool `json:",omitempty"`
}

// guarded puts the guard before next, and returns the gate, nil for none.
func (g *Guard) guarded(next http.Handler, hooks weir.Hooks) (http.Handler, *limit.Limiter, error) {
	cfg := limit.Config{Name: g.Name, Hooks: hooks}
	switch g.Kind {
	case "none":
		return next, nil, nil
	case "fixed":
		cfg.Limit = g.Limit
		cfg.Queue = limit.Queue{MaxWait: g.MaxWait, Order: limit.Adaptive}
		if g.NoRoom {
			cfg.Queue.Len = -1
		}
	case "knee":
		knee, err := control.NewKnee(control.KneeConfig{})
		if err != nil {
			return nil, nil, err
		}
		cfg.Controller = knee
	case "refuse":
		cfg.Limit, cfg.Queue.Len = 1, -1
	default:
		return nil, nil, fmt.Errorf("guard %q: unknown kind", g.Kind)
	}
	if g.Signals {
		if err := addSignals(&cfg); err != nil {
			return nil, nil, err
		}
	}
	gate, err := limit.New(cfg)
	if err != nil {
		return nil, nil, err
	}
	if g.Kind == "refuse" {
		if _, err := gate.Admit(context.Background(), weir.Work{}); err != nil { // held for good
			return nil, nil, err
		}
	}
	return weirhttp.Middleware(gate, weirhttp.WithYield(!g.NoYield))(next), gate, nil
}

// limits watches the limit of a gate.
type limits struct {
	mu    sync.Mutex
	least int64
	most  int64
	sum   float64
	n     int64
}

// lookEvery is how often the limit is looked at.
const lookEvery = 50 * time.Millisecond

// watchLimit looks at a limit until stop is closed; look reports false where there
// is none to be seen.
func watchLimit(every time.Duration, look func() (int64, bool), stop <-chan struct{}) *limits {
	l := new(limits)
	go func() {
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				if now, ok := look(); ok {
					l.note(now)
				}
			case <-stop:
				return
			}
		}
	}()
	return l
}

func (l *limits) note(now int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.n == 0 {
		l.least, l.most = now, now
	}
	l.least, l.most = min(l.least, now), max(l.most, now)
	l.sum += float64(now)
	l.n++
}

// take returns the least, mean and largest limit since it was last called.
func (l *limits) take() (least int64, mean float64, most int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.n == 0 {
		return 0, 0, 0
	}
	least, mean, most = l.least, l.sum/float64(l.n), l.most
	l.sum, l.n = 0, 0
	return least, mean, most
}

// addSignals caps the controller by what Go's scheduler says.
func addSignals(cfg *limit.Config) error {
	latency, err := signal.NewSchedLatency(signal.SchedLatencyConfig{})
	if err != nil {
		return err
	}
	poller, err := signal.NewPoller(signal.Config{Watches: []signal.Watch{{Signal: latency}}})
	if err != nil {
		return err
	}
	capped, err := control.NewCapped(cfg.Controller, control.CapConfig{})
	if err != nil {
		poller.Close()
		return err
	}
	cfg.Signals, cfg.Controller = poller, capped
	return nil
}
