//go:build integration

package weirredis

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
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

// reads fails unless the document is soon what is wanted.
func (d *Document) reads(t *testing.T, want string) {
	t.Helper()
	var data []byte
	eventually(t, fmt.Sprintf("the document is %q", want), func() bool {
		var err error
		data, err = d.Read(t.Context(), nil)
		return err == nil && string(data) == want
	})
}

// write replaces the document, and fails unless that is done. On a busy machine an answer may come too late: then
// the document says what was done.
func (d *Document) write(t *testing.T, was, next string) {
	t.Helper()
	var old []byte
	if was != "" {
		old = []byte(was)
	}
	eventually(t, fmt.Sprintf("%q for %q", next, was), func() bool {
		ok, err := d.Write(t.Context(), old, []byte(next))
		if ok || errors.Is(err, ErrUnavailable) {
			return ok
		}
		data, readErr := d.Read(t.Context(), nil)
		if readErr == nil && string(data) != next {
			t.Fatalf("%q for %q: %v, %v; there is %q", next, was, ok, err, data)
		}
		return readErr == nil
	})
}

// writeAfter writes once the server is there again, over what was there before or what
// may have been written since.
func (d *Document) writeAfter(t *testing.T, before, perhaps string) {
	t.Helper()
	const next = "next"
	eventually(t, "it is written", func() bool {
		data, err := d.Read(t.Context(), nil)
		if err != nil {
			return false
		}
		if got := string(data); got != before && got != perhaps && got != next {
			t.Fatalf("the document is %q, neither %q nor %q", got, before, perhaps)
		}
		ok, err := d.Write(t.Context(), data, []byte(next))
		return ok && err == nil
	})
	d.reads(t, next)
}

// A server that stands still is asked once, however many read; all of them are told in
// time, and what was sent is done when it goes on, at most once.
func TestDocumentStandsStill(t *testing.T) {
	server := startRedis(t)
	s := open(t, Config{Addrs: []string{server.addr}, Deadline: 300 * time.Millisecond, DialTimeout: 200 * time.Millisecond})
	d := s.Document("quotas")
	d.write(t, "", "a")
	server.signal(t, syscall.SIGSTOP)
	var e *Error
	if ok, err := d.Write(t.Context(), []byte("a"), []byte("b")); ok || !errors.As(err, &e) || !e.Charged() || !errors.Is(err, ErrUnavailable) {
		t.Errorf("%v, %v, want that it may have been written", ok, err)
	}
	const readers = 100
	before := runtime.NumGoroutine()
	var all sync.WaitGroup
	var counted atomic.Bool
	for range readers {
		all.Go(func() {
			for n := 0; n < 3 || !counted.Load(); n++ {
				begin := time.Now()
				if _, err := d.Read(context.Background(), nil); !errors.Is(err, ErrUnavailable) {
					t.Errorf("%v, want that the server is not there", err)
				}
				if took := time.Since(begin); took > 30*time.Second { // of 600 ms; what is wrong takes for ever
					t.Errorf("a read took %v", took)
				}
			}
		})
	}
	t.Cleanup(func() { counted.Store(true) }) // so that they end whatever is found
	eventually(t, "all readers are there", func() bool { return runtime.NumGoroutine() >= before+readers })
	if n := runtime.NumGoroutine() - before; n > readers+10 { // the script's, the client's
		t.Errorf("%d goroutines for %d readers", n, readers)
	}
	counted.Store(true)
	all.Wait()
	server.signal(t, syscall.SIGCONT)
	d.writeAfter(t, "a", "b")
}

// A caller who leaves hears of it at once, and the next waits for what is under way.
func TestDocumentCallerLeaves(t *testing.T) {
	server := startRedis(t)
	s := open(t, Config{Addrs: []string{server.addr}, DialTimeout: 10 * time.Second})
	d := s.Document("quotas")
	d.write(t, "", "a")
	server.signal(t, syscall.SIGSTOP)
	for i := range 3 {
		ctx, leave := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { _, err := d.Read(ctx, nil); done <- err }()
		eventually(t, "one is under way", func() bool { return len(s.document) == 1 })
		leave()
		var e *Error
		err := <-done
		if !errors.Is(err, context.Canceled) || !errors.As(err, &e) || e.Charged() != (i == 0) {
			t.Errorf("%d: %v, want that the context is over, and that only the first was sent", i, err)
		}
	}
	server.signal(t, syscall.SIGCONT)
	d.reads(t, "a")
}

// A server that answers too late is not waited for, and has done what reached it, once.
func TestDocumentSlow(t *testing.T) {
	server := startRedis(t)
	slow := startSlowly(t, server)
	s := open(t, Config{Addrs: []string{slow.addr}, Deadline: 300 * time.Millisecond, DialTimeout: 200 * time.Millisecond})
	d := s.Document("quotas")
	d.write(t, "", "a")
	slow.delay.Store(int64(time.Second))
	var e *Error
	if _, err := d.Write(t.Context(), []byte("a"), []byte("b")); !errors.As(err, &e) || !e.Charged() {
		t.Errorf("%v, want that it may have been written", err)
	}
	if _, err := d.Read(t.Context(), nil); !errors.Is(err, ErrUnavailable) {
		t.Errorf("%v, want that the server is too slow", err)
	}
	slow.delay.Store(0)
	d.writeAfter(t, "a", "b")
}

// A document of a server that has never been reached says where it was looked for, and what came of it.
func TestDocumentNotThereYet(t *testing.T) {
	server := startRedis(t)
	server.kill(t)
	s := open(t, Config{Addrs: []string{server.addr}})
	_, err := s.Document("quotas").Read(t.Context(), nil)
	var e *Error
	if !errors.As(err, &e) || e.Reason != Down || e.Charged() || !errors.Is(err, syscall.ECONNREFUSED) || !strings.Contains(err.Error(), server.addr) {
		t.Errorf("%v, want down, with the address and that it refuses", err)
	}
}

// A server that comes back without the document has none: whoever knows what it was may
// write it again, and nobody else.
func TestDocumentServerEmpty(t *testing.T) {
	each(t, func(t *testing.T, start func(...string) *server) {
		server := start()
		s := open(t, Config{Addrs: []string{server.addr}})
		d := s.Document("quotas")
		d.write(t, "", "a")
		server.kill(t)
		if _, err := d.Read(t.Context(), []byte("a")); !errors.Is(err, ErrUnavailable) {
			t.Errorf("%v, want that the server is gone", err)
		}
		server.start(t)
		eventually(t, "no document", func() bool {
			data, err := d.Read(t.Context(), []byte("a"))
			return err == nil && data == nil
		})
		eventually(t, "an answer", func() bool { // each of the client's connections has to break first
			ok, err := d.Write(t.Context(), []byte("a"), []byte("b"))
			if ok {
				t.Error("written over what is not there")
			}
			return err == nil
		})
		eventually(t, "it is written again", func() bool {
			ok, err := d.Write(t.Context(), nil, []byte("a"))
			return ok && err == nil
		})
		d.reads(t, "a")
	})
}

// What somebody else has put there is neither read nor written over, and takes nothing
// else down; a server that forgets its scripts loses nothing.
func TestDocumentPlanted(t *testing.T) {
	server := startRedis(t)
	s := open(t, Config{Addrs: []string{server.addr}})
	d := s.Document("quotas")
	for what, plant := range map[string]string{
		"a list": "RPUSH %s x", "a set": "SADD %s x", "a hash": "HSET %s x y", "a text": "SET %s x", "a digest alone": "SET %s " + digest([]byte("x")),
	} {
		server.ask(t, "DEL "+d.key)
		server.ask(t, fmt.Sprintf(plant, d.key))
		var e *Error
		if _, err := d.Read(t.Context(), nil); !errors.As(err, &e) || e.Reason != Invalid {
			t.Errorf("%s: %v, want that it is no document", what, err)
		}
		if ok, err := d.Write(t.Context(), []byte("a"), []byte("b")); ok {
			t.Errorf("%s is written over (%v)", what, err)
		}
		if ok, err := d.Write(t.Context(), nil, []byte("b")); ok {
			t.Errorf("%s is taken for nothing (%v)", what, err)
		}
		takeOne(t, s, vast)
		server.ask(t, "SCRIPT FLUSH")
	}
	server.ask(t, "DEL "+d.key)
	d.write(t, "", "a")
	d.reads(t, "a")
}

// A document on a cluster is at one node: while that stands still it cannot be had, and
// buckets at the others can. It moves with its slot.
func TestDocumentCluster(t *testing.T) {
	t.Parallel()
	nodes := startCluster(t, func(o ...string) *server { return startRedis(t, o...) },
		"--cluster-require-full-coverage", "no")
	s := open(t, Config{URL: "redis://weir:secret@" + nodes[0].addr, Deadline: 200 * time.Millisecond, DialTimeout: 200 * time.Millisecond})
	d := s.Document("quotas")
	eventually(t, "the client knows all nodes", func() bool {
		_, err := d.Write(t.Context(), nil, []byte("a"))
		return err == nil
	})
	d.reads(t, "a")
	slot := nodes[0].slot(t, d.key)
	from := nodes[min(int(slot)/5461, 2)]
	from.signal(t, syscall.SIGSTOP)
	if _, err := d.Read(t.Context(), nil); !errors.Is(err, ErrUnavailable) {
		t.Errorf("%v, want that the node is not there", err)
	}
	for i := 0; ; i++ {
		if key := fmt.Sprint(i); nodeOf(nodes, key) != from {
			eventually(t, "a decision by another node", func() bool { return takeKey(s, key) == nil })
			break
		}
	}
	from.signal(t, syscall.SIGCONT)
	d.reads(t, "a")

	to := nodes[0]
	if to == from {
		to = nodes[1]
	}
	to.ask(t, fmt.Sprintf("CLUSTER SETSLOT %d IMPORTING %s", slot, from.id(t)))
	from.ask(t, fmt.Sprintf("CLUSTER SETSLOT %d MIGRATING %s", slot, to.id(t)))
	d.write(t, "a", "b")
	from.ask(t, "MIGRATE 127.0.0.1 "+to.port()+" "+d.key+" 0 5000")
	d.write(t, "b", "c") // by way of ASK
	for _, n := range []*server{to, from} {
		n.ask(t, fmt.Sprintf("CLUSTER SETSLOT %d NODE %s", slot, to.id(t)))
	}
	d.write(t, "c", "d") // by way of MOVED
	d.reads(t, "d")
}

// After a failover the document is what the replica had, and can be written again.
func TestDocumentFailover(t *testing.T) {
	t.Parallel()
	p := startPair(t, nil)
	s := open(t, p.config(t, nil))
	d := s.Document("quotas")
	d.write(t, "", "a")
	p.ready(t, d.key)
	p.lose(t, p.sentinel)
	eventually(t, "the document from the new master", func() bool {
		data, err := d.Read(t.Context(), nil)
		return err == nil && string(data) == "a"
	})
	eventually(t, "another document", func() bool {
		ok, err := d.Write(t.Context(), []byte("a"), []byte("b"))
		return ok && err == nil
	})
	if answer := p.replica.ask(t, "GET "+d.key); !strings.Contains(answer, digest([]byte("b"))) {
		t.Errorf("the new master has %q", answer)
	}
}

// After Close nothing is sent.
func TestDocumentClosed(t *testing.T) {
	s := open(t, Config{Addrs: []string{startRedis(t).addr}})
	d := s.Document("quotas")
	d.write(t, "", "a")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	var e *Error
	if _, err := d.Read(t.Context(), nil); !errors.As(err, &e) || e.Reason != Closed {
		t.Errorf("%v, want that the store is closed", err)
	}
}
