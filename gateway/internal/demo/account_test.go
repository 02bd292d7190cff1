package demo

import (
	"flag"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/loadgen"
	"github.com/weir-go/weir/sim"
)

func tally(ok, refused, gaveUp int64) loadgen.Tally {
	t := loadgen.Tally{Offered: ok + refused + gaveUp, OK: ok, Refused: refused, GaveUp: gaveUp}
	for range ok {
		t.Admitted.Record(100 * time.Millisecond)
	}
	for range gaveUp {
		t.Admitted.Record(patience)
	}
	return t
}

// story is a load of which each second went the same way within its step.
func story() *account {
	a := newAccount(400, patience)
	for i, load := range steps {
		for range 2 {
			s := second{step: i, limit: 20, with: tally(200, 0, 0), without: tally(200, 0, 0)}
			if load > 1 {
				s.with, s.without = tally(390, int64(400*load)-390, 0), tally(0, 0, int64(400*load))
			}
			if i == len(steps)-1 {
				s.without = tally(0, 0, 200)
			}
			a.add(&s)
		}
	}
	return a
}

func TestConclusion(t *testing.T) {
	a := story()
	got := a.conclusion() + "\n" + a.verdict(a.figures(), "")
	if want := "\nAfterwards, at 0.5x again: 200 of about 200 a second in time with weir, 0 without.\nAt 3x: 390 of about 400 a second in time with weir, 0 without.\n"; !strings.HasSuffix(got, want) {
		t.Errorf("the end is not %q:\n%s", want, got)
	}
	for _, want := range []string{" 1-2     0.5x    200 |   200", " 7-8       3x   1200 |   390 "} {
		if !strings.Contains(got, want) {
			t.Errorf("no row is %q:\n%s", want, got)
		}
	}
	if strings.Contains(got, "void") {
		t.Errorf("no second was void:\n%s", got)
	}
}

func TestVoidSecondsCountForNeither(t *testing.T) {
	a := story()
	before := a.steps[3].with.OK
	bad := second{step: 3, with: tally(1000, 0, 0), without: tally(1000, 0, 0)}
	bad.without.LateSends = 21
	if !bad.void() {
		t.Fatal("2.1 % late sends on one side, and the second is not void")
	}
	a.add(&bad)
	if a.steps[3].with.OK != before || a.steps[3].seconds != 2 {
		t.Error("a void second was counted")
	}
	if got := a.conclusion(); !strings.Contains(got, "1 of 11 seconds are void") {
		t.Errorf("the conclusion does not mention the void second:\n%s", got)
	}
}

// A generator that stands still for longer than a second takes leaves nothing
// late in it, and nothing at all.
func TestSecondsNotComeToAreVoid(t *testing.T) {
	for _, tt := range []struct {
		offered int64
		void    bool
		behind  float64
	}{{0, true, 1}, {200, true, 0.5}, {290, false, 0}, {400, false, 0}, {520, false, 0}} {
		s := second{step: 3, due: 400, with: tally(400, 0, 0), without: tally(tt.offered, 0, 0)}
		if s.void() != tt.void || s.behind() != tt.behind {
			t.Errorf("%d offered of 400: void %v, %v behind; want %v, %v", tt.offered, s.void(), s.behind(), tt.void, tt.behind)
		}
	}
	if s := (second{due: 20, with: tally(20, 0, 0)}); !s.void() {
		t.Error("none offered of 20, and the second counts")
	}
}

func TestConclusionOfNothing(t *testing.T) {
	a := newAccount(400, patience)
	if got := a.conclusion() + a.verdict(nil, ""); strings.Contains(got, "NaN") || strings.Contains(got, "At 3x") {
		t.Errorf("conclusion of an empty account:\n%s", got)
	}
}

// TestTableSoFar: a load that ends early has no rows for what it never came to.
func TestTableSoFar(t *testing.T) {
	a := newAccount(400, patience)
	good := second{step: 0, limit: 20, with: tally(200, 0, 0), without: tally(200, 0, 0)}
	a.add(&good)
	a.add(&second{step: 1, with: loadgen.Tally{Offered: 10, Unsent: 1}})
	rows := strings.TrimPrefix(table(a.figures()), header("seconds"))
	if strings.Count(rows, "\n") != 2 || !strings.Contains(rows, " 1       0.5x    200 |") || !strings.Contains(rows, " 2       0.9x   void |") {
		t.Errorf("rows:\n%s\nwant one for the step that went well and one for the step whose second is void", rows)
	}
}

func TestScreen(t *testing.T) {
	sec := second{step: 3, limit: 17, with: tally(390, 810, 0), without: tally(0, 0, 1200)}
	var plain, terminal strings.Builder
	s := newScreen(&Options{Out: &plain}, newAccount(400, patience))
	s.show(12, &sec)
	s.show(13, &second{step: 3, with: loadgen.Tally{Offered: 10, Unsent: 1}})
	for _, want := range []string{" 12        3x   1200 |   390", " 68 %", " 17 |", ">500 ms 100 %", " 13        3x   void |"} {
		if !strings.Contains(plain.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, plain.String())
		}
	}
	if strings.Contains(plain.String(), "\x1b") {
		t.Error("escape sequences where there is no terminal")
	}

	s = newScreen(&Options{Out: &terminal, Terminal: true}, newAccount(400, patience))
	s.show(12, &sec)
	first := strings.Count(terminal.String(), "\n")
	terminal.Reset()
	s.show(13, &second{step: 3, with: loadgen.Tally{Offered: 10, Unsent: 1}})
	if got := strings.Count(terminal.String(), "\n"); got != first || !strings.HasPrefix(terminal.String(), "\x1b[") {
		t.Errorf("redrawn with %d lines over %d:\n%q", got, first, terminal.String())
	}
}

// A load of which some seconds are void is played again in virtual time, where the gate
// shows what it does on any machine; one without void seconds is not.
func TestVoidSecondsAreSimulated(t *testing.T) {
	if testing.Short() {
		t.Skip("a simulation takes ten times as long under the race detector; run without -short")
	}
	endsSimulated := regexp.MustCompile(`\nAt 3x, simulated: 3[0-2][0-9] of about [0-9]+ a second in time with weir, 0 without\.\n$`).MatchString
	var out strings.Builder
	o := Options{Out: &out}
	if err := o.setDefaults(); err != nil {
		t.Fatal(err)
	}
	a := story()
	if err := o.conclude(t.Context(), a); err != nil || strings.Contains(out.String(), "SIMULATED") {
		t.Errorf("%v, simulated for nothing:\n%s", err, out.String())
	}
	out.Reset()
	a.add(&second{step: 3, with: loadgen.Tally{Offered: 10, Unsent: 1}})
	err := o.conclude(t.Context(), a)
	_, rest, found := strings.Cut(out.String(), "1 of 11 seconds are void")
	measured, simulated, again := strings.Cut(rest, "\n\nSIMULATED: ")
	if err != nil || !found || !again || !strings.HasSuffix(measured, "\nAt 3x: 390 of about 400 a second in time with weir, 0 without.") || !strings.Contains(simulated, " 61-80     3x ") || !endsSimulated(simulated) {
		t.Errorf("%v\n%s", err, out.String())
	}
	out.Reset()
	a = newAccount(320, patience)
	a.add(&second{step: 3, with: loadgen.Tally{Offered: 10, Unsent: 1}})
	if err := o.conclude(t.Context(), a); err != nil || !endsSimulated(out.String()) {
		t.Errorf("where no second at 3x counts, the end is not simulated: %v\n%s", err, out.String())
	}
	for _, st := range must(o.simulate(t.Context(), sim.PolicyRef{Name: "none"})) {
		if st.From >= 3*o.virtualStep() && st.Goodput > 1 {
			t.Errorf("without a gate %.0f requests a second are answered in time from %v to %v", st.Goodput, st.From, st.To)
		}
	}
}

var update = flag.Bool("update", false, "write the screen of the docs anew; read the diff before committing it")

// The guide shows what a load in virtual time comes to, and it still does.
func TestScreenOfTheDocs(t *testing.T) {
	if testing.Short() {
		t.Skip("a simulation takes ten times as long under the race detector; run without -short")
	}
	const page, begin, end = "../../../docs/start/demo.md", "    SIMULATED:", "\n\nNext:"
	var out strings.Builder
	o := Options{Out: &out}
	if err := o.setDefaults(); err != nil {
		t.Fatal(err)
	}
	a := newAccount(DefaultCapacity, patience)
	a.add(&second{step: 3, with: loadgen.Tally{Offered: 10, Unsent: 1}})
	if err := o.conclude(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	_, screen, _ := strings.Cut(out.String(), "SIMULATED:")
	screen = strings.TrimRight(regexp.MustCompile(`(?m)^(.)`).ReplaceAllString("SIMULATED:"+screen, "    $1"), "\n")
	text := string(must(os.ReadFile(page)))
	from, to := strings.Index(text, begin), strings.LastIndex(text, end)
	if from < 0 || to < from {
		t.Fatalf("%s has no screen that begins with %q and ends before %q", page, begin, end)
	}
	if text[from:to] == screen {
		return
	}
	if !*update {
		t.Fatalf("%s shows\n%s\nand the demo\n%s\nrun go test ./internal/demo -run ScreenOfTheDocs -update in gateway/", page, text[from:to], screen)
	}
	if err := os.WriteFile(page, []byte(text[:from]+screen+text[to:]), 0o644); err != nil {
		t.Fatal(err)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
