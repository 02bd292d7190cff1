package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weir-go/weir/bench/internal/kit"
	"github.com/weir-go/weir/bench/internal/rig"
	"github.com/weir-go/weir/internal/loadgen"
	"github.com/weir-go/weir/internal/testbed/kafka"
)

const (
	brokers  = 3
	gateways = 2

	burst    = 10 // seconds' worth, as with brokers by default
	offGoal  = 2  // percent, in any window
	asksGoal = 50 // decisions a second for a key, of each gateway

	usedUpWithin = time.Minute
	step         = time.Second / 10
)

// Kinds of bytes, and the gates and stores that count them.
const (
	in = iota
	out
	kinds
)

var (
	kindNames = [kinds]string{"produced", "fetched"}
	gateNames = [kinds]string{"in", "out"}
	// batches are the bytes of requests to produce, and of answers to fetch: small, and as clients make them by default.
	batches = []int32{16 << 10, 1 << 20}
)

// quota measures what a principal gets that produces and fetches at full speed through two gateways before three brokers, and from the
// brokers alone.
func (b *bench) quota(ctx context.Context) (err error) {
	table := kit.Table{{"limited by", "requests of", "", "MB/s, any " + b.window.String(), "off by", "decisions/s of a gateway", "goals"}}
	c, err := b.startCluster(ctx)
	defer func() { err = errors.Join(err, c.stop()) }()
	if err != nil {
		return err
	}
	for _, limit := range []func(context.Context) error{c.startGateways, c.limitAtBrokers} {
		if err := limit(ctx); err != nil {
			return err
		}
		for _, batch := range batches {
			rows, err := c.play(ctx, batch)
			if err != nil {
				return err
			}
			table = append(table, rows...)
		}
	}
	b.print(fmt.Sprintf("What a principal with %g MB/s gets from %d brokers, after its burst", float64(b.rate)/1e6, brokers), table)
	return nil
}

// again is the bytes of records in read: some seconds' worth, and no more than are read elsewhere.
func (b *bench) again() int64 { return min(stored/4, 7*int64(b.rate)) }

// cluster is brokers, gateways before them or none, and a Redis for those.
type cluster struct {
	*bench
	brokers kafka.Cluster
	servers []*rig.Process
	ways    []string // where clients bootstrap
	admins  []string // of the gateways
}

func (c *cluster) stop() error {
	c.stopGateways()
	return c.brokers.Stop()
}

func (c *cluster) stopGateways() {
	for _, p := range slices.Backward(c.servers) {
		p.Stop()
	}
	c.servers, c.admins = nil, nil
}

// startCluster starts brokers, and fills the topic that is read.
func (b *bench) startCluster(ctx context.Context) (c *cluster, err error) {
	c = &cluster{bench: b}
	jars, err := kafka.Find()
	if err != nil {
		return c, err
	}
	if c.brokers, err = kafka.StartCluster(ctx, brokers, kafka.Config{Jars: jars, Ports: &rig.Ports, Settings: []string{
		"log.retention.check.interval.ms=500", "log.segment.delete.delay.ms=500", "log.initial.task.delay.ms=500",
	}}); err != nil {
		return c, err
	}
	first := way{addr: c.brokers[0].Addr}
	client, err := first.client(kgo.DefaultProduceTopic(read), kgo.ProducerBatchMaxBytes(batches[0])) // or no answer to fetch could be smaller
	if err != nil {
		return c, err
	}
	defer client.Close()
	if err := makeTopics(ctx, client); err != nil {
		return c, err
	}
	if _, err := produce(ctx, client, func(sent int64) bool { return sent < b.again() }); err != nil {
		return c, err
	}
	return c, nil
}

// limitAtBrokers gives the principal its rates at the brokers, which have no gateway before them any more.
func (c *cluster) limitAtBrokers(ctx context.Context) error {
	c.stopGateways()
	c.ways = []string{c.brokers[0].Addr}
	client, err := (&way{addr: c.ways[0]}).client()
	if err != nil {
		return err
	}
	defer client.Close()
	entry, user := kmsg.NewAlterClientQuotasRequestEntry(), kmsg.NewAlterClientQuotasRequestEntryEntity()
	user.Type, user.Name = "user", kmsg.StringPtr("ANONYMOUS")
	entry.Entity = append(entry.Entity, user)
	for _, key := range []string{"producer_byte_rate", "consumer_byte_rate"} {
		op := kmsg.NewAlterClientQuotasRequestEntryOp()
		op.Key, op.Value = key, float64(c.rate)
		entry.Ops = append(entry.Ops, op)
	}
	alter := kmsg.NewPtrAlterClientQuotasRequest()
	alter.Entries = append(alter.Entries, entry)
	altered, err := alter.RequestWith(ctx, client)
	if err == nil {
		err = kerr.ErrorForCode(altered.Entries[0].ErrorCode)
	}
	return err
}

// startGateways starts a Redis, and gateways that share it.
func (c *cluster) startGateways(ctx context.Context) error {
	redis, err := rig.Ports.Addr()
	if err != nil {
		return err
	}
	p, err := rig.StartListening(ctx, redis, c.redis, "--port", strconv.Itoa(port(redis)), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--loglevel", "warning")
	if err != nil {
		return fmt.Errorf("%w: run make parts, or name another with -redis", err)
	}
	c.servers = append(c.servers, p)
	var bootstrap []string
	for _, s := range c.brokers {
		bootstrap = append(bootstrap, strconv.Quote(s.Addr))
	}
	for range gateways {
		first, err := nodePorts(brokers)
		if err != nil {
			return err
		}
		listen, err1 := rig.Ports.Addr()
		admin, err2 := rig.Ports.Addr()
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		file := fmt.Sprintf(`admin: {address: %q}
kafka:
  bench:
    bootstrap: [%s]
    listen: {address: %q}
    nodes: {ports: %d-%d, advertise: 127.0.0.1}
    quotas: {produce: in, fetch: out}
stores:
  in: {redis: "redis://%[6]s", prefix: "in:"}
  out: {redis: "redis://%[6]s", prefix: "out:"}
gates:
  in: {quota: {rate: %[7]d/s, burst: %[8]d, by: [user], store: in}}
  out: {quota: {rate: %[7]d/s, burst: %[8]d, by: [user], store: out}}
`, admin, strings.Join(bootstrap, ", "), listen, first-1, first+brokers-1, redis, c.rate, burst*c.rate)
		if p, err = rig.StartWeir(ctx, c.weir, listen, file); err != nil {
			return err
		}
		c.servers, c.ways, c.admins = append(c.servers, p), append(c.ways, listen), append(c.admins, admin)
	}
	return nil
}

// play lets the principal produce and fetch, with batches of so many bytes, and returns a line for each kind.
func (c *cluster) play(ctx context.Context, batch int32) (kit.Table, error) {
	var m meters
	playing, end := context.WithCancel(ctx)
	var clients sync.WaitGroup
	defer clients.Wait()
	defer end()
	for i := range gateways { // as many clients where there is none
		w := way{addr: c.ways[i%len(c.ways)]}
		producer, err := w.client(kgo.DefaultProduceTopic(written), kgo.ProducerLinger(0), kgo.ProducerBatchMaxBytes(batch), kgo.WithHooks(&m[in]))
		if err != nil {
			return nil, err
		}
		clients.Go(func() {
			defer producer.Close()
			_, _ = produce(playing, producer, func(int64) bool { return true }) // what came of it is counted by m
		})
		clients.Go(func() {
			w.readOn(playing, c.again(), kgo.FetchMaxBytes(batch), kgo.FetchMaxPartitionBytes(batch), kgo.WithHooks(&m[out]))
		})
	}
	if err := m.awaitDelays(ctx); err != nil && (len(c.admins) > 0 || ctx.Err() != nil) { // brokers alone may allow more than this machine can move
		return nil, err
	}
	before, err := c.decisions(ctx)
	if err != nil {
		return nil, err
	}
	counts, err := m.follow(ctx, 2*c.window)
	if err != nil {
		return nil, err
	}
	after, err := c.decisions(ctx)
	if err != nil {
		return nil, err
	}
	var rows kit.Table
	for kind, name := range kindNames {
		asks := make([]float64, len(c.admins))
		for g := range asks {
			asks[g] = (after[g][kind] - before[g][kind]) / (2 * c.window).Seconds()
		}
		rows = append(rows, c.row(batch, name, windows(counts[kind], c.window), asks))
	}
	return rows, nil
}

// row judges the bytes a second of all windows, and the decisions a second of each gateway, if there are any.
func (b *bench) row(batch int32, kind string, rates, asks []float64) []string {
	var mega, off []float64
	for _, r := range rates {
		mega, off = append(mega, r/1e6), append(off, 100*math.Abs(r/float64(b.rate)-1))
	}
	near := (&kit.Goal{What: "off by, %", Bound: offGoal, AtMost: true, Every: true}).Judge(kit.SpreadOf(off))
	line := []string{"brokers alone", fmt.Sprintf("%d KiB", batch>>10), kind, text("%.2f", mega), fmt.Sprintf("%.3g %%", near.Max), "", ""}
	if len(asks) > 0 {
		few := (&kit.Goal{What: "decisions/s", Bound: asksGoal, AtMost: true, Every: true}).Judge(kit.SpreadOf(asks))
		line[0], line[5], line[6] = "gateways", text("%.1f", asks), near.String()+"; "+few.String()
	}
	return line
}

// decisions are those that each gateway has asked the store for, of each kind.
func (c *cluster) decisions(ctx context.Context) (all [][kinds]float64, err error) {
	for _, admin := range c.admins {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+admin+"/metrics", nil)
		if err != nil {
			return nil, err
		}
		answer, err := http.DefaultClient.Do(req)
		if err != nil {
			return nil, err
		}
		body, err := io.ReadAll(answer.Body)
		if err = errors.Join(err, answer.Body.Close()); err != nil {
			return nil, err
		}
		var n [kinds]float64
		for kind, gate := range gateNames {
			name := fmt.Sprintf("\nweir_store_takes_total{store=%q} ", gate)
			_, rest, ok := strings.Cut(string(body), name)
			if !ok {
				return nil, fmt.Errorf("the metrics at %s have no %s", admin, name)
			}
			value, _, _ := strings.Cut(rest, "\n")
			if n[kind], err = strconv.ParseFloat(value, 64); err != nil {
				return nil, err
			}
		}
		all = append(all, n)
	}
	return all, nil
}

// readOn reads the stored topic of so many bytes from its beginning, again and again, until ctx ends.
func (w *way) readOn(ctx context.Context, bytes int64, opts ...kgo.Opt) {
	opts = append(opts, kgo.ConsumeTopics(read), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	for ctx.Err() == nil {
		client, err := w.client(opts...)
		if err != nil {
			return // opts are at fault; nothing is counted then
		}
		for n := int64(0); n < bytes/recordLen && ctx.Err() == nil; {
			n += int64(client.PollFetches(ctx).NumRecords())
		}
		client.Close()
	}
}

// meters have one for each kind.
type meters [kinds]meter

// meter counts the bytes that clients of a kind move, and knows when their first delays end.
type meter struct {
	bytes atomic.Int64

	mu          sync.Mutex
	first, ends time.Time // of the first delay, and of the longest that clients were told of before that; zero: there was none
}

// OnBrokerE2E implements [kgo.HookBrokerE2E].
func (m *meter) OnBrokerE2E(_ kgo.BrokerMetadata, key int16, e kgo.BrokerE2E) {
	switch key {
	case int16(kmsg.Produce):
		m.bytes.Add(int64(e.BytesWritten))
	case int16(kmsg.Fetch):
		m.bytes.Add(int64(e.BytesRead))
	}
}

// OnBrokerThrottle implements [kgo.HookBrokerThrottle].
func (m *meter) OnBrokerThrottle(_ kgo.BrokerMetadata, wait time.Duration, _ bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	if m.first.IsZero() {
		m.first = now.Add(wait)
	}
	if now.Before(m.first) && now.Add(wait).After(m.ends) {
		m.ends = now.Add(wait)
	}
}

// late reports whether the first delays are over.
func (m *meter) late() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.first.IsZero() && time.Now().After(m.first) && time.Now().After(m.ends)
}

// awaitDelays returns when both kinds have used up their burst, and paid back what they had drawn beyond it before they were told.
func (m *meters) awaitDelays(ctx context.Context) error {
	for end := time.Now().Add(usedUpWithin); ; {
		if m[in].late() && m[out].late() {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("after %v not all are delayed: %d bytes produced, %d fetched; run it on a machine that does less", usedUpWithin, m[in].bytes.Load(), m[out].bytes.Load())
		}
		if err := loadgen.Pause(ctx, step); err != nil {
			return err
		}
	}
}

// count is the bytes so far, at a time since the first count.
type count struct {
	at    time.Duration
	bytes int64
}

// follow counts each step of a time.
func (m *meters) follow(ctx context.Context, length time.Duration) (counts [kinds][]count, err error) {
	begin := time.Now()
	for at := time.Duration(0); at <= length; at = time.Since(begin) {
		for kind := range kinds {
			counts[kind] = append(counts[kind], count{at, m[kind].bytes.Load()})
		}
		if err := loadgen.Pause(ctx, step); err != nil {
			return counts, err
		}
	}
	return counts, nil
}

// windows are the bytes a second between each count and the first that is at least so much later.
func windows(counts []count, length time.Duration) (rates []float64) {
	last := 0
	for _, c := range counts {
		for last < len(counts) && counts[last].at-c.at < length {
			last++
		}
		if last == len(counts) {
			break
		}
		rates = append(rates, float64(counts[last].bytes-c.bytes)/(counts[last].at-c.at).Seconds())
	}
	return rates
}
