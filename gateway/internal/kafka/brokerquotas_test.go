package kafka

import (
	"bytes"
	"log/slog"
	"maps"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/policy"
)

// Quotas of brokers that count the same as the gateway are counted, and logged once until something changes.
func TestBothHold(t *testing.T) {
	c, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	p, err := policy.Compile(policy.Spec{RuntimeRules: true, Gates: map[string]policy.GateSpec{"in": {Quota: &policy.QuotaSpec{}}, "out": {Quota: &policy.QuotaSpec{}}}}, policy.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	counted := Quotas{Produce: p.Gate("in"), Fetch: p.Gate("out")}
	k := config.Kafka{Bootstrap: c.ListenAddrs(), Listen: new(config.KafkaListen), Nodes: &config.KafkaNodes{Ports: "1-1"}}
	s, err := New(Options{Cluster: "orders", Config: k, Logger: slog.New(slog.NewTextHandler(&log, nil)), Quotas: func() Quotas { return counted }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	alterBy := func(req *kmsg.AlterClientQuotasRequest) {
		t.Helper()
		if resp, err := req.RequestWith(t.Context(), s.asks); err != nil || kerr.ErrorForCode(resp.Entries[0].ErrorCode) != nil {
			t.Fatalf("%+v, %v", resp, err)
		}
	}
	look := func(lines string, want map[string]int) {
		t.Helper()
		for i := range 2 {
			log.Reset()
			s.look(t.Context())
			if got := log.String(); i == 0 && !strings.Contains(got, lines) || (i == 1 || lines == "") && got != "" {
				t.Errorf("look %d: %q, want %q once", i, got, lines)
			}
		}
		if got := s.Snapshot().BrokerQuotas; !maps.Equal(got, want) || (got == nil) != (want == nil) {
			t.Errorf("%v, want %v", got, want)
		}
	}
	look("", map[string]int{produceRate: 0, fetchRate: 0})
	alterBy(alter("user=a", set(produceRate, 10), set("request_percentage", 5)))
	look(`brokers have quotas that count the same as this gateway; both hold, and the longer wait counts. To take these quotas over, run weir kafka import" cluster=orders producer_byte_rate=1 first="user=\"a\""`,
		map[string]int{produceRate: 1, fetchRate: 0})
	alterBy(alter("user=b", set(produceRate, 10), set(fetchRate, 5)))
	look("consumer_byte_rate=1 producer_byte_rate=2", map[string]int{produceRate: 2, fetchRate: 1})
	c.ControlKey(48, func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		resp := kmsg.NewPtrDescribeClientQuotasResponse()
		resp.ErrorCode = kerr.ClusterAuthorizationFailed.Code
		return resp, nil, true
	})
	look("cannot find out whether brokers have quotas that count the same as this gateway; such quotas would hold, too. The gateway's principal needs DESCRIBE_CONFIGS on the cluster", nil)
	counted = Quotas{}
	look("brokers have no quotas that count the same as this gateway", map[string]int{})
}

// A broker's quotas become rules here, if they can: rates of bytes and connections are multiplied, and stay whole.
func TestImported(t *testing.T) {
	q := Quotas{Samples: 11, Window: time.Second}
	for _, c := range []struct {
		kind, name, key string
		value           float64
		rate            string
		asked           float64
		err             string
	}{
		{ofUser, "a", produceRate, 1000, "3333/s", 0, ""},
		{ofUser, "a", fetchRate, 0.1, "1/s", 0, ""},
		{ofUser, "a", mutationRate, 0.5, "0.5/s", 0, ""},
		{ofUser, "a", produceRate, unlimited, "", unlimited, ""},
		{ofUser, "a", mutationRate, math.NaN(), "", 0, "is not a rate"},
		{ofUser, "a", produceRate, 0, "", 0, "is not a rate"},
		{ofAddress, "10.0.0.7", connectionRate, 10, "33/s", 0, ""},
		{ofAddress, "10.0.0.7", connectionRate, 0, "", 0, "is not a rate"},
		{ofAddress, "a", connectionRate, 10, "", 0, `"a" is not an address`},
	} {
		b := BrokerQuota{Key: c.key, Value: c.value, entity: []kmsg.DescribeClientQuotasResponseEntryEntity{{Type: c.kind, Name: &c.name}}}
		op, err := q.imported(&b, "gate", 3.333)
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s=%v: %v, want %q", c.key, c.value, err, c.err)
		}
		if err == nil && (op.Gate != "gate" || op.Set.Rate != c.rate || op.Asked != c.asked) {
			t.Errorf("%s=%v: %+v, want %s", c.key, c.value, op, c.rate)
		}
	}
}
