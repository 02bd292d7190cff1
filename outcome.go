package weir

// Outcome is what became of admitted work, as the controller of a gate needs
// to know it. Use [Classify] to get one from an error.
type Outcome uint8

// The outcomes. The zero value teaches nothing, so that a forgotten outcome
// does no harm.
const (
	// NoSample says nothing about the backend: an upgrade, a hijacked connection,
	// an answer from a cache.
	NoSample Outcome = iota
	// OK is a completed answer; the time it took is a latency sample.
	OK
	// Failed is an answer that was wrong for reasons of its own. It is counted
	// but its latency is no sample: a fast 500 is no good news.
	Failed
	// Overload is a sign of too much: a time-out, a 429 or 503 from below.
	Overload
	// Abandoned is work whose client left before the answer: waste, and a sign
	// of too much.
	Abandoned

	numOutcomes = iota
)

var outcomeNames = [numOutcomes]string{"no_sample", "ok", "failed", "overload", "abandoned"}

// String returns the name used in metrics: no_sample, ok, failed, overload,
// abandoned.
func (o Outcome) String() string {
	if int(o) < len(outcomeNames) {
		return outcomeNames[o]
	}
	return "outcome(" + itoa(int64(o)) + ")"
}

// MarshalText makes Outcome a readable JSON map key.
func (o Outcome) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// Outcomes returns all outcomes, for code that keeps a counter for each.
func Outcomes() []Outcome { return []Outcome{NoSample, OK, Failed, Overload, Abandoned} }
