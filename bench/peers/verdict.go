package peers

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

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
	for _, p := range Peers() {
		if p.Name == name {
			return p.Weir || p.Untold
		}
	}
	return false
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

// WriteJSON writes the verdict and the cells.
func WriteJSON(w io.Writer, cells []Cell) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(struct {
		Verdict Verdict `json:"verdict"`
		Cells   []Cell  `json:"cells"`
	}{Judge(cells), cells})
}

const preface = `# Peers

Other projects' limiters and weir's default before the same simulated backends, from the same scenario files, in virtual
time. Written by ` + "`make scoreboard-peers`" + `; ` + "`bench/README.md`" + ` says how it is done and what each peer's settings are.

Every figure is a share of what could have been served in time, 1 being all of it, unless its column names a unit: the median
over the seeds, with the least and the greatest in brackets where they are more than .02 apart. A star marks a peer that was
told the backend's best concurrency.
`

// WriteMarkdown writes the tables and the verdict.
func WriteMarkdown(w io.Writer, cells []Cell) error {
	var b strings.Builder
	b.WriteString(preface)
	v := Judge(cells)
	v.write(&b)
	writeSeeds(&b, cells)
	for _, name := range tables(cells) {
		writeTable(&b, name, cells)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// tables returns the names of the tables that cells belong to, as they come.
func tables(cells []Cell) (names []string) {
	for _, c := range cells {
		if !slices.Contains(names, c.Table) {
			names = append(names, c.Table)
		}
	}
	return names
}

// writeSeeds says which figures have fewer seeds than the others.
func writeSeeds(b *strings.Builder, cells []Cell) {
	var most int
	for _, c := range cells {
		most = max(most, len(c.Seeds))
	}
	fewer := map[string]bool{}
	for _, c := range cells {
		if len(c.Seeds) < most {
			fewer[c.Scenario] = true
		}
	}
	if len(fewer) > 0 {
		fmt.Fprintf(b, "\nFigures have %d seeds, but some peers' in %s fewer; peers.json says which. An empty cell has not been run.\n",
			most, strings.Join(slices.Sorted(maps.Keys(fewer)), ", "))
	}
}

func writeTable(b *strings.Builder, name string, cells []Cell) {
	var columns []string
	at := map[[2]string]Cell{}
	for _, c := range cells {
		if c.Table != name {
			continue
		}
		if !slices.Contains(columns, c.Column) {
			columns = append(columns, c.Column)
		}
		at[[2]string{c.Peer, c.Column}] = c
	}
	fmt.Fprintf(b, "\n## %s\n\n| |%s\n|---|%s\n", name, " "+strings.Join(columns, " | ")+" |", strings.Repeat("---:|", len(columns)))
	for _, p := range Peers() {
		if _, ok := at[[2]string{p.Name, columns[0]}]; !ok {
			continue
		}
		fmt.Fprintf(b, "| %s |", title(&p))
		for _, column := range columns {
			fmt.Fprintf(b, " %s |", at[[2]string{p.Name, column}].text())
		}
		b.WriteByte('\n')
	}
}

func title(p *Peer) string {
	switch {
	case p.Weir:
		return "**" + p.Name + "**"
	case p.Told:
		return p.Name + " *"
	}
	return p.Name
}

// text is the cell as a table shows it.
func (c Cell) text() string {
	if c.Peer == "" {
		return ""
	}
	if !c.Goodput {
		if to, err := time.ParseDuration(c.To); c.Metric == "settle" && err == nil && c.Median >= to.Seconds() {
			return "never" // every settle here is from the start of a run
		}
		return fmt.Sprintf("%.3g", c.Median)
	}
	if c.Max-c.Min <= .02 {
		return twoDigits(c.Median)
	}
	return fmt.Sprintf("%s (%s-%s)", twoDigits(c.Median), twoDigits(c.Min), twoDigits(c.Max))
}

// twoDigits writes a share with two digits.
func twoDigits(x float64) string { return strings.TrimPrefix(fmt.Sprintf("%.2f", x), "0") }

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
