package eventlog

import (
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/weir-go/weir"
)

// limitChanges turns the steps of limits into few log lines. A controller that searches for the
// best limit moves it up and down all the time, so each step is logged at level debug only. A line
// at level info means that a limit has doubled or halved since its last line. No controller moves
// that far only to compare.
type limitChanges struct {
	log      *slog.Logger
	snapshot func(gate string) (weir.Snapshot, bool)

	mu    sync.Mutex
	gates map[string]*limitChange
}

// limitChange is what the log says of a limit, and what has become of the limit since.
type limitChange struct {
	logged   int64
	loggedAt time.Time // zero if never
	now      int64
	reason   string
	steps    int
}

// limitEvery is how often a limit gets a line, at most.
const limitEvery = 3 * time.Second

// isNews reports whether a limit is at least twice what was logged, or half of it. A
// change by one never is: a limit has to move to be compared.
func (c *limitChange) isNews() bool {
	low, high := min(c.logged, c.now), max(c.logged, c.now)
	return high >= 2*low && high-low > 1
}

// LimitChanged is a weir.Hooks.LimitChanged.
func (l *Log) LimitChanged(gate string, from, to int64, reason string) {
	l.limits.changed(gate, from, to, reason)
}

// BeforeReload logs how limits have moved by themselves, so that nobody takes that for a
// change by the reload. If the reload fails, call failed: then steps that were too small for
// a line still count towards the next one.
func (l *Log) BeforeReload() (failed func()) {
	n := &l.limits
	n.flush()
	n.mu.Lock()
	defer n.mu.Unlock()
	before := make(map[string]limitChange, len(n.gates))
	for gate, c := range n.gates {
		before[gate] = *c
		c.logged, c.steps = c.now, 0
	}
	return func() { n.countOn(before) }
}

// countOn takes back what BeforeReload did to limits that have had no line since.
func (n *limitChanges) countOn(before map[string]limitChange) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for gate, was := range before {
		if c := n.gates[gate]; c != nil && c.loggedAt.Equal(was.loggedAt) {
			c.logged, c.steps = was.logged, was.steps+c.steps
		}
	}
}

// AfterReload logs what a reload has changed since BeforeReload. A fixed limit gets a line for
// every change, any other limit only if it has doubled or halved.
func (l *Log) AfterReload() {
	l.limits.write(time.Now(), func(gate string, c *limitChange) bool {
		if c.logged == c.now {
			return false
		}
		s, ok := l.limits.snapshot(gate)
		return c.isNews() || ok && s.Controller == "fixed"
	})
}

// KeepOnly forgets the limits of gates that do not exist any more.
func (l *Log) KeepOnly(exists func(gate string) bool) {
	l.limits.mu.Lock()
	defer l.limits.mu.Unlock()
	maps.DeleteFunc(l.limits.gates, func(gate string, _ *limitChange) bool { return !exists(gate) })
}

func (n *limitChanges) changed(gate string, from, to int64, reason string) {
	n.log.Debug("limit step", "gate", gate, "from", from, "to", to, "reason", reason)
	n.mu.Lock()
	defer n.mu.Unlock()
	c := n.gates[gate]
	if c == nil {
		c = &limitChange{logged: from}
		n.gates[gate] = c
	}
	c.now, c.reason = to, reason
	c.steps++
}

// tick writes the lines that are due.
func (n *limitChanges) tick(now time.Time) {
	n.write(now, func(_ string, c *limitChange) bool {
		return c.isNews() && now.Sub(c.loggedAt) >= limitEvery
	})
}

// flush writes a line for each limit that has doubled or halved, without waiting for limitEvery.
func (n *limitChanges) flush() {
	n.write(time.Now(), func(_ string, c *limitChange) bool { return c.isNews() })
}

// write writes a line for each limit that is due. Gates are asked for their snapshot with
// no lock held.
func (n *limitChanges) write(now time.Time, due func(gate string, c *limitChange) bool) {
	all := make(map[string]limitChange)
	n.mu.Lock()
	for gate, c := range n.gates {
		all[gate] = *c
	}
	n.mu.Unlock()
	for _, gate := range slices.Sorted(maps.Keys(all)) {
		c := all[gate]
		if !due(gate, &c) {
			continue
		}
		n.written(now, gate, &c)
		args := []any{"gate", gate, "from", c.logged, "to", c.now, "steps", c.steps, "reason", c.reason}
		text := "limit changed"
		if s, ok := n.snapshot(gate); ok {
			if s.Kind == "shed" {
				text = "level changed" // it counts the levels that pass
			}
			if s.Signal != "" {
				args = append(args, "signal", s.Signal)
			}
		}
		n.log.Info(text, args...)
	}
}

// written records that c has been logged. Steps since then are left.
func (n *limitChanges) written(now time.Time, gate string, c *limitChange) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if current := n.gates[gate]; current != nil {
		current.logged, current.loggedAt = c.now, now
		current.steps -= c.steps
	}
}
