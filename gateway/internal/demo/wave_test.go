package demo

import (
	"strings"
	"testing"
)

// The whole picture, a column a second: what weir answers stays at the capacity, and a
// second that does not count is marked.
func TestWave(t *testing.T) {
	var all []moment
	for i, load := range steps {
		for range 2 {
			m := moment{offered: 320 * load, with: min(320, 320*load), without: 320 * load}
			if load > 1 || i == len(steps)-1 {
				m.without = 0
			}
			all = append(all, m)
		}
	}
	all[5].void = true
	got := wave(all, 12, 320, false)
	if golden := strings.Join([]string{
		"   req/s  with weir: # answered in time, . asked for",
		"     960 |            ....        |",
		"         |            ....        |",
		"         |        ..  ....        |",
		"     320 |    ######  ####        |",
		"         |##########??########    |",
		"   req/s  without weir",
		"     960 |            ....        |",
		"         |            ....        |",
		"         |        ..  ....        |",
		"     320 |    ####..  ....        |",
		"         |########..??........    |",
		"",
	}, "\n"); got != golden {
		t.Errorf("got\n%s\nwant\n%s", got, golden)
	}
	if strings.Contains(got, "\x1b") || !strings.Contains(wave(all, 12, 320, true), "\x1b[32m###") {
		t.Error("colours where none are wanted, or none where they are")
	}
}

// A long load has several seconds in a column, so that it fits on a terminal.
func TestWaveIsBounded(t *testing.T) {
	all := make([]moment, 300)
	for i := range all {
		all[i] = moment{offered: 100, with: 100, without: 50, void: i%2 == 0}
	}
	for _, n := range []int{0, 1, 299, 300} {
		for line := range strings.Lines(wave(all[:n], 300, 320, false)) {
			if len(line) > 80 {
				t.Errorf("%d columns: %s", len(line), line)
			}
		}
	}
	if columns := squeeze(all, 5); len(columns) != 60 || columns[0] != (moment{false, 100, 100, 50}) {
		t.Errorf("%d columns, the first %+v", len(columns), columns[0])
	}
	if columns := squeeze(all[:1], 5); !columns[0].void {
		t.Errorf("nothing but a void second is %+v", columns[0])
	}
}
