//go:build integration

package integration

import (
	"context"
	"encoding/base64"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/weir-go/weir/gateway/internal/await"
	"github.com/weir-go/weir/internal/testbed/kafka"
)

// Brokers that want a login again every 5 s get it from producers at work, and no record is late for it or lost. Who comes with a
// delegation token is its owner to the quotas, and the broker's word holds for who may do what.
func TestKafkaLoginsBehindTheGateway(t *testing.T) {
	t.Parallel()
	cluster := startKafka(t, kafka.Config{
		Users:    map[string]string{"alice": "secret", "weir": "gateway"},
		Settings: []string{"connections.max.reauth.ms=5000", "delegation.token.secret.key=of-these-tests", "allow.everyone.if.no.acl.found=false"},
	})
	admin := kafkaClient(t, kgo.SeedBrokers(cluster.Addr))
	allow(t, admin, "alice", kmsg.ACLResourceTypeTopic, "orders", kmsg.ACLOperationAll)
	allow(t, admin, "weir", kmsg.ACLResourceTypeDelegationToken, "*", kmsg.ACLOperationDescribe)
	if resp := createTopic(t, admin, "orders", 1); resp.Topics[0].ErrorCode != 0 {
		t.Fatalf("%+v", resp)
	}

	g := startKafkaGateway(t, `gates: {in: {quota: {rules: [{user: alice, rate: 100/s, burst: 1000000000}]}}}`,
		&behind{name: "orders", brokers: []string{cluster.SASL}, user: "weir", password: "gateway", quotas: "produce: in"})

	alice := plain.Auth{User: "alice", Pass: "secret"}.AsMechanism()
	ask := kmsg.NewPtrCreateDelegationTokenRequest()
	ask.MaxLifetimeMillis = int64(time.Hour / time.Millisecond)
	token, err := ask.RequestWith(t.Context(), kafkaClient(t, kgo.SeedBrokers(g.addr), kgo.SASL(alice)))
	if err != nil || token.ErrorCode != 0 {
		t.Fatalf("%+v, %v", token, err)
	}
	byToken := scram.Auth{User: token.TokenID, Pass: base64.StdEncoding.EncodeToString(token.HMAC), IsToken: true}
	for how, m := range map[string]sasl.Mechanism{
		"by a token": byToken.AsSha256Mechanism(),
		// Only alice may produce, so it is the last that the broker takes.
		"by two names": saying("n,,\x01auth=Bearer " + unsigned("bob") + "\x01auth=Bearer " + unsigned("alice") + "\x01\x01"),
	} {
		before := leftOf(t, g, "Produce", "alice")
		owner := kafkaClient(t, kgo.SeedBrokers(g.addr), kgo.SASL(m), kgo.ProducerBatchCompression(kgo.NoCompression()))
		if err := owner.ProduceSync(t.Context(), &kgo.Record{Topic: "orders", Value: make([]byte, 50_000)}).FirstErr(); err != nil {
			t.Fatalf("%s: %v", how, err)
		}
		if after := leftOf(t, g, "Produce", "alice"); after > before-40_000 {
			t.Errorf("%s 50,000 bytes are produced, and of alice's %v are left of %v", how, after, before)
		}
	}
	if n := loginsOf(t, g, "orders"); n.LoginsUnnamed != 0 {
		t.Errorf("%+v", n)
	}

	logsInUnderLoad(t, g, byToken)
}

// saying is OAUTHBEARER with a message of its own.
type saying string

func (saying) Name() string { return "OAUTHBEARER" }

func (s saying) Authenticate(context.Context, string) (sasl.Session, []byte, error) {
	return s, []byte(s), nil
}

func (saying) Challenge([]byte) (bool, []byte, error) { return true, nil, nil }

// loginMargin is how long before the end of a session franz-go logs in again. A request that takes longer, on a busy machine,
// may find the session over.
const loginMargin = time.Second

// logsInUnderLoad produces by three mechanisms until each connection has logged in again twice.
func logsInUnderLoad(t *testing.T, g *gateway, byToken scram.Auth) {
	begin := loginsOf(t, g, "orders")
	var lost atomic.Int64
	var done atomic.Bool
	var all sync.WaitGroup
	pass := scram.Auth{User: "alice", Pass: "secret"}
	for _, m := range []kgo.Opt{kgo.SASL(plain.Auth{User: "alice", Pass: "secret"}.AsMechanism()), kgo.SASL(pass.AsSha512Mechanism()), kgo.SASL(byToken.AsSha512Mechanism())} {
		c := kafkaClient(t, kgo.SeedBrokers(g.addr), m, kgo.RecordRetries(0), kgo.DisableIdempotentWrite(), kgo.MaxProduceRequestsInflightPerBroker(5), kgo.ProducerLinger(0),
			kgo.WithHooks(&disconnects{n: &lost}))
		all.Go(func() {
			for !done.Load() {
				var batch []*kgo.Record
				for range 20 {
					batch = append(batch, &kgo.Record{Topic: "orders", Value: make([]byte, 500)})
				}
				begin := time.Now()
				if err := c.ProduceSync(t.Context(), batch...).FirstErr(); err != nil && time.Since(begin) < loginMargin {
					t.Errorf("a record is lost: %v", err)
					return
				}
			}
		})
	}
	defer all.Wait()
	defer done.Store(true)
	// A seed connection of each may be among them.
	again := begin.Logins + 3 + 3*3
	var now kafkaLogins
	await.That(t, "each logs in again twice", func() bool {
		now = loginsOf(t, g, "orders")
		return now.Logins >= again
	})
	if now.LoginsFailed != begin.LoginsFailed || lost.Load() != 0 {
		t.Errorf("%+v, before %+v; %d connections ended", now, begin, lost.Load())
	}
}

// disconnects counts connections that somebody else ends before a session is over.
type disconnects struct{ n *atomic.Int64 }

func (d *disconnects) OnBrokerRead(_ kgo.BrokerMetadata, _ int16, _ int, waited, read time.Duration, err error) {
	if err != nil && !errors.Is(err, kgo.ErrClientClosed) && waited+read < loginMargin {
		d.n.Add(1)
	}
}
