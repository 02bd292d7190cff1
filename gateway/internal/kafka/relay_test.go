package kafka

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weir-go/weir/gateway/internal/await"
	"github.com/weir-go/weir/policy"
)

// occupy takes slots until the test ends.
func occupy(t *testing.T, slots chan struct{}, n int) {
	for range n {
		slots <- struct{}{}
	}
	t.Cleanup(func() {
		for range n {
			<-slots
		}
	})
}

// A large request arrives as it was sent, also while its connection is drained, with or without a large buffer. The next bytes are not part
// of it. With TLS there is no large buffer.
func TestLargeRequests(t *testing.T) {
	for name, c := range map[string]struct {
		busy, held int
		pair       func(*rig) (client, broker net.Conn)
	}{
		"a large buffer": {0, 1, (*rig).pair},
		"none free":      {cap(requestCopies), cap(requestCopies), (*rig).pair},
		"TLS":            {0, 0, (*rig).pairWithTLS},
	} {
		t.Run(name, func(t *testing.T) {
			occupy(t, requestCopies, c.busy)
			r := newRig(t, policy.Off, time.Minute)
			client, broker := c.pair(r)
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
			if n := len(requestCopies); n != c.held {
				t.Errorf("%d large buffers are taken, want %d", n, c.held)
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
			if n := len(requestCopies); n != c.busy {
				t.Errorf("%d large buffers are taken at the end, want %d", n, c.busy)
			}
		})
	}
}

// If a client leaves within a large request, the connection to the broker ends, too.
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

// waiting is a connection whose broker is the test. It is not served: the test itself moves the bytes.
func waiting(t *testing.T) (r *relay, broker net.Conn, logs *strings.Builder) {
	logs = new(strings.Builder)
	counts := newCounters()
	s := &Server{log: slog.New(slog.NewTextHandler(logs, nil)), memory: newBudgets(), counts: counts, bootstrap: node{nodeCounters: &counts.bootstrap}}
	client, _ := net.Pipe()
	r = newRelay(s, &s.bootstrap, client)
	r.broker, broker = net.Pipe()
	t.Cleanup(func() { _, _ = r.broker.Close(), broker.Close() })
	return r, broker, logs
}

// connected gives a relay a client, and no quotas.
func connected(r *relay) (client net.Conn) {
	r.client, client = net.Pipe()
	r.raw = r.client
	r.server.opts.Quotas = func() Quotas { return Quotas{} }
	return client
}

// If one side does not read, no more than a buffer is read from the other side. The buffer is a large one for a request. When it reads
// again, it gets the rest.
func TestWhoDoesNotRead(t *testing.T) {
	const size = 5 << 20
	fetched, topic, part := kmsg.NewPtrFetchResponse(), kmsg.NewFetchResponseTopic(), kmsg.NewFetchResponseTopicPartition()
	part.RecordBatches = make([]byte, size)
	topic.Partitions = append(topic.Partitions, part)
	fetched.Topics = append(fetched.Topics, topic)
	bounds := map[string]int64{"a client": buffer, "a broker": buffer + largeBuffer}
	for name, sent := range map[string][]byte{"a client": answer(12, fetched), "a broker": produce(9, 1, size)} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, to, _ := waiting(t)
				near, from := net.Pipe()
				r.raw, r.client = near, near
				r.server.opts.Quotas = func() Quotas { return Quotas{} }
				if name == "a client" {
					r.state.expect(pending{request: request{key: keyFetch, version: 12, correlation: 7}})
					from, to = to, from
				}
				var all sync.WaitGroup
				defer all.Wait()
				defer r.close()
				all.Go(func() { _ = r.requests() })
				all.Go(func() { _ = r.answers() })
				var taken atomic.Int64
				all.Go(func() {
					for b := range slices.Chunk(sent, 1<<10) {
						n, err := from.Write(b)
						if taken.Add(int64(n)); err != nil {
							return
						}
					}
				})
				synctest.Wait()
				if n := taken.Load(); n > bounds[name] {
					t.Errorf("%d bytes are taken", n)
				}
				got := make([]byte, len(sent))
				if _, err := io.ReadFull(to, got); err != nil || !bytes.Equal(got, sent) {
					t.Errorf("what comes is not what was sent: %v", err)
				}
			})
		})
	}
}

// An idle connection stays open for any time. Only the broker ends it.
func TestIdleConnectionStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, broker, _ := waiting(t)
		client := connected(r)
		var all sync.WaitGroup
		defer all.Wait()
		defer r.close()
		all.Go(func() { _ = r.requests() })
		all.Go(func() { _ = r.answers() })
		asked, said := framed("app", 0, kmsg.NewPtrListGroupsRequest()), answer(0, kmsg.NewPtrListGroupsResponse())
		for range 2 {
			for _, way := range []struct {
				from, to net.Conn
				what     []byte
			}{{client, broker, asked}, {broker, client, said}} {
				all.Go(func() { _, _ = way.from.Write(way.what) })
				got := make([]byte, len(way.what))
				if _, err := io.ReadFull(way.to, got); err != nil || !bytes.Equal(got, way.what) {
					t.Fatalf("%q, %v", got, err)
				}
			}
			time.Sleep(24 * time.Hour)
		}
	})
}

// If two bytes of a request have arrived when its connection is drained, the request is served, and is the last.
func TestBegunRequestIsServed(t *testing.T) {
	r, broker, _ := waiting(t)
	client := connected(r)
	defer r.close()
	ended := make(chan error, 1)
	go func() { ended <- r.requests() }()
	asked := framed("app", 0, kmsg.NewPtrListGroupsRequest())
	if _, err := client.Write(asked[:2]); err != nil {
		t.Fatal(err)
	}
	r.drain()
	go func() { _, _ = client.Write(asked[2:]) }()
	if err := broker.SetReadDeadline(time.Now().Add(await.Patience)); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(asked))
	if _, err := io.ReadFull(broker, got); err != nil || !bytes.Equal(got, asked) {
		t.Fatalf("the broker gets %q, %v", got, err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A client that sends more requests than are kept without an answer is read again when there is room.
func TestRequestsInFlightAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, broker, _ := waiting(t)
		client := connected(r)
		var all sync.WaitGroup
		defer all.Wait()
		defer r.close()
		one := framed("app", 0, kmsg.NewPtrListGroupsRequest())
		all.Go(func() { _ = r.requests() })
		all.Go(func() { _ = r.answers() })
		all.Go(func() { _, _ = io.Copy(io.Discard, client) })
		all.Go(func() {
			for {
				if _, err := client.Write(one); err != nil {
					return
				}
			}
		})
		each := (&pending{request: request{client: "app"}}).kept()
		most := int64(mostKept+each-1) / int64(each)
		var got atomic.Int64
		all.Go(func() {
			for b := make([]byte, len(one)); ; got.Add(1) {
				if _, err := io.ReadFull(broker, b); err != nil {
					return
				}
			}
		})
		for more := range int64(3) {
			synctest.Wait()
			if n := got.Load(); n != most+more {
				t.Fatalf("%d requests are sent on with %d answers", n, more)
			}
			if _, err := broker.Write(answer(0, kmsg.NewPtrListGroupsResponse())); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// All questions about a request are sent before one of them is answered.
func TestQuestionsGoTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, broker, _ := waiting(t)
		defer r.close()
		g := &growth{CreatePartitionsRequest: kmsg.NewPtrCreatePartitionsRequest()}
		g.Topics = append(g.Topics, kmsg.NewCreatePartitionsRequestTopic())
		frame := framed("app", 0, g.CreatePartitionsRequest)
		var answers []kmsg.Response
		var asked sync.WaitGroup
		asked.Go(func() {
			_ = r.askAll(&request{}, frame[4:], g, g.questions(), func(a kmsg.Response) { answers = append(answers, a) })
		})
		for _, key := range []int16{keyCreatePartitions, keyMetadata} {
			var size [4]byte
			if _, err := io.ReadFull(broker, size[:]); err != nil {
				t.Fatal(err)
			}
			b := make([]byte, binary.BigEndian.Uint32(size[:]))
			if _, err := io.ReadFull(broker, b); err != nil {
				t.Fatal(err)
			}
			if got := int16(binary.BigEndian.Uint16(b)); got != key {
				t.Errorf("%s comes, want %s", kmsg.NameForKey(got), kmsg.NameForKey(key))
			}
		}
		for _, resp := range []kmsg.Response{kmsg.NewPtrCreatePartitionsResponse(), kmsg.NewPtrMetadataResponse()} {
			r.mu.Lock()
			r.state.pending[0].question.answer = resp
			r.mu.Unlock()
			r.answered()
		}
		asked.Wait()
		if len(answers) != 2 || answers[0].Key() != keyCreatePartitions || answers[1].Key() != keyMetadata {
			t.Errorf("%+v", answers)
		}
	})
}

// The broker's time for a question begins when all before it is answered, however long that takes.
func TestQuestionBehindAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, broker, logs := waiting(t)
		go func() { _, _ = io.Copy(io.Discard, broker) }()
		r.state.expect(pending{request: request{key: 11}}) // the client joins a group, and others have yet to come
		m := kmsg.NewPtrMetadataRequest()
		frame := framed("app", 12, m)
		ended := make(chan error, 1)
		go func() {
			_, err := r.ask(&request{}, frame[4:], m, m)
			ended <- err
		}()
		time.Sleep(10 * saidWithin)
		synctest.Wait()
		select {
		case err := <-ended:
			t.Fatalf("%v: %s", err, logs)
		default:
		}
		begin := time.Now()
		r.answered()
		if err := <-ended; err != net.ErrClosed || time.Since(begin) != saidWithin || !strings.Contains(logs.String(), "the broker has not answered the gateway's Metadata within 1m0s") {
			t.Errorf("%v after %v: %s", err, time.Since(begin), logs)
		}
	})
}

// trap is a connection whose next Read panics once it is set.
type trap struct {
	net.Conn
	set atomic.Bool
}

func (c *trap) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.set.Load() {
		panic("a trap")
	}
	return n, err
}

// A panic ends only its connection. Its charges are refunded, or stay if the broker has got the request.
func TestPanicEndsPermits(t *testing.T) {
	large := produce(9, 1, 100_000)
	mutation := framed("app", 7, create(7, "a", 50))
	for name, c := range map[string]struct {
		frame []byte
		first int // bytes of it that come before the panic
		left  float64
	}{
		"within a request to produce":      {large, len(large) - 100, 10_000},
		"while a broker creates its topic": {mutation, len(mutation), 10_000 - 50},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRigWith(t, policy.QuotaSpec{QuotaLimitSpec: policy.QuotaLimitSpec{Rate: "20000/s", Burst: 10_000}, Debt: true}, policy.Enforce, time.Minute)
			var of *trap
			r.wrap = func(c net.Conn) net.Conn {
				of = &trap{Conn: c}
				return of
			}
			client, broker := r.pair()
			r.write(client, c.frame[:c.first])
			if c.first < len(c.frame) {
				if _, err := io.ReadFull(broker, make([]byte, c.first)); err != nil {
					t.Fatal(err)
				}
			} else {
				asked := r.frame(broker)
				resp, topic := kmsg.NewPtrCreateTopicsResponse(), kmsg.NewCreateTopicsResponseTopic()
				topic.Topic, topic.NumPartitions = "a", 50
				resp.Topics = append(resp.Topics, topic)
				out := answer(7, resp)
				copy(out[4:8], asked[4:8]) // the correlation id
				r.write(broker, out)
				r.frame(broker)
			}
			if n := r.gate.Snapshot().InFlight; n != 1 {
				t.Fatalf("%d permits before", n)
			}
			of.set.Store(true)
			r.write(client, make([]byte, 1))
			if _, err := io.Copy(io.Discard, broker); err != nil {
				t.Fatal(err)
			}
			await.That(t, "the connection is gone", func() bool { return len(r.server.all()) == 0 })
			if n := r.gate.Snapshot().InFlight; n != 0 || r.left() != c.left || !strings.Contains(r.logs.String(), "a trap") {
				t.Errorf("%d permits are left, and %v of the quota; want %v: %s", n, r.left(), c.left, r.logs)
			}
		})
	}
}

// If the broker cannot be reached, or resets the connection, the client is reset. To clients, a close in order before the first answer
// would mean a fault in their settings. If the broker closes in order, so does the gateway.
func TestBrokerIsNotThere(t *testing.T) {
	r := newRig(t, policy.Off, time.Minute)
	for name, c := range map[string]struct {
		ends func(broker net.Conn)
		want error
	}{
		"it resets":        {func(c net.Conn) { _ = c.(*net.TCPConn).SetLinger(0) }, syscall.ECONNRESET},
		"it ends in order": {func(net.Conn) {}, io.EOF},
	} {
		client, broker := r.pair()
		r.write(client, framed("app", 0, kmsg.NewPtrListGroupsRequest()))
		r.frame(broker)
		c.ends(broker)
		_ = broker.Close()
		if _, err := client.Read(make([]byte, 1)); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	_ = r.broker.Close()
	if _, err := r.come().Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("without a broker: %v", err)
	}
}

// A client that is drained before its first answer is reset, so that it comes back. An answer to ApiVersions is none. After any other answer
// the connection ends in order.
func TestDrainedBeforeTheFirstAnswer(t *testing.T) {
	for name, c := range map[string]struct {
		asked kmsg.Request // and answered
		want  error
	}{
		"nothing":     {nil, syscall.ECONNRESET},
		"ApiVersions": {kmsg.NewPtrApiVersionsRequest(), syscall.ECONNRESET},
		"ListGroups":  {kmsg.NewPtrListGroupsRequest(), io.EOF},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, policy.Off, time.Minute)
			client, broker := r.pair()
			if c.asked != nil {
				r.write(client, framed("app", 0, c.asked))
				r.frame(broker)
				r.write(broker, answer(0, c.asked.ResponseKind()))
				r.frame(client)
			}
			if err := r.server.Shutdown(t.Context()); err != nil {
				t.Fatal(err)
			}
			if _, err := client.Read(make([]byte, 1)); !errors.Is(err, c.want) {
				t.Errorf("%v, want %v", err, c.want)
			}
		})
	}
}

// The same holds for a client that is drained during its TLS handshake. That counts as no failure of its own.
func TestDrainedDuringItsHandshake(t *testing.T) {
	r := newRig(t, policy.Off, time.Minute)
	r.overTLS()
	client := r.come()
	if err := r.server.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("%v", err)
	}
	for why, n := range r.server.opts.Conns.Snapshot().Handshakes {
		if n != 0 {
			t.Errorf("%d handshakes failed: %s", n, why)
		}
	}
}

// Large answers arrive as they were sent, whether the kernel or the gateway moves them, and the next bytes are not part of them. If a
// broker ends within an answer, the client has got the beginning, and its connection ends.
func TestLargeAnswers(t *testing.T) {
	for name, busy := range map[string]int{"spliced": 0, "copied": cap(answerSplices)} {
		t.Run(name, func(t *testing.T) {
			occupy(t, answerSplices, busy)
			r := newRig(t, policy.Off, time.Minute)
			client, broker := r.pair()
			var all []byte
			for _, size := range []int{3 << 20, leastMoved, 100, 1 << 20} {
				r.write(client, framed("app", 12, kmsg.NewPtrFetchRequest()))
				r.frame(broker)
				one := append(answer(12, kmsg.NewPtrFetchResponse()), make([]byte, size)...)
				for i := 64; i < len(one); i++ {
					one[i] = byte(rand.Uint32()) // records, which nobody looks at
				}
				binary.BigEndian.PutUint32(one, uint32(len(one)-4))
				all = append(all, one...)
			}
			cut := len(all) - 1000
			go func() {
				_, _ = broker.Write(all[:cut])
				_ = broker.Close()
			}()
			if got, err := io.ReadAll(client); err != nil || !bytes.Equal(got, all[:cut]) {
				t.Errorf("%d bytes of %d, %v", len(got), cut, err)
			}
		})
	}
}
