package live

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// Plan says what is measured, and for how long.
type Plan struct {
	Rounds  int     // values each figure is made of
	Pace    float64 // multiplies every length; 1 is the published scoreboard
	Retries int     // of a void run
	Weir    string  // the gateway's binary; empty: part two is left out
	Parts   []string
	Rows    []string // nil: all
	Laws    []string // nil: all
	Guards  []string // nil: all
}

// The parts.
const (
	partServer  = "server"
	partGateway = "gateway"
	partYield   = "yield"
	partOrder   = "order"
)

// The parts of the scoreboard's hour, and all.
var (
	hour  = []string{partServer, partYield, partGateway}
	parts = append(slices.Clone(hour), partOrder)
)

// quickPlan takes about a minute: one short round of a few cells. Its figures say
// that everything works, and no more.
func quickPlan(weir string) Plan {
	return Plan{
		Rounds: 1, Pace: 0.2, Weir: weir, Parts: parts,
		Rows: []string{"S1", "S9", "2x", "half", "S12"}, Laws: []string{"B1", "B2", "contention-1060"},
	}
}

func (p *Plan) check() error {
	var faults []error
	if p.Rounds < 1 || p.Rounds > 9 {
		faults = append(faults, fmt.Errorf("rounds %d: must be from 1 to 9", p.Rounds))
	}
	if !(p.Pace >= 0.05 && p.Pace <= 10) {
		faults = append(faults, fmt.Errorf("pace %v: must be from 0.05 to 10", p.Pace))
	}
	for _, part := range p.Parts {
		if !slices.Contains(parts, part) {
			faults = append(faults, fmt.Errorf("part %q: must be one of %q", part, parts))
		}
	}
	if p.Weir == "" && (p.wantsPart(partGateway) || p.wantsPart(partOrder)) {
		faults = append(faults, errors.New("the parts gateway and order need the binary: -weir bin/weir, or make scoreboard-live, which builds it"))
	}
	return errors.Join(faults...)
}

// turn is how long something takes that takes d at pace 1.
func (p *Plan) turn(d time.Duration) time.Duration { return time.Duration(float64(d) * p.Pace) }

func (p *Plan) wants(list []string, name string) bool {
	return len(list) == 0 || slices.Contains(list, name)
}

// chosen are those of the guards that the plan wants.
func (p *Plan) chosen(guards []string) []string {
	var all []string
	for _, g := range guards {
		if p.wants(p.Guards, g) {
			all = append(all, g)
		}
	}
	return all
}

func (p *Plan) wantsPart(part string) bool { return slices.Contains(p.Parts, part) }

// site is a backend of part one, and how the server runs it.
type site struct {
	name     string
	law      Law
	procs    int
	patience time.Duration
	unit     time.Duration
}

func sites() []site {
	return []site{
		{"B1", lawB1, 1, 100 * time.Millisecond, 600 * time.Millisecond},
		{"B1, 2 procs", lawB1, 2, 100 * time.Millisecond, 600 * time.Millisecond},
		{"B2", lawB2, 1, 500 * time.Millisecond, 700 * time.Millisecond},
		{"B3", lawB3, 1, time.Second, 850 * time.Millisecond},
	}
}

// guards are those that a row is run under. The best fixed limit is what the
// sweep found, waiting at most half the deadline, as in the simulated scoreboard.
func (s *site) guards(row string, best int) []Guard {
	fixed := Guard{Name: guardFixed, Kind: "fixed", Limit: int64(best), MaxWait: s.patience / 2}
	knee := Guard{Name: guardWeir, Kind: "knee"}
	all := []Guard{fixed, knee}
	if row == "S1" && s.procs == 1 {
		all = append(all, Guard{Name: guardNone, Kind: "none"})
	}
	if s.law.Kind != "burn" || row != "S1" && row != "S2" {
		return all
	}
	all = append(all,
		Guard{Name: "weir without yield", Kind: "knee", NoYield: true},
		Guard{Name: "weir + signal", Kind: "knee", Signals: true})
	if s.procs == 1 {
		all = append(all,
			Guard{Name: "weir + signal without yield", Kind: "knee", Signals: true, NoYield: true},
			Guard{Name: "no room", Kind: "fixed", Limit: fixed.Limit, NoRoom: true},
			Guard{Name: "no room without yield", Kind: "fixed", Limit: fixed.Limit, NoRoom: true, NoYield: true})
	}
	return all
}

// has reports whether the row says anything on the site.
func (s *site) has(row string) bool {
	if s.procs > 1 {
		return row == "S1" || row == "S2"
	}
	switch row {
	case "S28":
		return s.law.Kind != "burn"
	case "S28 log-normal":
		return s.law.Kind == "usl"
	}
	return true
}

// upstream is a backend of part two.
type upstream struct {
	law  Law
	unit time.Duration
	rows []string // nil: all
}

func upstreams() []upstream {
	return []upstream{
		{law: lawPool25, unit: 1700 * time.Millisecond},
		{law: lawUSL53, unit: 1700 * time.Millisecond},
		{law: lawCores250, unit: 900 * time.Millisecond, rows: []string{"2x", "10x", "step", "half", ".9", "bimodal"}},
		{law: lawUSL1060, unit: 800 * time.Millisecond},
		{law: lawPool2000, unit: 700 * time.Millisecond, rows: []string{"2x", "10x", "half", ".9"}},
	}
}

// patience of the clients of part two: five times the latency at the best
// concurrency, 2.5 times where they have little.
func (u *upstream) patience(impatient bool) time.Duration {
	if impatient {
		return u.law.loaded() * 5 / 2
	}
	return max(100*time.Millisecond, 5*u.law.loaded())
}

// sideBySide is the sum of rates, in requests a second, up to which all proxies
// are measured at the same time: they take a small part of a core together.
const sideBySide = 3000

// The guards that both parts and the report speak of.
const (
	guardNone          = "none"
	guardFixed         = "fixed"
	guardWeir          = "weir"
	guardFailsafe      = "failsafe-go"
	guardFailsafeQueue = "failsafe-go + queue"
)

var proxyGuards = []string{guardFixed, guardWeir, guardFailsafe, guardFailsafeQueue, guardNone}

// proxies are the guards that a row of part two is run under. That no control
// collapses needs no more than two rows.
func proxies(row string) []string {
	if row == "2x" || row == "half" {
		return proxyGuards
	}
	return proxyGuards[:4]
}
