package policy

// Mode is how far a gate's decisions are carried out. In files it is one of the
// words below; the empty word means enforce.
type Mode string

// The modes.
const (
	Enforce Mode = "enforce" // refuse what the gate refuses
	Observe Mode = "observe" // decide and count, but let everything through
	Off     Mode = "off"     // decide nothing
)

// Modes returns every mode, the default first.
func Modes() []Mode { return []Mode{Enforce, Observe, Off} }

// level is a mode as the hot path compares it.
type level uint32

const (
	enforcing level = iota
	observing
	off
)

func (m Mode) level() level {
	switch m {
	case Observe:
		return observing
	case Off:
		return off
	}
	return enforcing
}

func (l level) mode() Mode { return Modes()[l] }
