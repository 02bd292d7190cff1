package control

// Fixed keeps a limit that somebody chose. It assumes that the backend's
// capacity is known and stays what it is, and fails when either is wrong: too
// high and the queue moves into the backend, too low and work is refused that
// could have been done.
type Fixed int64

// Name implements [Controller].
func (Fixed) Name() string { return "fixed" }

// Start implements [Controller].
func (f Fixed) Start() Decision { return f.decision() }

// Update implements [Controller]. It never changes anything.
func (f Fixed) Update(*Window) Decision { return f.decision() }

func (f Fixed) decision() Decision { return Decision{Limit: max(1, int64(f)), Reason: "fixed"} }
