package peers

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/weir-go/weir/bench/internal/kit"
	"github.com/weir-go/weir/sim"
)

// verdict compares weir with the others on the goodput figures.
type verdict struct {
	// Figures is how many goodput figures there are. On Below of them weir was below
	// the best peer that was not told the backend's best concurrency; BelowTold also
	// counts those that were.
	Figures   int `json:"figures"`
	Below     int `json:"below"`
	BelowTold int `json:"below_told"`
	// Clearly is on how many of Below it was below by more than 0.02, from seed to
	// nearest seed.
	Clearly int `json:"clearly_below"`
	// Worst is weir's worst figure, BestWorst the best of the worst figures of
	// those who know nothing, Peer whose it is.
	Worst     worst `json:"worst"`
	BestWorst worst `json:"best_worst"`
	// Reached says whether the goal is reached. weir is never below the best peer, told
	// ones left out. Its worst figure is at least 0.90, or twice the best peer's.
	Reached bool `json:"reached"`
	// Losses are the figures on which weir was below: the best of those who know
	// nothing, and the best of those who were told.
	Losses []loss `json:"losses,omitempty"`
	// Peers are everybody's worst and mean figures.
	Peers []standing `json:"peers"`
}

// worst is somebody's worst figure.
type worst struct {
	Peer   string  `json:"peer"`
	Table  string  `json:"table"`
	Column string  `json:"column"`
	Value  float64 `json:"value"`
}

// loss is a figure on which weir was below somebody, beyond the spread of the
// seeds: its best seed was below the other's worst.
type loss struct {
	Table  string     `json:"table"`
	Column string     `json:"column"`
	Weir   sim.Spread `json:"weir"`
	Peer   string     `json:"peer"`
	Other  sim.Spread `json:"other"`
	Told   bool       `json:"told,omitempty"`
}

// standing sums up one peer over all goodput figures.
type standing struct {
	Peer  string  `json:"peer"`
	Told  bool    `json:"told,omitempty"`
	Worst worst   `json:"worst"`
	Mean  float64 `json:"mean"`
	// Half counts figures below 0.5.
	Half int `json:"below_half"`
}

// atMostAll takes off what is more than everything: answers left over from
// before the stretch, and the luck of a seed.
func atMostAll(s sim.Spread) sim.Spread {
	return sim.Spread{Median: min(1, s.Median), Min: min(1, s.Min), Max: min(1, s.Max)}
}

// judge gives the verdict.
func judge(cells []Cell) verdict {
	var v verdict
	var shares []Cell
	for _, c := range cells {
		if c.Goodput {
			c.Spread = atMostAll(c.Spread)
			shares = append(shares, c)
		}
	}
	columns := kit.Groups(shares, func(c *Cell) [2]string { return [2]string{c.Table, c.Column} })
	for _, column := range columns {
		v.compare(column)
	}
	for _, p := range peers() {
		v.stand(&p, columns)
	}
	for _, s := range v.Peers {
		switch {
		case s.Peer == "weir":
			v.Worst = s.Worst
		case !s.Told && !ours(s.Peer) && (v.BestWorst.Peer == "" || s.Worst.Value > v.BestWorst.Value):
			v.BestWorst = s.Worst
		}
	}
	v.Reached = v.Below == 0 && (v.Worst.Value >= 0.9 || v.Worst.Value >= 2*v.BestWorst.Value)
	return v
}

func ours(name string) bool { return named(name).Weir || named(name).Untold }

func told(name string) bool { return named(name).Told }

// named is the peer of that name, or one without a name.
func named(name string) *peer {
	for _, p := range peers() {
		if p.Name == name {
			return &p
		}
	}
	return new(peer)
}

// compare looks at one figure of everybody.
func (v *verdict) compare(column []Cell) {
	mine := of(column, "weir")
	if mine == nil {
		return
	}
	v.Figures++
	var best, bestTold *loss
	for _, p := range peers() {
		c := of(column, p.Name)
		if c == nil || p.Weir || p.Untold || mine.Max >= c.Min {
			continue
		}
		to := &best
		if p.Told {
			to = &bestTold
		}
		if *to == nil || c.Min > (*to).Other.Min {
			*to = &loss{c.Table, c.Column, mine.Spread, p.Name, c.Spread, p.Told}
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

// of is the cell of a peer, nil if there is none.
func of(column []Cell, peer string) *Cell {
	i := slices.IndexFunc(column, func(c Cell) bool { return c.Peer == peer })
	if i < 0 {
		return nil
	}
	return &column[i]
}

// clearly is from when on a difference is clear.
const clearly = 0.02

// stand sums up one peer.
func (v *verdict) stand(p *peer, columns [][]Cell) {
	s := standing{Peer: p.Name, Told: p.Told, Worst: worst{Peer: p.Name, Value: math.Inf(1)}}
	var n int
	for _, column := range columns {
		c := of(column, p.Name)
		if c == nil {
			continue
		}
		n++
		s.Mean += c.Median
		if c.Median < 0.5 {
			s.Half++
		}
		if c.Median < s.Worst.Value {
			s.Worst = worst{p.Name, c.Table, c.Column, c.Median}
		}
	}
	if n > 0 {
		s.Mean /= float64(n)
		v.Peers = append(v.Peers, s)
	}
}

func (v *verdict) write(b *strings.Builder) {
	fmt.Fprintf(b, "\n## Verdict\n\nThe goal is about the %d goodput figures, beyond the spread of the seeds. weir is never to be below the best peer without a star. And its\n"+
		"worst figure is to be at least 0.90, or at least twice the best peer's worst. **%s.**\n\n", v.Figures, map[bool]string{true: "Reached", false: "Missed"}[v.Reached])
	fmt.Fprintf(b, "- weir is below the best peer without a star on %d figures, by more than 0.02 on %d. With the starred peers it is below on %d.\n  A figure above 1 counts as 1.\n", v.Below, v.Clearly, v.BelowTold)
	fmt.Fprintf(b, "- weir's worst figure: %s.", v.Worst.text())
	if v.BestWorst.Peer != "" {
		fmt.Fprintf(b, " The best of the others' worst: %s, of %s.", v.BestWorst.text(), v.BestWorst.Peer)
	}
	standings := kit.Table{{"", "worst", "where", "mean", "figures below 0.5"}}
	for _, s := range v.Peers {
		standings = append(standings, []string{starred(s.Peer, s.Told), twoDigits(s.Worst.Value), s.Worst.Table + ", " + s.Worst.Column, twoDigits(s.Mean), fmt.Sprint(s.Half)})
	}
	b.WriteString("\n\n" + standings.Plain("|---|---:|---|---:|---:|"))
	if len(v.Losses) == 0 {
		return
	}
	losses := kit.Table{{"figure", "weir", "", ""}}
	for _, l := range v.Losses {
		losses = append(losses, []string{l.Table + ", " + l.Column, between(l.Weir), starred(l.Peer, l.Told), between(l.Other)})
	}
	b.WriteString("\nWhere weir was below somebody: the best peer without a star, and the best with one.\n\n" + losses.Plain("|---|---:|---|---:|"))
}

func (w *worst) text() string {
	return fmt.Sprintf("%s (%s, %s)", twoDigits(w.Value), w.Table, w.Column)
}

// starred is the name of a peer, with a star if it was told the best concurrency.
func starred(peer string, told bool) string {
	if told {
		return peer + " *"
	}
	return peer
}

func between(s sim.Spread) string { return fmt.Sprintf("%.3f-%.3f", s.Min, s.Max) }
