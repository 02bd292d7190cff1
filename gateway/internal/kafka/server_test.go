package kafka

import (
	"net"
	"runtime"
	"testing"
	"time"
	"weak"

	"github.com/weir-go/weir/gateway/internal/accept"
	"github.com/weir-go/weir/gateway/internal/await"
	"github.com/weir-go/weir/policy"
)

// A server that another one has taken the place of is forgotten, however many follow each other.
func TestReplacedServerIsForgotten(t *testing.T) {
	r := newRig(t, policy.Off, time.Minute)
	o := r.server.opts
	o.Open = func(string, *accept.Listener) (*accept.Listener, error) { return nil, net.ErrClosed }
	var replaced []weak.Pointer[Server]
	last := r.server
	for range 3 {
		o.Previous = last
		next, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		next.nodes.Advertised(1, "127.0.0.1", 9092)
		next.serveNodes()
		replaced = append(replaced, weak.Make(next))
		if err := last.Close(); err != nil {
			t.Fatal(err)
		}
		last = next
	}
	o.Previous = nil
	await.That(t, "the servers before the last are forgotten", func() bool {
		runtime.GC()
		return replaced[0].Value() == nil && replaced[1].Value() == nil
	})
	if replaced[2].Value() != last {
		t.Error("and so is the last")
	}
	_ = last.Close()
}
