package cost

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/limit"
)

// A tick's window: as many samples as a gate keeps at most, and permits out.
const (
	tickSamples = 512
	tickOut     = 10_000
)

// TickGoal is what closing a window may take, however many permits are out.
const TickGoal = 50 * time.Microsecond

// Tick closes windows of the default controller, full of samples, with permits
// out, and returns how long that took. Filling the windows is not in it.
type Tick struct {
	limiter *limit.Limiter
	now     atomic.Int64
	held    []weir.Permit
}

// NewTick sets up a gate on a clock of its own with so many permits out, all that
// the limit allows.
func NewTick() (*Tick, error) {
	c, err := control.NewKnee(control.KneeConfig{})
	if err != nil {
		return nil, err
	}
	c.Restore(control.State{Limit: tickOut}) // which it compares with its neighbours
	t := &Tick{}
	t.limiter, err = limit.New(limit.Config{Name: "bench", Controller: c, Now: func() time.Duration { return time.Duration(t.now.Load()) }})
	if err != nil {
		return nil, err
	}
	t.fill()
	return t, nil
}

// fill takes all that the limit allows.
func (t *Tick) fill() {
	for {
		p, err := t.limiter.TryAdmit(weir.Work{})
		if err != nil {
			return
		}
		t.held = append(t.held, p)
	}
}

// Out returns how many permits are out.
func (t *Tick) Out() int { return len(t.held) }

// Once fills a window and returns how long closing it took.
func (t *Tick) Once() (time.Duration, error) {
	at, ok := t.limiter.Next()
	if !ok {
		return 0, errors.New("cost: no window is open")
	}
	step := (int64(at) - t.now.Load()) / (tickSamples + 1)
	for range tickSamples {
		t.now.Add(step)
		last := len(t.held) - 1
		t.held[last].Done(weir.OK)
		t.held = t.held[:last]
		t.fill() // unless the limit has gone down
	}
	t.now.Store(int64(at))
	began := time.Now()
	t.limiter.Step()
	return time.Since(began), nil
}
