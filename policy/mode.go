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
