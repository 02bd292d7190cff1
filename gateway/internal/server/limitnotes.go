package server

import (
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/weir-go/weir"
)

// limitNotes turns the steps of limits into few log lines. A controller that
// looks for the best limit moves it to and fro all the time, so that a step in
// itself is no news, and is told at the level debug only. News is a limit that
// has doubled or halved since it was last told: no controller goes that far only
// to compare.
type limitNotes struct {
	log *slog.Logger
	// look returns what there is to see of a gate. It may be nil.
	look func(gate string) (weir.Snapshot, bool)

	mu    sync.Mutex
	gates map[string]*limitNote
}

// limitNote is what the log knows of a limit, and what has become of it since.
type limitNote struct {
	told   int64
	toldAt time.Time // zero if never
	now    int64
	reason string
	steps  int
}

// limitEvery is how often a limit gets a line, at the most.
const limitEvery = 3 * time.Second

// isNews reports whether a limit is twice what was told, or half of it. One more
// or less never is: a limit has to move to be compared.
func (n *limitNote) isNews() bool {
	low, high := min(n.told, n.now), max(n.told, n.now)
	return high >= 2*low && high-low > 1
}

func newLimitNotes(log *slog.Logger) *limitNotes {
	return &limitNotes{log: log, gates: make(map[string]*limitNote)}
}

// changed is a weir.Hooks.LimitChanged.
func (n *limitNotes) changed(gate string, from, to int64, reason string) {
	n.log.Debug("limit step", "gate", gate, "from", from, "to", to, "reason", reason)
	n.mu.Lock()
	defer n.mu.Unlock()
	note := n.gates[gate]
	if note == nil {
		note = &limitNote{told: from}
		n.gates[gate] = note
	}
	note.now, note.reason = to, reason
	note.steps++
}

// tick tells the news that are due.
func (n *limitNotes) tick(now time.Time) {
	n.tell(now, func(_ string, note *limitNote) bool {
		return note.isNews() && now.Sub(note.toldAt) >= limitEvery
	})
}

// flush tells the news, due or not.
func (n *limitNotes) flush() {
	n.tell(time.Now(), func(_ string, note *limitNote) bool { return note.isNews() })
}

// settle tells the news and takes the limits as they are for told, so that what
// moved by itself before a reload is not taken for its doing.
func (n *limitNotes) settle() {
	n.flush()
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, note := range n.gates {
		note.told, note.steps = note.now, 0
	}
}

// configured tells what a reload has changed since settle: every change of a
// limit that stands still otherwise, and of the others those worth it.
func (n *limitNotes) configured() {
	n.tell(time.Now(), func(gate string, note *limitNote) bool {
		return note.told != note.now && (note.isNews() || n.isFixed(gate))
	})
}

func (n *limitNotes) isFixed(gate string) bool {
	s, ok := n.snapshot(gate)
	return ok && s.Controller == "fixed"
}

func (n *limitNotes) snapshot(gate string) (weir.Snapshot, bool) {
	if n.look == nil {
		return weir.Snapshot{}, false
	}
	return n.look(gate)
}

// keep forgets the limits of gates that are no more.
func (n *limitNotes) keep(gates []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	maps.DeleteFunc(n.gates, func(gate string, _ *limitNote) bool { return !slices.Contains(gates, gate) })
}

// tell writes a line for each limit that is due. Gates are looked at with no lock
// held.
func (n *limitNotes) tell(now time.Time, due func(gate string, note *limitNote) bool) {
	all := make(map[string]limitNote)
	n.mu.Lock()
	for gate, note := range n.gates {
		all[gate] = *note
	}
	n.mu.Unlock()
	for _, gate := range slices.Sorted(maps.Keys(all)) {
		note := all[gate]
		if !due(gate, &note) {
			continue
		}
		n.told(now, gate, &note)
		args := []any{"gate", gate, "from", note.told, "to", note.now, "steps", note.steps, "reason", note.reason}
		if s, ok := n.snapshot(gate); ok && s.Signal != "" {
			args = append(args, "signal", s.Signal)
		}
		n.log.Info("limit changed", args...)
	}
}

// told takes down that note has been told. Steps since then are left.
func (n *limitNotes) told(now time.Time, gate string, note *limitNote) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if current := n.gates[gate]; current != nil {
		current.told, current.toldAt = note.now, now
		current.steps -= note.steps
	}
}
