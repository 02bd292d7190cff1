package live

import (
	"strings"
	"testing"
	"time"
)

// A class is judged by what came of it while all were there, beside what it had
// alone, and by its share of what was answered.
func TestOrderFigures(t *testing.T) {
	row := orderRows()[2] // S14
	o := orderRun{row: &row, capacity: 1, warm: time.Second, stage: 4 * time.Second}
	for i := range row.classes {
		alone := []Record{{Due: 2 * time.Second, Answer: OK, Latency: ms(10)}}
		crowd := []Record{
			{Due: 5500 * time.Millisecond, Answer: OK, Latency: ms(500)}, // everybody has just come: not judged
			{Due: 7 * time.Second, Answer: Refused, Latency: ms(1)},
			{Due: 8 * time.Second, Answer: GaveUp, Latency: ms(30)},
		}
		for range i + 1 {
			crowd = append(crowd, Record{Due: 9 * time.Second, Answer: OK, Latency: ms(20)})
		}
		o.records = append(o.records, append(alone, crowd...))
	}
	f := o.figures()
	one := f[0] // one of six answers, and a seventh is its share
	if one.Sent != 3 || one.Served != 1./3 || one.Refused != 1./3 || one.P99 != 30 || one.Alone != 10 || one.Goodput != 1.5 {
		t.Errorf("%+v", one)
	}
	for i, want := range []float64{1./6*7 - 1, 1./3*7/2 - 1, 1 - 1./2*7/4} {
		if off := f[i].OffShare; off < want-1e-9 || off > want+1e-9 {
			t.Errorf("class %d is off its share by %v, want %v", i, off, want)
		}
	}
	if o.void() != "" {
		t.Errorf("void: %s", o.void())
	}
	o.records[0][0].Late = true
	if !strings.Contains(o.void(), "sends late") {
		t.Errorf("a send in twenty was late: %q", o.void())
	}
}

func TestOrderReport(t *testing.T) {
	r := newResults(Plan{})
	r.orderCell("S22", guardUntold, "health").Rounds = []OrderFigures{{Served: 0.5, P99: 30}, {Served: 0.1, P99: 50}, {Served: 0.2, P99: 40}}
	r.orderCell("S12", guardWeir, "critical").Void = 1
	r.orderCell("S12", guardFixed, "critical").Rounds = []OrderFigures{{Served: 1, P99: 110, Alone: 100}}
	r.judge()
	report := r.Markdown()
	for _, want := range []string{
		"| S12 | weir | critical | void |", "S12, critical of weir (1)",
		"| S12 | fixed | critical | 1.0000 | 0.0 | 110 | 100 | 0.000 | 0.00 | served 1 ≥ 1 ✓; p99/alone 1.1 ≤ 1.2 ✓ |",
		"| S22 | weir, not told | health | 0.2000 (0.1000–0.5000) | 0.0 | 40 (30–50) |", "served 0.2 ≥ 1 ✗; p99 ms 40 ≤ 20 ✗ |",
	} {
		if !strings.Contains(report, want) {
			t.Errorf("no %q in\n%s", want, report)
		}
	}
	if strings.Index(report, "| S12 | weir") > strings.Index(report, "| S12 | fixed") {
		t.Error("not in the order of the guards")
	}
}
