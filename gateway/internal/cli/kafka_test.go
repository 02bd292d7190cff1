package cli

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weir-go/weir/gateway/internal/config"
)

// brokersWith starts a cluster of three brokers with quotas: entities as type=name or type, and their quotas.
func brokersWith(t *testing.T, quotas map[string]map[string]float64) (addrs []string, describe func() string) {
	t.Helper()
	c, err := kfake.NewCluster(kfake.NumBrokers(3))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	client, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	req := kmsg.NewPtrAlterClientQuotasRequest()
	for id, values := range quotas {
		e := kmsg.NewAlterClientQuotasRequestEntry()
		for part := range strings.FieldsSeq(id) {
			is := kmsg.NewAlterClientQuotasRequestEntryEntity()
			kind, name, named := strings.Cut(part, "=")
			if is.Type = kind; named {
				is.Name = &name
			}
			e.Entity = append(e.Entity, is)
		}
		for key, value := range values {
			op := kmsg.NewAlterClientQuotasRequestEntryOp()
			op.Key, op.Value = key, value
			e.Ops = append(e.Ops, op)
		}
		req.Entries = append(req.Entries, e)
	}
	if len(req.Entries) > 0 {
		resp, err := req.RequestWith(t.Context(), client)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range resp.Entries {
			if e.ErrorCode != 0 {
				t.Fatalf("%+v", e)
			}
		}
	}
	return c.ListenAddrs(), func() string {
		resp, err := kmsg.NewPtrDescribeClientQuotasRequest().RequestWith(t.Context(), client)
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, e := range resp.Entries {
			for _, v := range e.Values {
				all = append(all, v.Key)
			}
		}
		return strings.Join(all, " ")
	}
}

// The quotas of brokers are shown first, then set, and then deleted there. What a gate does not count stays with the brokers.
func TestKafkaImport(t *testing.T) {
	addrs, brokers := brokersWith(t, map[string]map[string]float64{
		"user=alice":               {"producer_byte_rate": 1048576, "request_percentage": 50, "controller_mutation_rate": 0.5},
		"user=alice client-id=app": {"consumer_byte_rate": 9223372036854775807},
		"user client-id":           {"producer_byte_rate": 70},
		"ip=10.0.0.7":              {"connection_creation_rate": 20},
	})
	file := write(t, "weir.yaml", fmt.Sprintf(`
kafka:
  orders:
    bootstrap: ["%s"]
    listen: {address: 127.0.0.1:19092}
    nodes: {ports: 19100-19110, advertise: 127.0.0.1}
    quotas: {mutations: topics, produce: in, fetch: out, connections: dial}
  other: {bootstrap: [127.0.0.1:9]}
gates: {topics: {quota: {debt: true}}, in: {quota: {}}, out: {quota: {}}, dial: {quota: {}}}
runtime_quotas: {file: quotas.json}
`, strings.Join(addrs, `", "`)))
	cfg, err := config.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	at, token := quotaGatewayOf(t, cfg.Policy())
	f := func(part string, args ...string) string {
		t.Helper()
		out, _, err := run(NewKafkaCommand(), "", append([]string{"import", file, "--admin", at, "--token-file", token}, args...)...)
		if text := out + fmt.Sprint(err); !strings.Contains(text, part) {
			t.Errorf("%v: no %q in\n%s", args, part, text)
		}
		return out
	}
	rules := func() string {
		out, _, err := run(NewQuotaCommand(), "", "list", "--admin", at)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(strings.Fields(out), " ")
	}
	const all = 6 // of the brokers
	if n := len(strings.Fields(brokers())); n != all {
		t.Fatalf("%d quotas of the brokers", n)
	}
	want := `cluster orders, rates of bytes and connections × 3

WHO                             QUOTA                     AT THE BROKERS        GATE    HERE
default user, default client-id producer_byte_rate        70                    in      210/s burst 2100
user "alice", client-id "app"   consumer_byte_rate        9223372036854776000 out     exempt
ip "10.0.0.7"                   connection_creation_rate  20                    dial    60/s burst 600
user "alice"                    controller_mutation_rate  0.5                   topics  0.5/s burst 5.5
user "alice"                    producer_byte_rate        1048576               in      3145728/s burst 31457280

nothing is changed; --apply sets these rules, and with --remove the brokers' quotas are deleted then
`
	words := func(text string) string { return strings.Join(strings.Fields(text), " ") }
	if got := f("nothing is changed"); words(got) != words(want) {
		t.Errorf("shown as\n%s\nwant\n%s", got, want)
	}
	if got := f("nothing is changed", "--remove", "--factor", "1.5"); !strings.Contains(words(got), "1048576 in 1572864/s burst 15728640") {
		t.Errorf("with a factor:\n%s", got)
	}
	if got := rules(); !strings.HasSuffix(got, "none") || len(strings.Fields(brokers())) != all {
		t.Errorf("only shown, and there are rules: %s; the brokers have %s", got, brokers())
	}
	f("in force at the gateway: 5; the brokers' own hold too", "--apply")
	if got := rules(); !strings.Contains(got, "in user=*,client=* 210/s burst 2100") || !strings.Contains(got, "out user=alice,client=app exempt") || len(strings.Fields(brokers())) != all {
		t.Errorf("%s; the brokers have %s", got, brokers())
	}
	f("deleted at the brokers: 5", "--apply", "--remove", "--factor", "2")
	if got := rules(); !strings.Contains(got, "in user=alice 2097152/s burst 20971520") || brokers() != "request_percentage" {
		t.Errorf("%s; the brokers have %s", got, brokers())
	}
	f("the brokers of orders have no quotas that the gateway counts", "--apply", "--remove")
}

func TestKafkaImportFaults(t *testing.T) {
	addrs, brokers := brokersWith(t, map[string]map[string]float64{"user=alice": {"producer_byte_rate": 1000}})
	with := func(kafka string) string {
		return write(t, "weir.yaml", strings.ReplaceAll("kafka:\n"+kafka+"gates: {in: {quota: {}}, slots: {limit: 5}}\nupstreams: {app: {targets: [http://127.0.0.1:1]}}\nroutes: [{match: [/], upstream: app}]\nruntime_quotas: {file: quotas.json}\n", "ADDR", addrs[0]))
	}
	const counts = "listen: {address: 127.0.0.1:19092}, nodes: {ports: 19100-19110, advertise: 127.0.0.1}, quotas: {produce: in}}\n"
	one := with("  orders: {bootstrap: [ADDR], " + counts)
	at, token := quotaGateway(t) // which has no gate of that name
	f := func(code int, part string, args ...string) {
		t.Helper()
		_, _, err := run(NewKafkaCommand(), "", append([]string{"import"}, args...)...)
		got := exitError
		if exit := (*ExitError)(nil); errors.As(err, &exit) {
			got = exit.Code
		}
		if err == nil || got != code || !strings.Contains(err.Error(), part) {
			t.Errorf("%v: %d, %v; want %d, %q", args, got, err, code, part)
		}
	}
	f(2, "needs a file")
	f(2, "--factor 0 multiplies rates of bytes and connections", one, "--factor", "0")
	f(2, "--factor NaN", one, "--factor", "NaN")
	f(2, "weir.yaml has no such cluster; it has orders", one, "--cluster", "ordres")
	f(1, "counts nothing for a cluster of Kafka", with("  orders: {bootstrap: [ADDR]}\n"))
	const plainly = "listen: {address: 127.0.0.1:19094}, nodes: {ports: 19300-19310, advertise: 127.0.0.1}}\n"
	f(1, "counts nothing for a cluster of Kafka", with("  orders: {bootstrap: [ADDR], "+plainly))
	both := with("  orders: {bootstrap: [ADDR], " + counts + "  plainly: {bootstrap: [ADDR], " + plainly)
	f(1, "counts nothing for cluster plainly", both, "--cluster", "plainly")
	f(1, "no gateway answers", both, "--admin", "127.0.0.1:1") // orders is the only one that counts
	f(1, "counts nothing for cluster orders", with("  orders: {bootstrap: [ADDR]}\n"), "--cluster", "orders")
	f(2, "has several clusters; add --cluster, one of a, b", with("  a: {bootstrap: [ADDR], "+counts+"  b: {bootstrap: [ADDR], listen: {address: 127.0.0.1:19093}, nodes: {ports: 19200-19210, advertise: 127.0.0.1}, quotas: {produce: in}}\n"))
	f(1, "do not say which quotas they have", with("  orders: {bootstrap: [127.0.0.1:1], "+counts))
	f(1, "no gateway answers", one, "--admin", "127.0.0.1:1")
	f(1, "--token-file names the file with the gateway's token", one, "--admin", at)
	f(1, `there is no gate "in"`, one, "--admin", at, "--token-file", token, "--apply", "--remove")
	if got := brokers(); got != "producer_byte_rate" {
		t.Errorf("the rules could not be set, and the brokers have %q", got)
	}
}
