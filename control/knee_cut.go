package control

// yield counts what became of work, over enough of it to judge.
type yield struct {
	good, bad int64
	cuts      int  // in a row
	out       bool // nothing at all was good
}

// The constants of a cut: how much has to have finished, by how much the limit is
// cut in ln, how often in a row while some of it is good.
const (
	cutCount = 8
	cutBy    = 0.35
	mostCuts = 4
)

// cut lowers the limit while most of what finishes is of no use, and returns why,
// empty if it does not. When good answers come back after there were none, it
// climbs.
func (k *Knee) cut(w *Window) string {
	y := &k.yield
	y.good += w.OK
	y.bad += w.Dropped()
	total := y.good + y.bad
	if total < cutCount {
		return ""
	}
	good, bad := y.good, y.bad
	y.good, y.bad = 0, 0
	switch {
	case good > total*7/10:
		out := y.out
		y.cuts, y.out = 0, false
		if out && k.mode == tracking {
			k.mode, k.climb = climbing, climb{}
			return "good answers again"
		}
		return ""
	case good > 0 && (bad <= total/2 || y.cuts >= mostCuts):
		return ""
	}
	k.remember(w.Now)
	y.cuts++
	y.out = y.out || good == 0
	k.at -= cutBy
	k.gap.reopen()
	k.shift.broken()
	k.restart(w.Now)
	if good == 0 {
		return "nothing that finished was of use"
	}
	return "less than half of what finished was of use"
}
