package sim

// delayed is what has happened to a suspended process that it does not know of
// yet: an attempt that came, or one that was answered.
type delayed struct {
	attempt  *attempt
	answered bool
}

// resume makes good what a suspended process has missed: answers first, because
// whoever gives something back goes before whoever asks for it.
func (w *world) resume() {
	missed := w.delayed
	w.delayed = nil
	for _, d := range missed {
		if d.answered {
			w.answered(d.attempt)
		}
	}
	for _, d := range missed {
		switch {
		case d.answered:
		case d.attempt.left:
			w.recycle(d.attempt)
		default:
			w.arrive(d.attempt)
		}
	}
}
