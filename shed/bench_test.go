package shed_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/shed"
)

// What a decision costs: the goal is 60 ns and no allocation where work is let
// through.
func BenchmarkAdmit(b *testing.B) {
	for _, c := range []struct {
		name     string
		cfg      shed.Config
		pressure float64
		work     weir.Work
	}{
		{"anonymous", shed.Config{}, 0, weir.Work{}},
		{"user", shed.Config{}, 0, weir.Work{User: "4f1c2a9e-user"}},
		{"cursor", shed.Config{Cursor: &shed.Cursor{}}, 0, weir.Work{User: "4f1c2a9e-user"}},
		{"tenant 64 B", shed.Config{}, 0, weir.Work{Tenant: fmt.Sprintf("%064d", 7)}},
		{"user 10 KB", shed.Config{}, 0, weir.Work{User: fmt.Sprintf("%010240d", 7)}},
		{"exempt", shed.Config{}, 2, weir.Work{Exempt: true}},
		{"refused", shed.Config{}, 2, weir.Work{User: "4f1c2a9e-user"}},
	} {
		b.Run(c.name, func(b *testing.B) {
			gate := newBench(b, c.cfg)
			gate.at(c.pressure)
			b.ReportAllocs()
			for b.Loop() {
				p, err := gate.Admit(context.Background(), c.work)
				if err == nil {
					p.Done(weir.OK)
				}
			}
		})
	}
}

// Processors that decide at once, about users of their own and about one.
func BenchmarkAdmitParallel(b *testing.B) {
	for name, users := range map[string]int{"one user": 1, "1000 users": 1000} {
		b.Run(name, func(b *testing.B) {
			gate := newBench(b, shed.Config{})
			names := make([]string, users)
			for i := range names {
				names[i] = fmt.Sprint("user-", i)
			}
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for i := 0; pb.Next(); i++ {
					if _, err := gate.TryAdmit(weir.Work{User: names[i%users]}); err != nil {
						b.Error(err)
					}
				}
			})
		})
	}
}

// What the gate itself does a hundred times a second.
func BenchmarkStep(b *testing.B) {
	gate := newBench(b, shed.Config{Cursor: &shed.Cursor{}})
	b.ReportAllocs()
	for b.Loop() {
		gate.at(0.5)
	}
}

// Letting through and refusing allocate nothing.
func TestNoAllocations(t *testing.T) {
	for _, pressure := range []float64{0, 2} {
		gate := newBench(t, shed.Config{})
		gate.at(pressure)
		for _, w := range []weir.Work{{}, {User: "u"}, {Tenant: "t"}, {Exempt: true}} {
			n := testing.AllocsPerRun(100, func() {
				if p, err := gate.Admit(context.Background(), w); err == nil {
					p.Done(weir.OK)
				}
			})
			if n != 0 {
				t.Errorf("at a pressure of %v, %+v costs %v allocations", pressure, w, n)
			}
		}
	}
}
