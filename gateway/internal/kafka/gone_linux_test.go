package kafka

import (
	"crypto/tls"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weir-go/weir/gateway/internal/await"
	"github.com/weir-go/weir/internal/rawconn"
	"github.com/weir-go/weir/policy"
)

// A check counts if the one before has found the side gone, too, and the other side has received nothing since.
func TestAbsence(t *testing.T) {
	var a absence
	for i, c := range []struct {
		found departure
		want  int
	}{
		{departure{}, 0},
		{departure{}, 0}, // both are there
		{departure{true, 5}, 0},
		{departure{true, 5}, 1},
		{departure{true, 9}, 0}, // the rest still moves
		{departure{true, 9}, 1},
		{departure{true, 9}, 2},
		{departure{}, 0},
		{departure{true, 0}, 0},
		{departure{true, 0}, 1},
	} {
		if got := a.note(c.found); got != c.want {
			t.Errorf("check %d, %+v: %d", i, c.found, got)
		}
	}
}

// sockets are the two ends of a connection.
func sockets(t *testing.T) (one, other net.Conn) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if one, err = net.Dial("tcp", ln.Addr().String()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = one.Close() })
	if other, err = ln.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = other.Close() })
	return one, other
}

// A side has gone although its last bytes are unread, also below TLS. What the other side receives is counted.
func TestDepartureOf(t *testing.T) {
	side, far := sockets(t)
	other, reads := sockets(t)
	if _, err := far.Write([]byte("the last bytes")); err != nil {
		t.Fatal(err)
	}
	if d := departureOf(side, other); d != (departure{}) {
		t.Errorf("%+v of a side that is there", d)
	}
	_ = far.Close()
	over := tls.Client(side, new(tls.Config))
	await.That(t, "it has gone", func() bool { return departureOf(over, other).gone })
	before := departureOf(side, other).received
	if _, err := other.Write(make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(reads, make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	await.That(t, "what was read counts", func() bool {
		return departureOf(rawconn.New(side), rawconn.New(other)) == departure{true, before + 1000}
	})
	_, fresh := sockets(t) // neither this one nor left was dialled here, as on a kernel that does not count
	leaves, left := sockets(t)
	_ = leaves.Close()
	await.That(t, "it has gone", func() bool { return hasGone(left) })
	for _, d := range []departure{departureOf(left, fresh), departureOf(unwatched(side), other), departureOf(side, unwatched(other))} {
		if d != (departure{}) {
			t.Errorf("%+v, and nobody can tell", d)
		}
	}
}

// most is more than the sockets of a rig take that nobody reads, if their buffers are small. It is less than they and the gateway take
// together, so the end of a connection arrives behind that many bytes.
const most = 120_000

// narrow makes the buffers of a connection small: the one for what is written to the end that does not read, and that end's own.
func narrow(t *testing.T, writes, reads net.Conn) {
	t.Helper()
	for _, err := range []error{socketOf(writes).SetWriteBuffer(4 << 10), socketOf(reads).SetReadBuffer(4 << 10)} {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// widen lets the rest come fast after narrow.
func widen(t *testing.T, reads net.Conn) {
	t.Helper()
	if err := socketOf(reads).SetReadBuffer(most); err != nil {
		t.Fatal(err)
	}
}

// If one side leaves while the gateway waits for the other, or for memory, the connection ends on both sides. A client that waits for
// answers holds no slot then, and a client that does not read keeps none for ever.
func TestOneSideGoes(t *testing.T) {
	ask := func(r *rig, client, broker net.Conn, req kmsg.Request) {
		r.write(client, framed("app", 12, req))
		r.frame(broker)
	}
	for name, c := range map[string]struct {
		leaves func(r *rig, one *relay, client, broker net.Conn) (who net.Conn)
		logs   string
	}{
		"a client, and the broker does not read": {func(r *rig, one *relay, client, broker net.Conn) net.Conn {
			narrow(r.T, one.broker, broker)
			r.write(client, produce(9, 1, most))
			return client
		}, "the client has closed its connection, and the broker has received nothing for 12ms"},
		"a client that waits until nothing is in flight": {func(r *rig, one *relay, client, broker net.Conn) net.Conn {
			ask(r, client, broker, kmsg.NewPtrFetchRequest())
			r.write(client, framed("app", 7, create(7, "a", 1)))
			return client
		}, "the client has closed its connection, and the broker has received nothing for 12ms"},
		"a client with too many requests in flight": {func(r *rig, one *relay, client, broker net.Conn) net.Conn {
			one.mu.Lock()
			one.state.kept = mostKept
			one.mu.Unlock()
			r.write(client, framed("app", 12, kmsg.NewPtrFetchRequest()))
			return client
		}, "the client has closed its connection, and the broker has received nothing for 12ms"},
		"a client that waits for memory": {func(r *rig, one *relay, client, broker net.Conn) net.Conn {
			r.write(client, bulky(100_000))
			await.That(r.T, "it waits", func() bool { return r.server.memory.raw.waiting.Load() == 1 })
			return client
		}, "the client has closed its connection, and the broker has received nothing for 12ms"},
		"a broker, and the client does not read": {func(r *rig, one *relay, client, broker net.Conn) net.Conn {
			narrow(r.T, one.raw, client)
			ask(r, client, broker, kmsg.NewPtrFetchRequest())
			resp, topic, part := kmsg.NewPtrFetchResponse(), kmsg.NewFetchResponseTopic(), kmsg.NewFetchResponseTopicPartition()
			part.RecordBatches = make([]byte, most)
			topic.Partitions = append(topic.Partitions, part)
			resp.Topics = append(resp.Topics, topic)
			r.write(broker, answer(12, resp))
			return broker
		}, "the broker has closed its connection, and the client has received nothing for 1ms"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRigWith(t, ample, policy.Enforce, time.Minute)
			r.server.lookEvery = time.Millisecond
			r.server.memory.raw = newBudget(1)
			full, err := r.server.memory.raw.acquire(t.Context(), 1, func() {})
			if err != nil {
				t.Fatal(err)
			}
			defer full.free()
			client, broker := r.pair()
			one := r.server.all()[0]
			await.That(t, "it is connected", func() bool { one.mu.Lock(); defer one.mu.Unlock(); return one.broker != nil })
			_ = c.leaves(r, one, client, broker).Close()
			await.That(t, "the connection has ended", func() bool { return len(r.server.all()) == 0 })
			if !strings.Contains(r.logs.String(), c.logs) {
				t.Errorf("no line with %q: %s", c.logs, r.logs)
			}
		})
	}
}

// While nobody leaves, a side that does not read ends nothing.
func TestNobodyGoes(t *testing.T) {
	r := newRig(t, policy.Off, time.Minute)
	r.server.lookEvery = time.Hour // only the test checks
	client, broker := r.pair()
	one := r.server.all()[0]
	await.That(t, "it is connected", func() bool { one.mu.Lock(); defer one.mu.Unlock(); return one.broker != nil })
	narrow(t, one.broker, broker)
	sent := produce(9, 1, most)
	r.write(client, sent)
	for range 3 {
		one.look()
	}
	widen(t, broker)
	if got := r.frame(broker); len(got) != len(sent)-4 {
		t.Errorf("the broker gets %d bytes", len(got))
	}
}

// What a client has sent before it left reaches a broker that did not read for a while, as under a quota of its own.
func TestLastRecordsWait(t *testing.T) {
	r := newRig(t, policy.Off, time.Minute)
	r.server.lookEvery = time.Hour // only the test checks
	client, broker := r.pair()
	one := r.server.all()[0]
	await.That(t, "it is connected", func() bool { one.mu.Lock(); defer one.mu.Unlock(); return one.broker != nil })
	narrow(t, one.broker, broker)
	sent := produce(9, 0, most)
	r.write(client, sent)
	_ = client.Close()
	await.That(t, "the client has gone", func() bool { return departureOf(one.raw, one.broker).gone })
	for range clientGone {
		one.look()
	}
	widen(t, broker)
	if got, err := io.ReadAll(broker); err != nil || len(got) != len(sent) {
		t.Errorf("the broker gets %d bytes of %d, %v", len(got), len(sent), err)
	}
}
