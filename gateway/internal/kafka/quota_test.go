package kafka

import (
	"context"
	"encoding/binary"
	"io"
	"log/slog"
	"math"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/accept"
	"github.com/weir-go/weir/gateway/internal/await"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/gateway/internal/quotas"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/quota"
)

// max_bytes is found in each version of a fetch, and the wait in each version of its answer.
func TestFieldsOfFetch(t *testing.T) {
	of := offered[keyFetch]
	for version := of.min; version <= of.max; version++ {
		req := kmsg.NewPtrFetchRequest()
		req.MaxWaitMillis, req.MinBytes, req.MaxBytes = 1, 2, 0x01020304
		b := sent("client", version, req)
		r, more, err := readRequest(b, len(b))
		if err != nil || more {
			t.Fatalf("version %d: %v, %v", version, more, err)
		}
		if got := binary.BigEndian.Uint32(b[r.maxBytes:]); got != 0x01020304 {
			t.Errorf("version %d: max_bytes %x", version, got)
		}
		for _, c := range []struct{ broker, ours, want int32 }{{0, 7, 7}, {9, 7, 9}, {-1, 0, 0}} {
			resp := kmsg.NewPtrFetchResponse()
			resp.SetVersion(version)
			resp.ThrottleMillis, resp.SessionID = c.broker, 5
			header := []byte{0, 0, 0, 1}
			if version >= firstFlexibleFetch {
				header = append(header, 1, 3, 2, 'x', 'y') // a tag that nobody knows
			}
			b := resp.AppendTo(header)
			if err := raiseFetch(b, version, c.ours); err != nil {
				t.Fatal(err)
			}
			after := kmsg.NewPtrFetchResponse()
			after.SetVersion(version)
			if err := after.ReadFrom(b[len(header):]); err != nil || after.ThrottleMillis != c.want || version >= 7 && after.SessionID != 5 {
				t.Errorf("version %d, %+v: %+v, %v", version, c, after, err)
			}
		}
		if err := raiseFetch([]byte{0, 0, 0, 1, 0, 0}, version, 1); err == nil {
			t.Errorf("version %d: an answer of six bytes is taken", version)
		}
	}
}

// max_bytes is found in each version of a ShareFetch, with and without a group. It is lowered whatever quota there is, so that several
// answers have room in memory at a time. A smaller one stays.
func TestShareFetchIsLowered(t *testing.T) {
	group := strings.Repeat("g", 200)
	for version := offered[keyShareFetch].min; version <= offered[keyShareFetch].max; version++ {
		for asked, want := range map[int32]int32{math.MaxInt32: mostShareFetch, 50 << 20: mostShareFetch, mostShareFetch: mostShareFetch, 1000: 1000, 0: 0} {
			for _, name := range []*string{nil, &group} {
				r := newRig(t, policy.Off, time.Minute)
				client, broker := r.pair()
				req := kmsg.NewPtrShareFetchRequest()
				req.GroupID, req.MemberID, req.MaxBytes, req.MaxRecords = name, name, asked, 77
				r.write(client, framed("app", version, req))
				got := kmsg.NewPtrShareFetchRequest()
				got.Version = version
				if err := readBody(r.frame(broker), got); err != nil || got.MaxBytes != want || got.MaxRecords != 77 {
					t.Errorf("version %d: asked for %d, the broker gets %d, %v", version, asked, got.MaxBytes, err)
				}
			}
		}
	}
}

func TestThrottleOf(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		in   time.Duration
		want int32
	}{{0, 0}, {-time.Hour, 0}, {1, 1}, {time.Millisecond, 1}, {time.Second + 1, 1001}, {math.MaxInt32*time.Millisecond + 1, math.MaxInt32}, {quota.Never, math.MaxInt32}} {
		if got := throttleOf(now.Add(c.in), now); got != c.want {
			t.Errorf("%v: %d, want %d", c.in, got, c.want)
		}
	}
	if got := throttleOf(time.Time{}, now); got != 0 {
		t.Errorf("of nothing: %d", got)
	}
}

// rig is a gateway before a broker that is the test.
type rig struct {
	*testing.T
	server *Server
	logs   *logs
	gate   *policy.Gate
	broker *net.TCPListener
	wrap   func(net.Conn) net.Conn // what the gateway sees of a client; nil: the client
}

// newRig has a quota with a burst of 10,000 bytes and 20,000 bytes a second. Its clock stands still.
func newRig(t *testing.T, mode policy.Mode, longest time.Duration) *rig {
	return newRigWith(t, policy.QuotaSpec{QuotaLimitSpec: policy.QuotaLimitSpec{Rate: "20000/s", Burst: 10_000}}, mode, longest)
}

func newRigWith(t *testing.T, q policy.QuotaSpec, mode policy.Mode, longest time.Duration) *rig {
	return newRigOn(t, q, mode, longest, policy.Options{Now: func() time.Duration { return 0 }})
}

func newRigOn(t *testing.T, q policy.QuotaSpec, mode policy.Mode, longest time.Duration, o policy.Options) *rig {
	q.By = []string{"user", "client"}
	spec := policy.Spec{Gates: map[string]policy.GateSpec{"bytes": {Mode: mode, Quota: &q}}}
	p, err := policy.Compile(spec, o)
	if err != nil {
		t.Fatal(err)
	}
	gate := p.Gate("bytes")
	r := newRigOf(t, Quotas{Produce: gate, Fetch: gate, Mutations: gate, Longest: longest, Samples: 11, Window: time.Second}, nil)
	r.gate = gate
	return r
}

// newRigOf has quotas, and keeps those that clients set in a book, nil for none.
func newRigOf(t *testing.T, q Quotas, book *quotas.Book) *rig {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	k := config.Kafka{Bootstrap: []string{ln.Addr().String()}, Listen: new(config.KafkaListen), Nodes: &config.KafkaNodes{Ports: "1-1"}}
	k.Listen.SetDefaults()
	conns, err := accept.Open(accept.Options{Config: k.Listen.Listener("127.0.0.1:0"), Bare: true})
	if err != nil {
		t.Fatal(err)
	}
	said := new(logs)
	s, err := New(Options{
		Cluster: "orders", Config: k, Conns: conns, Logger: slog.New(slog.NewTextHandler(said, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Quotas: func() Quotas { return q }, Rules: book, Failed: func(string, string, error) {},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = ln.Close()
		_ = conns.Close()
		_ = s.Close()
	})
	return &rig{T: t, server: s, logs: said, broker: ln.(*net.TCPListener)}
}

// logs are what a gateway logs.
type logs struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logs) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// come returns a client that has just connected.
func (r *rig) come() net.Conn {
	r.Helper()
	in, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.Fatal(err)
	}
	defer in.Close()
	client, err := net.Dial("tcp", in.Addr().String())
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { _ = client.Close() })
	if err := client.SetDeadline(time.Now().Add(await.Patience)); err != nil { // what never comes fails the test
		r.Fatal(err)
	}
	accepted, err := in.Accept()
	if err != nil {
		r.Fatal(err)
	}
	if r.wrap != nil {
		accepted = r.wrap(accepted)
	}
	r.server.startRelay(accepted, &r.server.bootstrap)
	return client
}

// pair is a client of the gateway, and its connection at the broker.
func (r *rig) pair() (client, broker net.Conn) {
	r.Helper()
	client = r.come()
	broker, err := r.broker.Accept()
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { _ = broker.Close() })
	return client, broker
}

// frame reads a frame and returns it without its size.
func (r *rig) frame(c net.Conn) []byte {
	r.Helper()
	var size [4]byte
	if _, err := io.ReadFull(c, size[:]); err != nil {
		r.Fatal(err)
	}
	b := make([]byte, binary.BigEndian.Uint32(size[:]))
	if _, err := io.ReadFull(c, b); err != nil {
		r.Fatal(err)
	}
	return b
}

func (r *rig) write(c net.Conn, b []byte) {
	r.Helper()
	if _, err := c.Write(b); err != nil {
		r.Fatal(err)
	}
}

// produce is a request to produce of n bytes.
func produce(version, acks int16, n int) []byte {
	req := kmsg.NewPtrProduceRequest()
	req.Acks = acks
	topic := kmsg.NewProduceRequestTopic()
	topic.Topic = "t"
	part := kmsg.NewProduceRequestTopicPartition()
	topic.Partitions = append(topic.Partitions, part)
	req.Topics = append(req.Topics, topic)
	records := &topic.Partitions[0].Records
	*records = make([]byte, n)
	for extra := len(sent("app", version, req)) - n; extra != 0; extra = len(sent("app", version, req)) - n {
		*records = (*records)[:len(*records)-extra]
	}
	return framed("app", version, req)
}

// framed is a request with the size of its frame.
func framed(client string, version int16, req kmsg.Request) []byte {
	b := sent(client, version, req)
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)
}

// answer is an answer of a broker without a throttle time.
func answer(version int16, resp kmsg.Response) []byte {
	resp.SetVersion(version)
	header := []byte{0, 0, 0, 7}
	if resp.IsFlexible() {
		header = append(header, 0)
	}
	return encode(header, resp)
}

// left is how many bytes the client app has left.
func (r *rig) left() float64 {
	d, _ := r.gate.Quota().Peek(context.Background(), weir.Work{User: anonymous, Client: "app"})
	return d.Remaining
}

// A client that has produced too much gets a throttle time in the answer, whatever its version, and is not read for that time. Nothing is
// lost.
func TestProduceIsDelayed(t *testing.T) {
	for _, c := range []struct {
		version, acks int16
	}{{0, 1}, {1, 1}, {3, -1}, {9, 1}, {13, -1}, {9, 0}} {
		r := newRig(t, policy.Enforce, time.Minute)
		client, broker := r.pair()
		start := time.Now()
		r.write(client, produce(c.version, c.acks, 14_000)) // 4,000 owed, for 200 ms
		r.write(client, framed("app", 0, kmsg.NewPtrListGroupsRequest()))
		if got := len(r.frame(broker)); got != 14_000 {
			t.Errorf("version %d: the broker gets %d bytes", c.version, got)
		}
		if c.acks != 0 {
			r.write(broker, answer(c.version, kmsg.NewPtrProduceResponse()))
			resp := kmsg.NewPtrProduceResponse()
			resp.SetVersion(c.version)
			b := r.frame(client)[4:]
			if resp.IsFlexible() {
				b = b[1:]
			}
			if err := resp.ReadFrom(b); err != nil {
				t.Fatal(err)
			}
			if ms := resp.ThrottleMillis; ms > 200 || ms == 0 && c.version > 0 && time.Since(start) < 200*time.Millisecond {
				t.Errorf("version %d: told to wait %d ms", c.version, ms)
			}
		}
		r.frame(broker)
		if passed := time.Since(start); passed < 200*time.Millisecond {
			t.Errorf("version %d, acks %d: the next request is read after %v", c.version, c.acks, passed)
		}
		if got := r.left(); got != -4000 {
			t.Errorf("version %d: %v bytes left", c.version, got)
		}
		if s := r.server.Snapshot(); s.ThrottledProduce != (Throttled{1, 0.2}) || s.ThrottledFetch.Times != 0 {
			t.Errorf("%+v", s)
		}
	}
}

// A request costs nothing until all of its announced bytes have arrived.
func TestAnnouncedIsNotCharged(t *testing.T) {
	r := newRig(t, policy.Enforce, time.Hour)
	client, broker := r.pair()
	huge := sized(1<<31-1, produce(9, 1, 100_000)[4:])
	r.write(client, huge)
	if _, err := io.ReadFull(broker, make([]byte, len(huge))); err != nil {
		t.Fatal(err)
	}
	other, otherBroker := r.pair()
	r.write(other, produce(9, 1, 5_000))
	r.frame(otherBroker)
	if left := r.left(); left != 5_000 {
		t.Errorf("%v left", left)
	}
	if s := r.server.Snapshot(); s.ThrottledProduce.Times != 0 {
		t.Errorf("%+v", s.ThrottledProduce)
	}
}

// An answer to a fetch is charged, and says how long its client has to wait. A fetch asks for no more than a full bucket holds.
func TestFetchIsDelayed(t *testing.T) {
	r := newRig(t, policy.Enforce, time.Minute)
	client, broker := r.pair()
	start := time.Now()
	req := kmsg.NewPtrFetchRequest()
	req.MaxBytes = 50 << 20
	b := framed("app", 12, req)
	r.write(client, b)
	got := r.frame(broker)
	head, _, err := readRequest(got, len(got))
	if err != nil {
		t.Fatal(err)
	}
	if most := binary.BigEndian.Uint32(got[head.maxBytes:]); most != leastFetch {
		t.Errorf("max_bytes of %d, want %d", most, leastFetch)
	}
	resp := kmsg.NewPtrFetchResponse()
	topic, part := kmsg.NewFetchResponseTopic(), kmsg.NewFetchResponseTopicPartition()
	part.RecordBatches = make([]byte, 15_000)
	topic.Partitions = append(topic.Partitions, part)
	resp.Topics = append(resp.Topics, topic)
	large := answer(12, resp)
	go func() { _, _ = broker.Write(large) }()
	whole := r.frame(client)
	owed := len(large) - 4 - 10_000
	told := int32(binary.BigEndian.Uint32(whole[5:]))
	if most := int32(owed/20 + 1); told <= 0 || told > most {
		t.Errorf("told to wait %d ms of %d", told, most)
	}
	if len(whole) != len(large)-4 {
		t.Errorf("%d bytes, want %d", len(whole), len(large)-4)
	}
	if r.left() != float64(-owed) {
		t.Errorf("%v left, want %d", r.left(), -owed)
	}
	r.write(client, b)
	r.frame(broker)
	if passed := time.Since(start); passed < time.Duration(owed)*time.Second/20_000 {
		t.Errorf("read again after %v", passed)
	}
}

// What consumers of a share group fetch is charged as well, and the answer says for how long they wait.
func TestShareFetchIsDelayed(t *testing.T) {
	r := newRig(t, policy.Enforce, time.Minute)
	client, broker := r.pair()
	req := kmsg.NewPtrShareFetchRequest()
	req.Version = 1
	r.write(client, framed("app", 1, req))
	r.frame(broker)
	resp := kmsg.NewPtrShareFetchResponse()
	topic, part := kmsg.NewShareFetchResponseTopic(), kmsg.NewShareFetchResponseTopicPartition()
	part.Records = make([]byte, 15_000)
	topic.Partitions = append(topic.Partitions, part)
	resp.Topics = append(resp.Topics, topic)
	large := answer(1, resp)
	go func() { _, _ = broker.Write(large) }()
	got := kmsg.NewPtrShareFetchResponse()
	got.Version = 1
	if err := got.ReadFrom(r.frame(client)[5:]); err != nil {
		t.Fatal(err)
	}
	owed := len(large) - 4 - 10_000
	if most := int32(owed/20 + 1); got.ThrottleMillis <= 0 || got.ThrottleMillis > most {
		t.Errorf("told to wait %d ms of %d", got.ThrottleMillis, most)
	}
	if r.left() != float64(-owed) {
		t.Errorf("%v left, want %d", r.left(), -owed)
	}
}

// A muted connection ends at once when its client leaves, although the client has sent more.
func TestMutedClientGoes(t *testing.T) {
	r := newRig(t, policy.Enforce, time.Hour)
	client, broker := r.pair()
	r.write(client, produce(9, 0, 1<<20))
	r.frame(broker)
	r.write(client, produce(9, 0, 1000))
	_ = client.Close()
	if _, err := broker.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("%v, want the end", err)
	}
}

// unwatched is a connection of which nobody can tell that its client leaves, as on systems other than Linux.
func unwatched(c net.Conn) net.Conn { return struct{ net.Conn }{c} }

// A muted connection that is drained ends at once. A request that has begun is completed before.
func TestMutedConnectionDrains(t *testing.T) {
	for name, wrap := range map[string]func(net.Conn) net.Conn{"watched": nil, "unwatched": unwatched} {
		t.Run(name, func(t *testing.T) { mutedDrains(t, wrap) })
	}
}

func mutedDrains(t *testing.T, wrap func(net.Conn) net.Conn) {
	r := newRigWith(t, policy.QuotaSpec{QuotaLimitSpec: policy.QuotaLimitSpec{Rate: "2000/s"}}, policy.Enforce, time.Hour) // so that the mute outlasts all patience
	r.wrap = wrap
	client, broker := r.pair()
	r.write(client, produce(9, 0, 1<<20))
	r.frame(broker)
	r.write(client, produce(9, 0, 1000))
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	if err := r.server.Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(broker); err != nil || len(rest) != 0 && len(rest) != 4+1000 {
		t.Errorf("the broker gets %d bytes more, %v", len(rest), err)
	}
	if _, err := client.Read(make([]byte, 1)); err == nil {
		t.Error("the client is still served")
	}
}

// In observe mode an answer to a fetch is charged, and has no throttle time. max_bytes is not lowered.
func TestFetchIsObserved(t *testing.T) {
	r := newRig(t, policy.Observe, time.Hour)
	client, broker := r.pair()
	req := kmsg.NewPtrFetchRequest()
	req.MaxBytes = 50 << 20
	asked := framed("app", 12, req)
	for i := range 3 {
		r.write(client, asked)
		got := r.frame(broker)
		head, _, err := readRequest(got, len(got))
		if err != nil {
			t.Fatal(err)
		}
		if most := binary.BigEndian.Uint32(got[head.maxBytes:]); most != 50<<20 {
			t.Errorf("max_bytes of %d", most)
		}
		resp := kmsg.NewPtrFetchResponse()
		topic, part := kmsg.NewFetchResponseTopic(), kmsg.NewFetchResponseTopicPartition()
		part.RecordBatches = make([]byte, 15_000)
		topic.Partitions = append(topic.Partitions, part)
		resp.Topics, resp.ThrottleMillis = append(resp.Topics, topic), 3
		large := answer(12, resp)
		go func() { _, _ = broker.Write(large) }()
		if told := binary.BigEndian.Uint32(r.frame(client)[5:]); told != 3 {
			t.Errorf("told to wait %d ms, and the broker said 3", told)
		}
		if left := float64(10_000 - (i+1)*(len(large)-4)); r.left() != left {
			t.Errorf("%v left, want %v", r.left(), left)
		}
	}
	if s := r.server.Snapshot(); s.ThrottledFetch.Times != 0 || s.Muted != 0 || r.gate.Observed()[weir.ReasonQuota] != 3 {
		t.Errorf("%+v, %v observed", s, r.gate.Observed())
	}
}

// Charges and waits are reported with their clients. The snapshot names the clients that wait longest, and counts all.
func TestChargesAreTold(t *testing.T) {
	r := newRig(t, policy.Enforce, time.Hour)
	var mu sync.Mutex
	var told []Charge
	r.server.opts.Charged = func(c Charge) {
		mu.Lock()
		defer mu.Unlock()
		told = append(told, c)
	}
	client, broker := r.pair()
	r.write(client, produce(9, 0, 1000))
	r.frame(broker)
	r.write(client, produce(9, 0, 10_000))
	r.frame(broker)
	one := Charge{"produce", "bytes", "user=*,client=*", "bytes/user=ANONYMOUS/client=app", "ANONYMOUS", "app", 1000, 0}
	two := one
	two.Cost, two.Wait = 10_000, 50*time.Millisecond
	mu.Lock()
	if !slices.Equal(told, []Charge{one, two}) {
		t.Errorf("%+v", told)
	}
	mu.Unlock()

	var froms []string
	for i := range mostMuted + 15 { // all of one bucket, so each waits longer than the one before
		client, broker := r.pair()
		froms = append(froms, client.LocalAddr().String())
		r.write(client, produce(9, 0, 1_000_000+i))
		r.frame(broker)
	}
	s := r.server.Snapshot()
	if s.Muted != len(froms) && s.Muted != len(froms)+1 || len(s.MutedLongest) != mostMuted {
		t.Fatalf("%d muted, %d named", s.Muted, len(s.MutedLongest))
	}
	slices.Reverse(froms)
	for i, m := range s.MutedLongest {
		if m.User != "ANONYMOUS" || m.Client != "app" || m.Quota != "produce" || m.Node != -1 || m.Seconds < 100 || time.Until(m.Until) < 100*time.Second {
			t.Errorf("%+v", m)
		}
		if m.From != froms[i] {
			t.Errorf("%d: %s, want %s", i, m.From, froms[i])
		}
	}
}

// Requests and answers are counted as clients see them, by API and by node. Questions of the gateway's own are not.
func TestTrafficIsCounted(t *testing.T) {
	b, client := newCluster(t, policy.Enforce, 100)
	b.ask(client, create(7, "a", 1)) // a copy is validated before
	groups := kmsg.NewPtrListGroupsRequest()
	groups.Version = 2
	b.ask(client, groups)
	b.ask(client, groups)
	asked, answered := uint64(len(framed("app", 2, groups))), uint64(len(answer(2, kmsg.NewPtrListGroupsResponse())))
	newer := framed("app", 4, kmsg.NewPtrApiVersionsRequest())
	binary.BigEndian.PutUint16(newer[6:], 9) // answered here
	b.write(client, newer)
	b.frame(client)
	s := b.server.Snapshot()
	sum := Traffic{}
	for _, a := range s.APIs {
		sum = Traffic{sum.Requests + a.Requests, sum.Answers + a.Answers, sum.RequestBytes + a.RequestBytes, sum.AnswerBytes + a.AnswerBytes}
	}
	if len(s.APIs) != 3 || s.APIs[0].API != "ApiVersions" || s.APIs[1].API != "CreateTopics" || s.APIs[1].Requests != 1 || s.APIs[1].Answers != 1 ||
		s.APIs[2] != (APIStatus{"ListGroups", Traffic{2, 2, 2 * asked, 2 * answered}}) || s.Bootstrap.Traffic != sum {
		t.Errorf("%+v", s)
	}
}

// A quota in observe mode is charged and delays nobody. An incomplete request is not charged.
func TestObservedAndUnfinished(t *testing.T) {
	r := newRig(t, policy.Observe, time.Hour)
	client, broker := r.pair()
	r.write(client, produce(9, 0, 1<<20))
	r.frame(broker)
	r.write(client, produce(9, 0, 1000))
	r.frame(broker)
	if s := r.server.Snapshot(); s.ThrottledProduce.Times != 0 || s.Muted != 0 || r.gate.Observed()[weir.ReasonQuota] != 2 {
		t.Errorf("%+v, %v observed", s, r.gate.Observed())
	}

	r = newRig(t, policy.Enforce, time.Hour)
	client, broker = r.pair()
	r.write(client, produce(9, 0, 9000)[:5000])
	if _, err := io.CopyN(io.Discard, broker, 5000); err != nil {
		t.Fatal(err)
	}
	_ = client.Close()
	if _, err := broker.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("%v, want the end", err)
	}
	if got := r.left(); got != 10_000 {
		t.Errorf("%v bytes left, want all", got)
	}
}

// elsewhere is a remote store that tells the test when it has decided.
type elsewhere struct {
	*quota.Memory
	decided chan int64 // the cost
}

func (e *elsewhere) Decide(ctx context.Context, r *quota.Request) (quota.Decision, error) {
	d, err := e.Memory.Decide(ctx, r)
	e.decided <- r.Cost
	return d, err
}

// newDistantRig has a quota with a burst of 10,000 bytes and 1,000 bytes a second, in a remote store.
func newDistantRig(t *testing.T) (*rig, *elsewhere) {
	m, err := quota.NewMemory(quota.MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	s := &elsewhere{m, make(chan int64, 10_000)}
	q := policy.QuotaSpec{QuotaLimitSpec: policy.QuotaLimitSpec{Rate: "1000/s", Burst: 10_000}, Store: "shared"}
	return newRigOn(t, q, policy.Enforce, time.Hour, policy.Options{Stores: map[string]quota.Store{"shared": s}}), s
}

// owe charges the client app from another gateway.
func (r *rig) owe(bytes int64) {
	r.Helper()
	if _, _, err := r.gate.AdmitIn(r.Context(), quota.Permissive, weir.Work{User: anonymous, Client: "app", Cost: bytes}); err != nil {
		r.Fatal(err)
	}
}

// A remote store is asked while the broker works. So the first answer already includes the charges of another gateway.
func TestStoreIsAskedMeanwhile(t *testing.T) {
	told := func(r *rig, client net.Conn, resp kmsg.Response, header int) int32 {
		b := r.frame(client)
		if err := resp.ReadFrom(b[header:]); err != nil {
			t.Fatal(err)
		}
		ms, _ := resp.(kmsg.ThrottleResponse).Throttle()
		return ms
	}
	r, s := newDistantRig(t)
	client, broker := r.pair()
	r.owe(30_000)
	<-s.decided
	r.write(client, produce(9, 1, 1000))
	r.frame(broker)
	<-s.decided
	for r.gate.Owed(weir.Work{User: anonymous, Client: "app"}) == 0 { // the answer of the store is there, and has to be taken note of
		runtime.Gosched()
	}
	r.write(broker, answer(9, kmsg.NewPtrProduceResponse()))
	resp := kmsg.NewPtrProduceResponse()
	resp.SetVersion(9)
	if ms := told(r, client, resp, 5); ms < 10_000 || ms > 21_000 {
		t.Errorf("told to wait %d ms, and 21,000 bytes are owed", ms)
	}
	if s := r.server.Snapshot(); s.ThrottledProduce.Times != 1 || s.Muted != 1 {
		t.Errorf("%+v", s)
	}

	r, s = newDistantRig(t)
	client, broker = r.pair()
	r.owe(30_000)
	<-s.decided
	r.write(client, framed("app", 12, kmsg.NewPtrFetchRequest()))
	r.frame(broker)
	if cost := <-s.decided; cost != 0 {
		t.Errorf("a fetch that has no answer yet is charged %d", cost)
	}
	for r.gate.Owed(weir.Work{User: anonymous, Client: "app"}) == 0 {
		runtime.Gosched()
	}
	r.write(broker, answer(12, kmsg.NewPtrFetchResponse()))
	fetched := kmsg.NewPtrFetchResponse()
	fetched.SetVersion(12)
	if ms := told(r, client, fetched, 5); ms < 10_000 || ms > 21_000 {
		t.Errorf("told to wait %d ms, and 20,000 bytes are owed", ms)
	}

	// A charge by another gateway meanwhile makes the delay longer, and it still counts as one delay.
	r, _ = newDistantRig(t)
	client, broker = r.pair()
	owed := func(least time.Duration) {
		r.owe(30_000)
		for r.gate.Owed(weir.Work{User: anonymous, Client: "app"}) < least {
			runtime.Gosched()
		}
	}
	owed(time.Second)
	r.write(client, produce(9, 1, 1000))
	r.frame(broker)
	owed(40 * time.Second)
	r.write(broker, answer(9, kmsg.NewPtrProduceResponse()))
	resp = kmsg.NewPtrProduceResponse()
	resp.SetVersion(9)
	if ms := told(r, client, resp, 5); ms < 40_000 || ms > 51_000 {
		t.Errorf("told to wait %d ms, and 51,000 bytes are owed", ms)
	}
	if s := r.server.Snapshot(); s.ThrottledProduce.Times != 1 {
		t.Errorf("counted as %d delays", s.ThrottledProduce.Times)
	}
}

// While a remote store does not answer, a gate that fails closed delays by its own time, and one that fails open delays nobody. No request
// waits for the store.
func TestStoreOfBytesIsDown(t *testing.T) {
	for on, delays := range map[string]bool{"closed": true, "open": false} {
		s := new(brokenStore)
		q := policy.QuotaSpec{QuotaLimitSpec: policy.QuotaLimitSpec{Rate: "1000/s", Burst: 10_000}, Store: "shared", OnStoreError: on}
		r := newRigOn(t, q, policy.Enforce, time.Hour, policy.Options{Stores: map[string]quota.Store{"shared": s}})
		produces := func() int32 { // on a connection that nobody has muted
			client, broker := r.pair()
			r.write(client, produce(9, 1, 1000))
			r.frame(broker)
			r.write(broker, answer(9, kmsg.NewPtrProduceResponse()))
			resp := kmsg.NewPtrProduceResponse()
			resp.SetVersion(9)
			if err := resp.ReadFrom(r.frame(client)[5:]); err != nil {
				t.Fatal(err)
			}
			return resp.ThrottleMillis
		}
		var longest int32
		await.That(t, on+": the store is asked, and what comes of it is told", func() bool {
			longest = max(longest, produces())
			return s.asked.Load() >= 3 && (longest > 0 || !delays)
		})
		if longest > 1000 || longest > 0 && !delays {
			t.Errorf("%s: told to wait %d ms", on, longest)
		}
	}
}

// A remote store is asked about a bucket at most every 20 ms, however much is sent, and is told of each byte.
func TestDecisionsAreBounded(t *testing.T) {
	r, s := newDistantRig(t)
	client, broker := r.pair()
	const requests = 200
	one := framed("app", 0, kmsg.NewPtrProduceRequest()) // acks 0, so nobody waits for anything
	begin := time.Now()
	go func() {
		for range requests {
			_, _ = client.Write(one)
		}
	}()
	for range requests {
		r.frame(broker)
	}
	passed := time.Since(begin)
	r.gate.Quota().Close()
	var told int64
	decisions := len(s.decided)
	for range decisions {
		told += <-s.decided
	}
	if want := int64(requests * (len(one) - 4)); told != want {
		t.Errorf("the store was told of %d bytes, want %d", told, want)
	}
	if most := int(passed/(20*time.Millisecond)) + 2; decisions > most {
		t.Errorf("%d decisions in %v, want at most %d", decisions, passed, most)
	}
}
