package kafka

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weir-go/weir/gateway/internal/await"
	"github.com/weir-go/weir/policy"
)

// A large request arrives as it was sent, also while its connection is let go, whether the kernel moves it or the gateway. What
// follows it is not part of it.
func TestLargeRequests(t *testing.T) {
	for name, busy := range map[string]int{"spliced": 0, "copied": cap(splices)} {
		t.Run(name, func(t *testing.T) {
			for range busy {
				splices <- struct{}{}
			}
			defer func() {
				for range busy {
					<-splices
				}
			}()
			r := newRig(t, policy.Off, time.Minute)
			client, broker := r.pair()
			for _, c := range []interface{ SetDeadline(time.Time) error }{client, broker} {
				if err := c.SetDeadline(time.Now().Add(await.Patience)); err != nil {
					t.Fatal(err)
				}
			}
			first, second := produce(8, 1, 3<<20), produce(8, 1, 2<<20)
			for _, b := range [][]byte{first, second} {
				for i := len(b) / 2; i < len(b); i++ {
					b[i] = byte(rand.Uint32()) // records, which nobody looks at
				}
			}
			const part = 1 << 20
			sent := make(chan error, 1)
			rest := make(chan struct{})
			go func() {
				_, err1 := client.Write(first)
				_, err2 := client.Write(second[:part])
				<-rest
				_, err3 := client.Write(second[part:])
				sent <- errors.Join(err1, err2, err3)
			}()
			got := make([]byte, len(first)+part)
			if _, err := io.ReadFull(broker, got); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- r.server.Shutdown(context.Background()) }()
			await.That(t, "the connection is let go", func() bool {
				all := r.server.all()
				return len(all) == 0 || all[0].leaving()
			})
			close(rest)
			got = append(got, make([]byte, len(second)-part)...)
			if _, err := io.ReadFull(broker, got[len(first)+part:]); err != nil {
				t.Fatal(err)
			}
			if err := <-sent; err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, append(first, second...)) {
				t.Error("the broker has got something else")
			}
			for range 2 {
				r.write(broker, answer(8, kmsg.NewPtrProduceResponse()))
				r.frame(client)
			}
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}

// A client that goes within a large request takes its broker's connection along.
func TestLargeRequestEndsEarly(t *testing.T) {
	r := newRig(t, policy.Off, time.Minute)
	client, broker := r.pair()
	if err := broker.SetDeadline(time.Now().Add(await.Patience)); err != nil {
		t.Fatal(err)
	}
	request := produce(8, 1, 1<<20)
	r.write(client, request[:1<<19])
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(broker); err != nil || !bytes.Equal(got, request[:1<<19]) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}
