package shed

import (
	"fmt"

	"github.com/weir-go/weir"
)

// Status is a gate at one moment, in more detail than a [weir.Snapshot] has. The
// counts only grow.
type Status struct {
	// Level is the lowest that is let through: 0 everything, [Levels] nothing.
	Level Level
	// Pressure is the last good reading, Signal its name where it has one.
	// Known reports whether the reading is young enough to go by.
	Pressure float64
	Known    bool
	Signal   string
	// Classes counts work by class, weir.Background first.
	Classes [Classes]Count
	// Exempt counts the exempt work that has passed.
	Exempt uint64
}

// Count is what became of the work of a class.
type Count struct{ Admitted, Refused uint64 }

// Status returns the gate's present state.
func (s *Shedder) Status() Status {
	v := s.verdict.Load()
	st := Status{
		Level: v.level, Pressure: v.pressure, Known: v.known, Signal: v.signal,
		Exempt: s.book.exempt.Load(),
	}
	admitted, refused := sum(&s.book.admitted), sum(&s.book.refused)
	a, r := admitted.classes(), refused.classes()
	for class := range st.Classes {
		st.Classes[class] = Count{a[class], r[class]}
	}
	return st
}

// Snapshot implements [weir.Snapshotter]. Limit is how many of the 512 levels
// are let through, LimitReason says at which pressure. Admitted counts what this
// gate has let through, exempt work included, whatever became of it behind.
func (s *Shedder) Snapshot() weir.Snapshot {
	v, st := s.verdict.Load(), s.Status()
	snap := weir.Snapshot{
		Name: s.name, Kind: "shed", Mode: "enforce",
		Limit: Levels - int64(v.level), LimitReason: v.why(), Signal: v.signal,
		Admitted: st.Exempt, Rejected: map[weir.Reason]uint64{},
	}
	shed := uint64(0)
	for _, c := range st.Classes {
		snap.Admitted += c.Admitted
		shed += c.Refused
	}
	for reason, n := range map[weir.Reason]uint64{weir.ReasonShed: shed, weir.ReasonDraining: s.book.closed.Load()} {
		if n > 0 {
			snap.Rejected[reason] = n
		}
	}
	if len(snap.Rejected) == 0 {
		snap.Rejected = nil
	}
	return snap
}

// why says what stands behind the level.
func (v *verdict) why() string {
	what := "everything is let through"
	switch {
	case v.level >= Levels:
		what = "nothing is let through"
	case v.level > 0:
		what = v.level.String() + " and above is let through"
	}
	if !v.known {
		return what + ": the pressure is not known"
	}
	return fmt.Sprintf("%s: pressure %.3g", what, v.pressure)
}
