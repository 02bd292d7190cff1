//go:build integration

package weirredis

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"
)

// A document is replaced only by who has seen it, however many try at once.
func TestDocument(t *testing.T) {
	server := startRedis(t)
	s := open(t, Config{Addrs: []string{server.addr}})
	d := s.Document("quotas")
	ctx := context.Background()
	write := func(was, next string, want bool) {
		t.Helper()
		var old []byte
		if was != "" {
			old = []byte(was)
		}
		if ok, err := d.Write(ctx, old, []byte(next)); ok != want || err != nil {
			t.Errorf("%q for %q: %v %v, want %v", next, was, ok, err, want)
		}
	}
	if data, err := d.Read(ctx, nil); data != nil || err != nil {
		t.Fatalf("%q %v", data, err)
	}
	write("x", "a", false)
	write("", "a", true)
	write("", "b", false)
	write("a", "b\x00c", true)
	data, err := d.Read(ctx, nil)
	if err != nil || string(data) != "b\x00c" {
		t.Fatalf("%q %v", data, err)
	}
	if again, err := d.Read(ctx, data); err != nil || &again[0] != &data[0] {
		t.Errorf("%q %v: not what is known", again, err)
	}
	if other, err := s.Document("other").Read(ctx, data); err != nil || other != nil {
		t.Errorf("%q %v", other, err)
	}
	for _, next := range [][]byte{nil, make([]byte, MaxDocument+1)} {
		if _, err := d.Write(ctx, data, next); err == nil {
			t.Errorf("%d bytes are taken", len(next))
		}
	}

	const writers, each = 4, 25
	var all sync.WaitGroup
	for range writers {
		all.Go(func() {
			for done := 0; done < each; {
				was, err := d.Read(ctx, nil)
				if err != nil {
					t.Error(err)
					return
				}
				ok, err := d.Write(ctx, was, append(bytes.Clone(was), '.'))
				if err != nil {
					t.Error(err)
					return
				}
				if ok {
					done++
				}
			}
		})
	}
	all.Wait()
	if got, err := d.Read(ctx, nil); err != nil || len(got) != len(data)+writers*each {
		t.Errorf("%d bytes, want %d: a write is lost (%v)", len(got), len(data)+writers*each, err)
	}
	server.ask(t, fmt.Sprintf("SET %s what", d.key))
	var fault *Error
	if _, err := d.Read(ctx, nil); !errors.As(err, &fault) || fault.Reason != Invalid {
		t.Errorf("what somebody else wrote: %v", err)
	}
	server.kill(t)
	short, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if _, err := d.Read(short, nil); err == nil {
		t.Error("read from a server that is gone")
	}
}
