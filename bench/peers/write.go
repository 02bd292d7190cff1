package peers

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

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
