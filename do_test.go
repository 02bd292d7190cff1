package weir_test

import (
	"context"
	"testing"

	"github.com/weir-go/weir"
)

func TestOperationIsDemotedWhenItComesBack(t *testing.T) {
	const n, l = weir.Normal, weir.Background
	tests := []struct {
		name  string
		after int
		work  weir.Work
		want  []weir.Priority
	}{
		{"off by default", 0, weir.Work{}, []weir.Priority{n, n, n, n, n}},
		{"the fourth time", 3, weir.Work{}, []weir.Priority{n, n, n, l, l}},
		{"high too", 1, weir.Work{Priority: weir.High}, []weir.Priority{weir.High, l, l}},
		{"not if critical", 1, weir.Work{Priority: weir.Critical}, []weir.Priority{weir.Critical, weir.Critical}},
		{"not if exempt", 1, weir.Work{Exempt: true}, []weir.Priority{n, n, n}},
		{"background stays", 1, weir.Work{Priority: l}, []weir.Priority{l, l}},
		{"nor is it raised", 1, weir.Work{Priority: -5}, []weir.Priority{-5, -5}},
	}
	for _, tt := range tests {
		var asked []weir.Priority
		gate := gateFunc(func(w weir.Work) (weir.Permit, error) {
			asked = append(asked, w.Priority)
			return weir.Permit{}, nil
		})
		op := weir.Operation{DemoteAfter: tt.after}
		for range tt.want {
			if _, err := op.Admit(t.Context(), gate, tt.work); err != nil {
				t.Fatal(err)
			}
		}
		for i, p := range asked {
			if p != tt.want[i] {
				t.Errorf("%s: time %d asked as %v, want %v", tt.name, i+1, p, tt.want[i])
			}
		}
	}
}

// What was refused, and what took no slot, was no admission.
func TestOperationCountsWhatTookASlot(t *testing.T) {
	l := newLimit(t, "l", 1)
	op := weir.Operation{DemoteAfter: 1}
	noWait := weir.Work{MaxWait: weir.NoWait}
	p, err := op.Admit(t.Context(), l, noWait)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Done(weir.OK)
	if _, err := op.Admit(t.Context(), l, noWait); err == nil {
		t.Error("two admitted")
	}
	ctx := weir.WithPermit(context.Background(), l, p)
	if _, err := op.Admit(ctx, l, noWait); err != nil {
		t.Error(err)
	}
	if n := op.Admitted(); n != 1 {
		t.Errorf("%d admissions, want 1", n)
	}
}
