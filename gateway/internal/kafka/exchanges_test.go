package kafka

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weir-go/weir/gateway/internal/accept"
	"github.com/weir-go/weir/gateway/internal/await"
	"github.com/weir-go/weir/policy"
)

// conversation is the recorded traffic between a real client and a gateway on one connection, frame by frame in its order.
// TestRecordExchanges of gateway/integration has recorded it.
type conversation struct {
	client string
	frames []spoken
}

// spoken is a frame without its size.
type spoken struct {
	answer bool
	b      []byte
	of     request // what it is, or what it answers
}

// recordedExchanges are all of them.
func recordedExchanges(t testing.TB) (all []conversation) {
	t.Helper()
	files, err := filepath.Glob("testdata/exchanges/*")
	if err != nil || len(files) < 20 {
		t.Fatalf("%d exchanges, %v", len(files), err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		e := conversation{client: filepath.Base(file)}
		var waiting []request
		for len(b) > 0 {
			n := 5 + int(binary.BigEndian.Uint32(b[1:]))
			s := spoken{answer: b[0] == 1, b: b[5:n]}
			b = b[n:]
			if s.answer {
				s.of, waiting = waiting[0], waiting[1:]
			} else if s.of, _, err = readRequest(s.b, len(s.b)); err != nil {
				t.Fatalf("%s: %v", file, err)
			} else if !s.of.silent {
				waiting = append(waiting, s.of)
			}
			e.frames = append(e.frames, s)
		}
		all = append(all, e)
	}
	return all
}

// stream is one direction of an exchange.
func (e *conversation) stream(answers bool) (b []byte) {
	for _, s := range e.frames {
		if s.answer == answers {
			b = append(b, sized(uint32(len(s.b)), s.b)...)
		}
	}
	return b
}

// The requests of real clients, and the answers of real brokers, are decoded completely: written again, they are the same bytes.
func TestRecordedExchanges(t *testing.T) {
	seen := map[int16]int{}
	for _, e := range recordedExchanges(t) {
		for i, s := range e.frames {
			seen[s.of.key]++
			switch req := requestIn(s.of.key); {
			case s.answer && s.of.response() != nil:
				resp, body, err := s.of.decode(s.b)
				if err != nil {
					t.Fatalf("%s, %d: %v", e.client, i, err)
				}
				if again := encode(s.b[:body], resp); !bytes.Equal(again[4:], s.b) {
					t.Errorf("%s, %d: %s answers\n%x\nand again\n%x", e.client, i, kmsg.NameForKey(s.of.key), s.b, again[4:])
				}
			case !s.answer && req != nil:
				req.SetVersion(s.of.version)
				if err := readBody(s.b, req); err != nil {
					t.Fatalf("%s, %d: %v", e.client, i, err)
				}
				if again := likeRequest(s.b, req, req); !bytes.Equal(again[4:], s.b) {
					t.Errorf("%s, %d: %s is\n%x\nand again\n%x", e.client, i, kmsg.NameForKey(s.of.key), s.b, again[4:])
				}
			}
		}
	}
	for _, key := range append(decodedRequests, keyProduce, keyFetch, keyFindCoord, keyApiVersions) {
		if seen[key] == 0 {
			t.Errorf("no client has asked for %s", kmsg.NameForKey(key))
		}
	}
}

// If nothing counts the traffic, requests and answers pass the gateway unchanged, except the nodes in answers, and max_bytes of ShareFetch.
func TestRecordedExchangesPass(t *testing.T) {
	for _, e := range recordedExchanges(t) {
		t.Run(e.client, func(t *testing.T) {
			r := newRigOf(t, Quotas{}, nil)
			client, broker := r.pair()
			for _, c := range []net.Conn{client, broker} {
				if err := c.SetDeadline(time.Now().Add(await.Patience)); err != nil {
					t.Fatal(err)
				}
			}
			for i, s := range e.frames {
				from, to := client, broker
				if s.answer {
					from, to = broker, client
				}
				if s.of.key == keyApiVersions && s.of.version > lastApiVersions {
					continue // the gateway answers it
				}
				frame := sized(uint32(len(s.b)), s.b)
				r.write(from, frame)
				if s.of.key == keyShareFetch && !s.answer {
					s.of.lower(frame, mostShareFetch)
				}
				if got := r.frame(to); !bytes.Equal(got, frame[4:]) && !(s.answer && s.of.decoded()) {
					t.Errorf("%d, %s: %x, want %x", i, kmsg.NameForKey(s.of.key), got, frame[4:])
				}
			}
		})
	}
}

// For any requests and any answers, the connection ends with its two sides, and leaves nothing behind.
func FuzzRelay(f *testing.F) {
	for _, e := range recordedExchanges(f) {
		f.Add(e.stream(false), e.stream(true))
	}
	f.Fuzz(func(t *testing.T, requests, answers []byte) {
		r := newRigWith(t, policy.QuotaSpec{QuotaLimitSpec: policy.QuotaLimitSpec{Rate: "1000000/s"}, Debt: true}, policy.Enforce, time.Millisecond)
		r.server.defaults.topicDefaults, r.server.defaults.asked = topicDefaults{3, true}, time.Now().Add(time.Hour)
		r.server.opts.Open = func(string, *accept.Listener) (*accept.Listener, error) { return nil, net.ErrClosed }
		client, broker := r.pair()
		for _, c := range []net.Conn{client, broker} {
			if err := c.SetDeadline(time.Now().Add(await.Patience)); err != nil {
				t.Fatal(err)
			}
		}
		answers = bytes.Clone(answers) // whose correlation ids are written
		var served sync.WaitGroup
		served.Go(func() {
			defer broker.Close()
			for asked := true; asked && len(answers) > 0; {
				var frame []byte
				frame, answers = firstFrame(answers)
				if asked = hears(broker, frame); asked {
					_, _ = broker.Write(frame)
				}
			}
		})
		for heard := true; heard && len(requests) > 0; {
			var frame []byte
			frame, requests = firstFrame(requests)
			if _, err := client.Write(frame); err != nil {
				break
			}
			if len(frame) < 4+leastRequest || len(frame) != 4+int(binary.BigEndian.Uint32(frame)) {
				break // nobody answers a part of a request
			}
			if req, _, err := readRequest(frame[4:], len(frame)-4); err == nil && !req.silent {
				heard = hears(client, nil)
			}
		}
		_ = client.Close()
		served.Wait()
		await.That(t, "the connection has ended", func() bool { return len(r.server.all()) == 0 })
		if n := r.gate.Snapshot().InFlight; n != 0 {
			t.Errorf("%d permits are left", n)
		}
		if strings.Contains(r.logs.String(), "panic") {
			t.Error(r.logs)
		}
	})
}

// firstFrame cuts a stream after its first frame. If the frame is incomplete, it returns the whole stream.
func firstFrame(b []byte) (frame, rest []byte) {
	if len(b) < 4 {
		return b, nil
	}
	n := int64(int32(binary.BigEndian.Uint32(b)))
	if n < 0 || 4+n > int64(len(b)) {
		return b, nil
	}
	return b[:4+n], b[4+n:]
}

// hears reads a frame, and sets its correlation id in the answer. It returns false if no frame comes.
func hears(c net.Conn, answer []byte) bool {
	var head [12]byte
	if _, err := io.ReadFull(c, head[:4]); err != nil {
		return false
	}
	n := int(binary.BigEndian.Uint32(head[:]))
	got, err := io.ReadFull(c, head[4:4+min(n, 8)])
	if err == nil {
		_, err = io.CopyN(io.Discard, c, int64(n-got))
	}
	if len(answer) >= 8 {
		copy(answer[4:8], head[8:])
	}
	return err == nil
}
