package peers

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/weir-go/weir/sim"
)

// Verdict compares weir with the others on the goodput figures.
type Verdict struct {
	// Figures is how many goodput figures there are, Below on how many of them
	// weir was below the best of those who, like it, know nothing of the backend;
	// BelowTold also counts those who were told its best concurrency.
	Figures   int `json:"figures"`
	Below     int `json:"below"`
	BelowTold int `json:"below_told"`
	// Clearly is on how many of Below it was below by more than .02, from seed to
	// nearest seed.
	Clearly int `json:"clearly_below"`
	// Worst is weir's worst figure, BestWorst the best of the worst figures of
	// those who know nothing, Peer whose it is.
	Worst     Worst `json:"worst"`
	BestWorst Worst `json:"best_worst"`
	// Reached says whether the goal is: never below the best peer, told ones
	// left out, and a worst figure of at least .90 or twice the best peer's.
	Reached bool `json:"reached"`
	// Losses are the figures on which weir was below: the best of those who know
	// nothing, and the best of those who were told.
	Losses []Loss `json:"losses,omitempty"`
	// Peers are everybody's worst and mean figures.
	Peers []Standing `json:"peers"`
}

// Worst is somebody's worst figure.
type Worst struct {
	Peer   string  `json:"peer"`
	Table  string  `json:"table"`
	Column string  `json:"column"`
	Value  float64 `json:"value"`
}

// Loss is a figure on which weir was below somebody, beyond the spread of the
// seeds: its best seed was below the other's worst.
type Loss struct {
	Table  string     `json:"table"`
	Column string     `json:"column"`
	Weir   sim.Spread `json:"weir"`
	Peer   string     `json:"peer"`
	Other  sim.Spread `json:"other"`
	Told   bool       `json:"told,omitempty"`
}

// Standing sums up one peer over all goodput figures.
type Standing struct {
	Peer  string  `json:"peer"`
	Told  bool    `json:"told,omitempty"`
	Worst Worst   `json:"worst"`
	Mean  float64 `json:"mean"`
	// Half counts figures below .5.
	Half int `json:"below_half"`
}

// atMostAll takes off what is more than everything: answers left over from
// before the stretch, and the luck of a seed.
func atMostAll(s sim.Spread) sim.Spread {
	return sim.Spread{Median: min(1, s.Median), Min: min(1, s.Min), Max: min(1, s.Max)}
}

// Judge gives the verdict.
func Judge(cells []Cell) Verdict {
	var v Verdict
	byColumn := map[[2]string]map[string]Cell{}
	var order [][2]string
	for _, c := range cells {
		if !c.Goodput {
			continue
		}
		key := [2]string{c.Table, c.Column}
		if byColumn[key] == nil {
			byColumn[key] = map[string]Cell{}
			order = append(order, key)
		}
		c.Spread = atMostAll(c.Spread)
		byColumn[key][c.Peer] = c
	}
	for _, key := range order {
		v.compare(byColumn[key])
	}
	for _, p := range Peers() {
		v.stand(&p, order, byColumn)
	}
	for _, s := range v.Peers {
		switch {
		case s.Peer == "weir":
			v.Worst = s.Worst
		case !s.Told && !ours(s.Peer) && (v.BestWorst.Peer == "" || s.Worst.Value > v.BestWorst.Value):
			v.BestWorst = s.Worst
		}
	}
	v.Reached = v.Below == 0 && (v.Worst.Value >= .9 || v.Worst.Value >= 2*v.BestWorst.Value)
	return v
}

func ours(name string) bool {
	p := named(name)
	return p != nil && (p.Weir || p.Untold)
}

func told(name string) bool {
	p := named(name)
	return p != nil && p.Told
}

// named is the peer of that name, nil for none.
func named(name string) *Peer {
	all := Peers()
	if i := slices.IndexFunc(all, func(p Peer) bool { return p.Name == name }); i >= 0 {
		return &all[i]
	}
	return nil
}

// compare looks at one figure of everybody.
func (v *Verdict) compare(column map[string]Cell) {
	mine, ok := column["weir"]
	if !ok {
		return
	}
	v.Figures++
	var best, bestTold *Loss
	for _, p := range Peers() {
		c, ok := column[p.Name]
		if !ok || p.Weir || p.Untold || mine.Max >= c.Min {
			continue
		}
		to := &best
		if p.Told {
			to = &bestTold
		}
		if *to == nil || c.Min > (*to).Other.Min {
			*to = &Loss{c.Table, c.Column, mine.Spread, p.Name, c.Spread, p.Told}
		}
	}
	if best != nil {
		v.Below++
		v.Losses = append(v.Losses, *best)
		if best.Other.Min-mine.Max > clearly {
			v.Clearly++
		}
	}
	if bestTold != nil {
		v.Losses = append(v.Losses, *bestTold)
	}
	if best != nil || bestTold != nil {
		v.BelowTold++
	}
}

// clearly is from when on a difference is clear.
const clearly = .02

// stand sums up one peer.
func (v *Verdict) stand(p *Peer, order [][2]string, byColumn map[[2]string]map[string]Cell) {
	s := Standing{Peer: p.Name, Told: p.Told, Worst: Worst{Peer: p.Name, Value: math.Inf(1)}}
	var n int
	for _, key := range order {
		c, ok := byColumn[key][p.Name]
		if !ok {
			continue
		}
		n++
		s.Mean += c.Median
		if c.Median < .5 {
			s.Half++
		}
		if c.Median < s.Worst.Value {
			s.Worst = Worst{p.Name, c.Table, c.Column, c.Median}
		}
	}
	if n > 0 {
		s.Mean /= float64(n)
		v.Peers = append(v.Peers, s)
	}
}

func (v *Verdict) write(b *strings.Builder) {
	fmt.Fprintf(b, "\n## Verdict\n\nThe goal: on the %d goodput figures, beyond the spread of the seeds, never below the best peer; and the worst figure at\n"+
		"least .90, or at least twice the best peer's worst. **%s.**\n\n", v.Figures, map[bool]string{true: "Reached", false: "Missed"}[v.Reached])
	fmt.Fprintf(b, "- Below the best peer that was told nothing on %d figures, by more than .02 on %d; with those that were told the best\n  concurrency, on %d. More than everything counts as everything.\n", v.Below, v.Clearly, v.BelowTold)
	fmt.Fprintf(b, "- weir's worst figure: %s.", v.Worst.text())
	if v.BestWorst.Peer != "" {
		fmt.Fprintf(b, " The best of the others' worst: %s, of %s.", v.BestWorst.text(), v.BestWorst.Peer)
	}
	b.WriteByte('\n')
	b.WriteString("\n| | worst | where | mean | figures below .5 |\n|---|---:|---|---:|---:|\n")
	for _, s := range v.Peers {
		fmt.Fprintf(b, "| %s | %s | %s, %s | %s | %d |\n", s.name(), twoDigits(s.Worst.Value), s.Worst.Table, s.Worst.Column, twoDigits(s.Mean), s.Half)
	}
	if len(v.Losses) == 0 {
		return
	}
	b.WriteString("\nWhere weir was below somebody, with the best of those who were told nothing and of those who were told:\n\n| figure | weir | | |\n|---|---:|---|---:|\n")
	for _, l := range v.Losses {
		star := ""
		if l.Told {
			star = " *"
		}
		fmt.Fprintf(b, "| %s, %s | %s | %s%s | %s |\n", l.Table, l.Column, between(l.Weir.Min, l.Weir.Max), l.Peer, star, between(l.Other.Min, l.Other.Max))
	}
}

func (w *Worst) text() string {
	return fmt.Sprintf("%s (%s, %s)", twoDigits(w.Value), w.Table, w.Column)
}

func (s *Standing) name() string {
	if s.Told {
		return s.Peer + " *"
	}
	return s.Peer
}

func between(from, to float64) string { return fmt.Sprintf("%.3f-%.3f", from, to) }
