package cli

import (
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The figures beside simulations in the docs are those that weir sim prints, to the digits that a
// page shows. What stands between two headings belongs together: scenarios, commands with a
// built-in one, lines that are indented, and figures of the form "median (least to most)".
//
// A comment plays the scenario before it once more, with other words in one place: <!-- the scenario
// again, with `new` for `old` -->.
//
// Scenarios are always played. Commands are played, the last one first, until all that is shown
// there was printed. So a command beside which nothing is shown takes no time: its flags are
// parsed, and its scenario is read.
func TestSimulationsOfTheDocs(t *testing.T) {
	if testing.Short() {
		t.Skip("simulates for a minute under the race detector")
	}
	var scenarios, commands, figures int
	played := map[string]string{}
	err := filepath.WalkDir("../../../docs", func(path string, d fs.DirEntry, err error) error {
		// The page of the commands is written by TestCommandsPage.
		if err != nil || filepath.Ext(path) != ".md" || d.Name() == "commands.md" {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, s := range simSections(string(text)) {
			scenarios, commands = scenarios+len(s.scenarios), commands+len(s.commands)
			if len(s.scenarios)+len(s.commands) == 0 {
				continue
			}
			figures += len(s.lines) + len(s.spreads)
			t.Run(filepath.Base(path)+" "+s.heading, func(t *testing.T) { s.play(t, played) })
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if scenarios < 5 || commands < 10 || figures < 40 {
		t.Errorf("only %d scenarios, %d commands and %d figures found", scenarios, commands, figures)
	}
}

// simSection is what a page says between two headings about simulations.
type simSection struct {
	heading   string
	scenarios []string
	commands  [][]string // what follows weir sim
	lines     []string   // indented: what weir sim is said to print
	spreads   []string   // in text and tables
}

// simSections returns the sections of a page.
func simSections(page string) []*simSection {
	s := &simSection{}
	all := []*simSection{s}
	command := func(line string) {
		args, isSim := strings.CutPrefix(strings.TrimPrefix(line, "bin/"), "weir sim ")
		if words := strings.Fields(shellRest.ReplaceAllString(args, "")); isSim && builtInName.MatchString(words[0]) {
			s.commands = append(s.commands, words)
		}
	}
	text := page
	for text != "" {
		line, rest, _ := strings.Cut(text, "\n")
		text = rest
		switch kind, fence := strings.CutPrefix(line, "```"); {
		case fence:
			block, after, _ := strings.Cut(text, "```")
			before := page[:len(page)-len(text)]
			switch {
			case kind == "sh":
				for l := range strings.Lines(block) {
					command(strings.TrimSpace(l))
				}
			case kind == "yaml" && strings.HasSuffix(before, "a scenario, for weir sim -->\n"+line+"\n"):
				s.scenarios = append(s.scenarios, block)
			}
			_, text, _ = strings.Cut(after, "\n")
		case strings.HasPrefix(line, "#"):
			s = &simSection{heading: strings.TrimLeft(line, "# ")}
			all = append(all, s)
		case strings.HasPrefix(line, "    "):
			s.lines = append(s.lines, strings.TrimSpace(line))
		case again.MatchString(line) && len(s.scenarios) > 0:
			m, last := again.FindStringSubmatch(line), s.scenarios[len(s.scenarios)-1]
			if strings.Count(last, m[2]) != 1 {
				last = fmt.Sprintf("%q is not once in the scenario before", m[2]) // which is none, and so a fault
			}
			s.scenarios = append(s.scenarios, strings.Replace(last, m[2], m[1], 1))
		default:
			for _, m := range codeSpan.FindAllStringSubmatch(line, -1) {
				command(m[1])
			}
			s.spreads = append(s.spreads, spread.FindAllString(line, -1)...)
		}
	}
	return all
}

const simNumber = `(\d+(?:\.\d+)?)(?: (?:%|ms|s)\b)?`

var (
	shellRest   = regexp.MustCompile(` [#|].*`)
	builtInName = regexp.MustCompile(`^\w[\w-]*[a-z0-9][\w-]*$`) // and not FILE, my.yaml or --help
	again       = regexp.MustCompile("^<!-- the scenario again, with `(.+)` for `(.+)` -->$")
	codeSpan    = regexp.MustCompile("`([^`]*)`")
	spread      = regexp.MustCompile(simNumber + ` +\(` + simNumber + ` to ` + simNumber + `\)`)
	simFigure   = regexp.MustCompile(`\d+(?:\.\d+)?`)
)

// play compares what the section shows with what its simulations print. It keeps what commands
// have printed, for other sections.
func (s *simSection) play(t *testing.T, played map[string]string) {
	var printed []string
	play := func(args ...string) {
		args = slices.DeleteFunc(args, func(a string) bool { return a == "--plot" }) // it is drawn below the figures
		command := strings.Join(args, " ")
		if played[command] == "" {
			out, errs, err := run(NewSimCommand(), "", args...)
			if out == "" { // a goal that was missed is an error, too
				t.Fatalf("weir sim %s prints nothing: %v\n%s", command, err, errs)
			}
			played[command] = out
		}
		printed = append(printed, strings.Split(played[command], "\n")...)
	}
	for _, text := range s.scenarios {
		play(write(t, "guide.yaml", text))
	}
	if len(s.scenarios) > 0 && len(s.lines) == 0 {
		t.Error("the page has a scenario, and shows nothing of what weir sim prints; show its goals, indented by four spaces")
	}
	for _, args := range slices.Backward(s.commands) {
		if len(s.wrong(printed)) > 0 {
			play(args...)
			continue
		}
		cmd := NewSimCommand()
		if err := cmd.ParseFlags(args); err != nil {
			t.Errorf("weir sim %s: %v", strings.Join(args, " "), err)
		} else if _, err := readScenario(cmd.Flags().Arg(0)); err != nil {
			t.Errorf("weir sim %s: %v", strings.Join(args, " "), err)
		}
	}
	for _, fault := range s.wrong(printed) {
		t.Error(fault)
	}
}

// wrong says what of the section was not printed, and what to write instead.
func (s *simSection) wrong(printed []string) (faults []string) {
	var spreads []string
	for _, line := range printed {
		spreads = append(spreads, spread.FindAllString(line, -1)...)
	}
	for _, shown := range s.lines {
		if !slices.ContainsFunc(printed, func(line string) bool { return shows(shown, line) }) {
			faults = append(faults, fmt.Sprintf("the page shows\n    %s\nwrite instead\n    %s", shown, nearest(shown, printed)))
		}
	}
	for _, shown := range s.spreads {
		if !slices.ContainsFunc(spreads, func(one string) bool { return shows(shown, one) }) {
			faults = append(faults, fmt.Sprintf("the page shows %s, which nothing printed; the nearest is %s", shown, nearest(shown, spreads)))
		}
	}
	return faults
}

// shows reports whether line begins with the words of shown, and with the same numbers as far as
// shown has digits. Half a last digit may go either way: a page rounds what was rounded before.
func shows(shown, line string) bool {
	words, wanted := strings.Fields(line), strings.Fields(shown)
	if len(words) < len(wanted) || len(wanted) == 0 {
		return false
	}
	for i, w := range wanted {
		a, b := simFigure.FindString(w), simFigure.FindString(words[i])
		if a == "" || b == "" {
			if w != words[i] {
				return false
			}
			continue
		}
		if strings.Replace(w, a, "", 1) != strings.Replace(words[i], b, "", 1) {
			return false
		}
		_, decimals, _ := strings.Cut(a, ".")
		if math.Abs(number(a)-number(b)) > 0.501*math.Pow10(-len(decimals)) {
			return false
		}
	}
	return true
}

func number(text string) float64 {
	n, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return math.NaN()
	}
	return n
}

// nearest returns the line that differs from shown only in its numbers, or least in these.
func nearest(shown string, lines []string) string {
	best, least := "nothing like it: weir sim printed no such line", math.Inf(1)
	words := func(text string) string {
		return strings.Join(strings.Fields(simFigure.ReplaceAllString(text, "0")), " ")
	}
	wanted := simFigure.FindAllString(shown, -1)
	for _, line := range lines {
		if !strings.HasPrefix(words(line), words(shown)) {
			continue
		}
		far := 0.0
		for i, n := range simFigure.FindAllString(line, len(wanted)) {
			a, b := number(wanted[i]), number(n)
			far += math.Abs(a-b) / max(a, b, 1e-9)
		}
		if far < least {
			best, least = strings.TrimSpace(line), far
		}
	}
	return best
}
