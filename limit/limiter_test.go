package limit_test

import (
	"testing"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/limit"
)

func BenchmarkTryAdmit(b *testing.B) {
	l := weir.Must(limit.New(limit.Config{Name: "b", Limit: 16}))
	b.ReportAllocs()
	for b.Loop() {
		p, err := l.TryAdmit(weir.Work{})
		if err != nil {
			b.Fatal(err)
		}
		p.Done(weir.OK)
	}
}

func BenchmarkAdmit(b *testing.B) {
	l := weir.Must(limit.New(limit.Config{Name: "b", Limit: 16}))
	b.ReportAllocs()
	ctx := b.Context()
	for b.Loop() {
		p, err := l.Admit(ctx, weir.Work{})
		if err != nil {
			b.Fatal(err)
		}
		p.Done(weir.OK)
	}
}

func BenchmarkAdmitSampled(b *testing.B) {
	c := weir.Must(control.NewAIMD(control.AIMDConfig{}))
	l := weir.Must(limit.New(limit.Config{Name: "b", Controller: c}))
	b.ReportAllocs()
	for b.Loop() {
		p, err := l.TryAdmit(weir.Work{})
		if err != nil {
			b.Fatal(err)
		}
		p.Done(weir.OK)
	}
}

func BenchmarkRefuse(b *testing.B) {
	l := weir.Must(limit.New(limit.Config{Name: "b", Limit: 1}))
	_, err := l.TryAdmit(weir.Work{})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := l.TryAdmit(weir.Work{}); err == nil {
			b.Fatal(err)
		}
	}
}
