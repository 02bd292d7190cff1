package server

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"maps"
	"math"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/weir-go/weir"
)

// notes turns what gates do into few log lines: at most one for each gate and
// reason in noteEvery, with the count of what it stands for. The first refusal
// is logged at once. What there is to say about is bounded by the configuration:
// gates times rules and reasons.
type notes struct {
	log    *slog.Logger
	limits *limitNotes
	bucket func(gate string, w weir.Work) string // of a quota; nil in tests

	mu         sync.Mutex
	refused    map[refusalKey]*refusalNote
	handshakes map[handshakeKey]*handshakeNote
}

// noteEvery is how often refusals are summed up.
const noteEvery = 10 * time.Second

type refusalKey struct {
	gate, rule string
	reason     weir.Reason
	observed   bool
}

type refusalNote struct {
	n    int
	last *weir.Rejection
	whom whom
}

// whom is who was refused: a connection, or a piece of work.
type whom struct {
	from netip.AddrPort
	work weir.Work
}

// handshakeKey is a kind of handshake that failed for the client's certificate.
type handshakeKey struct {
	listener string
	fault    handshakeFault
}

type handshakeNote struct {
	n    int
	last []slog.Attr
}

func newNotes(log *slog.Logger) *notes {
	return &notes{
		log: log, limits: newLimitNotes(log),
		refused: make(map[refusalKey]*refusalNote), handshakes: make(map[handshakeKey]*handshakeNote),
	}
}

// hooks returns what the gates call.
func (s *Server) hooks() weir.Hooks {
	return weir.Hooks{
		Admitted:     s.metrics.Admitted,
		Done:         s.metrics.Done,
		Rejected:     s.rejected,
		LimitChanged: s.notes.limits.changed,
		Faulty:       s.notes.faulty,
		Leaked:       s.notes.leaked,
	}
}

// rejected is a weir.Hooks.Rejected.
func (s *Server) rejected(w weir.Work, r *weir.Rejection) {
	s.metrics.Rejected(w, r)
	s.notes.rejected(w, r)
}

func (n *notes) rejected(w weir.Work, r *weir.Rejection) { n.refusal(r, whom{work: w}, false) }
func (n *notes) observed(w weir.Work, r *weir.Rejection) { n.refusal(r, whom{work: w}, true) }

// turnedAway is told of a connection.
func (n *notes) turnedAway(r *weir.Rejection, from netip.AddrPort, observed bool) {
	n.refusal(r, whom{from: from}, observed)
}

// refusal is told of a refusal, or of one that would have been if the gate did more than
// observe.
func (n *notes) refusal(r *weir.Rejection, who whom, observed bool) {
	if r.Reason == weir.ReasonCanceled {
		return // nobody was refused: a client left the wait room
	}
	key := refusalKey{r.Gate, r.Rule, r.Reason, observed}
	n.mu.Lock()
	note, known := n.refused[key]
	if known {
		note.n++
		note.last, note.whom = r, who
		n.mu.Unlock()
		return
	}
	n.refused[key] = &refusalNote{}
	n.mu.Unlock()
	n.log.LogAttrs(context.Background(), slog.LevelWarn, refusalText(observed), n.refusalAttrs(r, who, 0)...)
}

// refusalAttrs is what there is to say of a refusal, and of count others like it
// if there are any. What a reason has no figure for is left out.
func (n *notes) refusalAttrs(r *weir.Rejection, who whom, count int) []slog.Attr {
	attrs := []slog.Attr{slog.String("gate", r.Gate), slog.String("reason", r.Reason.String())}
	if count > 0 {
		attrs = append(attrs, slog.Int("count", count))
	}
	if r.Value != 0 || r.Limit != 0 {
		attrs = append(attrs, slog.Float64("value", rounded(r.Value)), slog.Float64("limit", rounded(r.Limit)))
	}
	if r.RetryAfter > 0 {
		attrs = append(attrs, slog.String("retry_after", r.RetryAfter.Round(time.Millisecond).String()))
	}
	if r.Rule != "" {
		attrs = append(attrs, slog.String("rule", r.Rule))
	}
	if r.Window > 0 {
		attrs = append(attrs, slog.Int("window", r.Window))
	}
	if who.from.IsValid() {
		attrs = append(attrs, slog.String("peer", who.from.String()))
	}
	if n.bucket != nil {
		if bucket := n.bucket(r.Gate, who.work); bucket != "" {
			attrs = append(attrs, slog.String("bucket", bucket))
		}
	}
	if r.Signal != "" {
		attrs = append(attrs, slog.String("signal", r.Signal))
	}
	return attrs
}

// rounded leaves out what nobody reads: the figures of time-outs and deadlines
// are in seconds, all others are whole numbers.
func rounded(x float64) float64 { return math.Round(x*1000) / 1000 }

func refusalText(observed bool) string {
	if observed {
		return "would refuse (gate in observe mode)"
	}
	return "refusing"
}

// handshake tells of a client that was refused for its certificate.
func (n *notes) handshake(listener string, fault handshakeFault, peer net.Addr, err error) {
	key, attrs := handshakeKey{listener, fault}, strangerAttrs(peer, err)
	n.mu.Lock()
	note, known := n.handshakes[key]
	if known {
		note.n++
		note.last = attrs
		n.mu.Unlock()
		return
	}
	n.handshakes[key] = &handshakeNote{}
	n.mu.Unlock()
	n.log.LogAttrs(context.Background(), slog.LevelWarn, handshakeText, key.attrs(0, attrs)...)
}

const handshakeText = "client certificate refused"

func (k handshakeKey) attrs(count int, more []slog.Attr) []slog.Attr {
	attrs := []slog.Attr{slog.String("listener", k.listener), slog.String("reason", k.fault.String())}
	if count > 0 {
		attrs = append(attrs, slog.Int("count", count))
	}
	return append(attrs, more...)
}

func (n *notes) leaked(gate, site string) {
	n.log.Error("a permit was dropped without being given back", "gate", gate, "site", site)
}

// faulty is a weir.Hooks.Faulty. A gate tells of the first nonsense only.
func (n *notes) faulty(gate, problem string) {
	n.log.Error("the controller of a gate failed; the limit stays what it is, and further failures are only counted", "gate", gate, "problem", problem)
}

// signalTrouble is a signal.Hooks.Trouble, which tells each kind of trouble once.
func (n *notes) signalTrouble(name string, err error) {
	if errors.Is(err, errors.ErrUnsupported) {
		n.log.Warn("a signal is not to be had here; gates go by the others", "signal", name, "error", err)
		return
	}
	n.log.Warn("a signal cannot be read; its last value holds for a while, then what its then says", "signal", name, "error", err)
}

func (n *notes) signalRecovered(name string) {
	n.log.Info("a signal can be read again", "signal", name)
}

// run writes the lines until ctx ends.
func (n *notes) run(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	summary := time.Now().Add(noteEvery)
	for {
		select {
		case <-ctx.Done():
			n.sumUp()
			return
		case now := <-tick.C:
			n.limits.tick(now)
			if now.After(summary) {
				summary = now.Add(noteEvery)
				n.sumUp()
			}
		}
	}
}

// sumUp writes a line for each kind of refusal that there has been, and forgets
// those that have stopped, so that their next first one is logged at once.
func (n *notes) sumUp() {
	sums := make(map[refusalKey]refusalNote)
	n.mu.Lock()
	for key, note := range n.refused {
		if note.n == 0 {
			delete(n.refused, key)
			continue
		}
		sums[key] = *note
		note.n = 0
	}
	strangers := make(map[handshakeKey]handshakeNote)
	for key, note := range n.handshakes {
		if note.n == 0 {
			delete(n.handshakes, key)
			continue
		}
		strangers[key] = *note
		note.n = 0
	}
	n.mu.Unlock()
	for key, note := range strangers {
		n.log.LogAttrs(context.Background(), slog.LevelWarn, handshakeText+", in short", key.attrs(note.n, note.last)...)
	}
	for key, note := range sums {
		n.log.LogAttrs(context.Background(), slog.LevelWarn, refusalText(key.observed)+", in short", n.refusalAttrs(note.last, note.whom, note.n)...)
	}
}

// complaints are what net/http has to say: about clients, which is worth no line
// of its own, or about a panic, which is a fault of the gateway, or about the
// process running out of file descriptors.
type complaints struct{ log *slog.Logger }

// Write implements io.Writer, one line a call.
func (c complaints) Write(line []byte) (int, error) {
	text := string(bytes.TrimSpace(line))
	switch {
	case bytes.Contains(line, []byte("panic serving")):
		c.log.Error("the gateway failed in the middle of a request", "error", text)
	case bytes.Contains(line, []byte(syscall.EMFILE.Error())):
		// net/http waits longer and longer between tries, up to a second.
		c.log.Warn("no file descriptor is left for new connections: raise the limit of the process (ulimit -n) or lower max_connections", "error", text)
	default:
		c.log.Debug("client connection", "error", text)
	}
	return len(line), nil
}

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
