package envoy

import (
	"context"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/weir-go/weir/gateway/internal/await"
	"github.com/weir-go/weir/policy"
)

// Whatever an Envoy sends, in whatever order, and whenever it ends a stream: every slot comes back, and each stream counts once.
func TestChaos(t *testing.T) {
	const workers, streams = 12, 150
	seed := uint64(1)
	if os.Getenv("WEIR_LONG") != "" {
		seed = rand.Uint64()
	}
	t.Log("seed", seed)
	spec := limited(5, 8)
	l := spec.Gates["api"].Limit
	l.Queue.MaxWait = policy.Duration(20 * time.Millisecond)
	spec.Gates["quota"] = policy.GateSpec{Quota: &policy.QuotaSpec{QuotaLimitSpec: policy.QuotaLimitSpec{Rate: "5000/s", Burst: 50}}}
	spec.Routes[0].Gates = []string{"quota", "api"}
	b := newBench(t, spec, func(b *bench) { b.silence, b.longest = 50*time.Millisecond, 100*time.Millisecond })
	var all sync.WaitGroup
	for i := range workers {
		random := rand.New(rand.NewPCG(seed, uint64(i)))
		all.Go(func() {
			for range streams {
				b.chaosStream(t, random)
			}
		})
	}
	all.Wait()
	eventually(t, "every slot is free, and nobody waits", func() bool {
		for _, g := range b.policy.Gates() {
			if s := g.Snapshot(); s.InFlight != 0 || s.Waiting != 0 {
				return false
			}
		}
		return b.streams.Snapshot().Open == 0
	})
	eventually(t, "each stream has ended in one way", func() bool {
		var ended uint64
		for _, n := range b.Snapshot().Ended {
			ended += n
		}
		return b.Snapshot().Open == 0 && ended == uint64(b.gone.Load())
	})
	if b.gate(t).Admitted == 0 {
		t.Errorf("none of %d was admitted: nothing is shown", workers*streams)
	}
}

// chaosStream opens a stream, and sends and reads at random.
func (b *bench) chaosStream(t *testing.T, random *rand.Rand) {
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	s, err := b.client.Process(ctx)
	if err != nil {
		t.Error(err)
		return
	}
	usual := []*extproc.ProcessingRequest{asks("x-request-timeout", "0.05"), says(random.IntN(2) == 0, ":status", "200")}
	odd := []*extproc.ProcessingRequest{
		asks(), asks(":path", "no path"), asks("content-length", "x"), says(true, ":status", "503"), says(false, ":status", "200", "content-type", "text/event-stream"), says(true), new(extproc.ProcessingRequest),
		{Request: &extproc.ProcessingRequest_RequestBody{RequestBody: &extproc.HttpBody{Body: []byte("x"), EndOfStream: random.IntN(2) == 0}}},
		{Request: &extproc.ProcessingRequest_ResponseBody{ResponseBody: &extproc.HttpBody{EndOfStream: true}}},
		{Request: &extproc.ProcessingRequest_RequestTrailers{RequestTrailers: new(extproc.HttpTrailers)}},
		{Request: &extproc.ProcessingRequest_ResponseTrailers{ResponseTrailers: new(extproc.HttpTrailers)}},
	}
	for range random.IntN(6) {
		var m *extproc.ProcessingRequest
		if len(usual) > 0 && random.IntN(4) > 0 {
			m, usual = usual[0], usual[1:]
		} else {
			m = odd[random.IntN(len(odd))]
		}
		if s.Send(m) != nil {
			break
		}
		if random.IntN(3) > 0 {
			read := time.AfterFunc(time.Duration(random.IntN(60))*time.Millisecond, cancel)
			_, err := s.Recv()
			read.Stop()
			if err != nil {
				return
			}
		}
	}
	if random.IntN(2) == 0 {
		_ = s.CloseSend()
		_, _ = s.Recv()
	}
}
