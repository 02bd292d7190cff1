package weir_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/limit"
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

// In a chain an admission counts if it took a slot of any gate, whatever else its caller holds.
func TestOperationCountsInChains(t *testing.T) {
	a, b, c := newLimit(t, "a", 9), newLimit(t, "b", 9), newLimit(t, "c", 9)
	nothing := weir.All()
	held, err := weir.All(a, b).Admit(t.Context(), weir.Work{})
	if err != nil {
		t.Fatal(err)
	}
	defer held.Done(weir.OK)
	ctx := weir.WithPermit(t.Context(), weir.All(a, b), held)
	tests := []struct {
		gate weir.Gate
		want int64
	}{
		{weir.All(a, c), 1}, {weir.All(c, a), 1}, {weir.All(weir.All(a, c), b), 1}, {weir.All(nothing, c), 1},
		{weir.All(a, b), 0}, {weir.All(b, a), 0}, {weir.All(weir.All(b, a), b), 0}, {weir.All(nothing, a), 0}, {a, 0},
		{nothing, 1}, {weir.All(nothing, nothing), 1},
	}
	for i, tt := range tests {
		var op weir.Operation
		p, err := op.Admit(ctx, tt.gate, weir.Work{})
		if n := op.Admitted(); err != nil || n != tt.want {
			t.Errorf("case %d: %d admissions count, want %d; %v", i, n, tt.want, err)
		}
		p.Done(weir.OK)
	}
}

// Work that was done is OK, also if nobody waits for it any more.
func TestDoneAfterCancelIsOK(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want weir.Outcome
	}{{nil, weir.OK}, {context.Canceled, weir.Abandoned}, {errors.New("broken"), weir.Abandoned}} {
		var got []weir.Outcome
		g := weir.Must(limit.New(limit.Config{Limit: 1, Hooks: weir.Hooks{Done: func(_ string, o weir.Outcome, _ time.Duration) { got = append(got, o) }}}))
		ctx, cancel := context.WithCancel(t.Context())
		err := weir.Do(ctx, g, weir.Work{}, func(context.Context) error { cancel(); return tt.err })
		if err != tt.err || !slices.Equal(got, []weir.Outcome{tt.want}) {
			t.Errorf("%v is %v, %v; want %v", tt.err, got, err, tt.want)
		}
		g.Close()
	}
}
