package weirkafka

import (
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weir-go/weir/limit"
)

// The permit of a record allocates nothing in addition to the client's allocations.
func TestProducerAllocates(t *testing.T) {
	g, err := limit.New(limit.Config{Name: "kafka", Limit: 10})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	p, r, ctx := &Producer{Gate: g}, &kgo.Record{Topic: "a"}, t.Context()
	if n := testing.AllocsPerRun(1000, func() {
		permit, err := p.admit(ctx, r)
		if err != nil {
			t.Fatal(err)
		}
		p.launch(permit, nil, false).land(r, nil)
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkProducer measures what a record costs above kgo's own Produce, with a fixed limit and room, on a
// cluster in this process. An iteration is a pair of runs, one after the other, with the same records and
// promise, in flushes of 1,000. It prints the median, the least and the most of the pairs' differences.
//
//	go test ./weirkafka -run '^$' -bench '^BenchmarkProducer$' -benchtime 41x
func BenchmarkProducer(b *testing.B) {
	const records, flush = 50_000, 1000
	fake, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "a"))
	if err != nil {
		b.Fatal(err)
	}
	defer fake.Close()
	client, err := kgo.NewClient(kgo.SeedBrokers(fake.ListenAddrs()...), kgo.MaxBufferedRecords(2*flush))
	if err != nil {
		b.Fatal(err)
	}
	defer client.Close()
	g, err := limit.New(limit.Config{Name: "kafka", Limit: 2 * flush})
	if err != nil {
		b.Fatal(err)
	}
	defer g.Close()
	p, ctx := &Producer{Client: client, Gate: g}, b.Context()
	batch := make([]kgo.Record, flush)
	value := []byte("a record of no great length")
	failed := 0
	promise := func(_ *kgo.Record, err error) {
		if err != nil {
			failed++
		}
	}
	run := func(produce func(*kgo.Record)) (nanoseconds, allocations float64) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		began := time.Now()
		for range records / flush {
			for i := range batch {
				batch[i] = kgo.Record{Topic: "a", Value: value}
				produce(&batch[i])
			}
			if err := client.Flush(ctx); err != nil {
				b.Fatal(err)
			}
		}
		took := time.Since(began)
		runtime.ReadMemStats(&after)
		return float64(took) / records, float64(after.Mallocs-before.Mallocs) / records
	}
	bare := func(r *kgo.Record) { client.Produce(ctx, r, promise) }
	gated := func(r *kgo.Record) {
		if err := p.Produce(ctx, r, promise); err != nil {
			b.Fatal(err)
		}
	}
	run(bare)
	run(gated)
	var base, time, allocs []float64
	for i := 0; b.Loop(); i++ {
		runtime.GC()
		var t0, t1, a0, a1 float64
		if i%2 == 0 {
			t0, a0 = run(bare)
			t1, a1 = run(gated)
		} else {
			t1, a1 = run(gated)
			t0, a0 = run(bare)
		}
		base, time, allocs = append(base, t0), append(time, t1-t0), append(allocs, a1-a0)
	}
	if n := g.Snapshot().InFlight; n != 0 || failed != 0 {
		b.Fatalf("%d in flight, %d failed", n, failed)
	}
	slices.Sort(base)
	slices.Sort(time)
	slices.Sort(allocs)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(base[len(base)/2], "ns-bare-median")
	b.ReportMetric(time[len(time)/2], "ns-above-median")
	b.ReportMetric(time[0], "ns-above-min")
	b.ReportMetric(time[len(time)-1], "ns-above-max")
	b.ReportMetric(allocs[len(allocs)/2], "allocs-above-median")
}
