//go:build integration

package integration

import (
	"cmp"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weir-go/weir/gateway/internal/await"
	"github.com/weir-go/weir/internal/testbed/kafka"
)

var update = flag.Bool("update", false, "write the golden files anew")

// configs is what kafka-configs is asked for, one line a command: users, clients, both, addresses, the defaults of all, values at the ends of
// what there is, and what is refused. In the end nothing is left.
const configs = `
--alter --add-config controller_mutation_rate=10,producer_byte_rate=10485760 --entity-type users --entity-name user1 --entity-type clients --entity-name clientA
--describe --entity-type users --entity-name user1 --entity-type clients --entity-name clientA
--alter --add-config consumer_byte_rate=1048576,request_percentage=12.5 --entity-type users --entity-name user1
--alter --add-config controller_mutation_rate=0.5,producer_byte_rate=9223372036854775807 --entity-type clients --entity-name clientA
--alter --add-config controller_mutation_rate=1e300 --entity-type users --entity-default
--alter --add-config producer_byte_rate=7000 --entity-type users --entity-default --entity-type clients --entity-default
--alter --add-config producer_byte_rate=8000 --entity-type users --entity-name * --entity-type clients --entity-name a,client=b
--alter --add-config connection_creation_rate=1000 --entity-type ips --entity-default
--alter --add-config connection_creation_rate=2000 --entity-type ips --entity-name 10.0.0.7
--describe --entity-type users
--describe --entity-type users --entity-default
--describe --entity-type clients
--describe --entity-type users --entity-type clients
--describe --entity-type ips
--describe --entity-type ips --entity-name 10.0.0.7
--describe --entity-type users --entity-name nobody
--alter --add-config producer_byte_rate=0 --entity-type users --entity-name user1
--alter --delete-config producer_byte_rate --entity-type users --entity-name user1
--alter --delete-config producer_byte_rate --entity-type users --entity-name user1 --entity-type clients --entity-name clientA
--alter --delete-config controller_mutation_rate --entity-type users --entity-default
--alter --delete-config connection_creation_rate --entity-type ips --entity-name 10.0.0.7
--describe --entity-type users --entity-type clients
--describe --entity-type ips
`

// Quotas of Kafka's own protocol, before one broker. Each test leaves none at the broker, but the last.
func TestKafkaQuotas(t *testing.T) {
	t.Parallel()
	cluster := startKafka(t, kafka.Config{})
	for _, test := range []struct {
		name string
		run  func(*testing.T, *kafka.Server)
	}{
		{"connections", kafkaConnectionQuota}, {"import", kafkaImport}, {"configs", kafkaConfigsAgree},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, cluster) })
	}
}

// kafka-configs says through the gateway what it says at the broker, command by command. What differs stands in the golden file for
// both.
func kafkaConfigsAgree(t *testing.T, cluster *kafka.Server) {
	t.Helper()
	g := startKafkaGateway(t, `
gates: {topics: {quota: {debt: true}}, in: {quota: {}}, out: {quota: {}}, dial: {quota: {queue: {len: 1000, max_wait: 20s}}}}
runtime_quotas: {file: quotas.json}
`, &behind{name: "orders", brokers: []string{cluster.Addr}, quotas: "mutations: topics, produce: in, fetch: out, connections: dial"})

	commands := strings.Split(strings.TrimSpace(configs), "\n")
	through := kafkaConfigs(t, cluster, g.addr, commands)
	isKept(t, g, cluster)
	atBroker := kafkaConfigs(t, cluster, cluster.Addr, commands)
	var got strings.Builder
	for i, command := range commands {
		fmt.Fprintf(&got, "$ kafka-configs %s\n", command)
		if atBroker[i] == through[i] {
			got.WriteString(through[i])
		} else {
			fmt.Fprintf(&got, "at the broker:\n%sthrough the gateway:\n%s", atBroker[i], through[i])
		}
	}
	compare(t, filepath.Join("testdata", "kafka", "kafka-configs.txt"), got.String())
}

// kafkaConfigs is what kafka-configs says to each line of arguments, with sorted lines, because it promises no order.
func kafkaConfigs(t *testing.T, cluster *kafka.Server, at string, lines []string) []string {
	t.Helper()
	all := make([]string, len(lines))
	for i, line := range lines {
		all[i] = "kafka.admin.ConfigCommand --bootstrap-server " + at + " " + line
	}
	said := tools(t, cluster, all)
	for i := range said {
		text, why, _ := strings.Cut(said[i], failed)
		printed := strings.Split(strings.TrimSpace(text), "\n")
		slices.Sort(printed)
		if why != "" {
			why, _, _ = strings.Cut(failed+why, "\n\tat ") // the stack
		}
		text = strings.TrimSpace(strings.Join(printed, "\n") + strings.TrimSpace(why))
		said[i] = strings.ReplaceAll(cmp.Or(text, "(nothing)"), at, "ADDRESS") + "\n"
	}
	return said
}

// isKept shows that what a gate counts is kept by the gateway, with who has set it, and the rest by the broker.
func isKept(t *testing.T, g *gateway, cluster *kafka.Server) {
	t.Helper()
	resp, err := kmsg.NewPtrDescribeClientQuotasRequest().RequestWith(t.Context(), kafkaClient(t, kgo.SeedBrokers(cluster.Addr)))
	if err != nil || len(resp.Entries) != 1 || len(resp.Entries[0].Values) != 1 || resp.Entries[0].Values[0].Key != "request_percentage" {
		t.Errorf("the broker has %+v, %v; want the share of its threads alone", resp, err)
	}
	out, ok := weirCommand(t, "quota", "list", "--admin", strings.TrimPrefix(g.admin, "http://"))
	for _, want := range []string{`topics user=user1,client=clientA 10/s burst 110`, `in user='*',client='a,client=b' 8000/s burst 80000`, `in client=clientA exempt`, `dial address=* 1000/s burst 10000`, "User:ANONYMOUS of kafka.orders"} {
		if !ok || !strings.Contains(strings.Join(strings.Fields(out), " "), want) {
			t.Errorf("weir quota list has no %s:\n%s", want, out)
		}
	}
	if log := g.out.String(); !strings.Contains(log, "User:ANONYMOUS of kafka.orders") || !strings.Contains(log, "in; topics") {
		t.Errorf("no line for what was set:\n%s", log)
	}
}

// compare compares a text with that of a golden file.
func compare(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		writeFile(t, file, []byte(got))
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s is\n%s\nwant\n%s", file, got, want)
	}
}

// A quota of connections that a client sets holds at once: those that come too soon wait, and are served.
func kafkaConnectionQuota(t *testing.T, cluster *kafka.Server) {
	t.Helper()
	g := startKafkaGateway(t, `
gates: {dial: {quota: {queue: {len: 4, max_wait: 1m}}}} # of which one address may have half
runtime_quotas: {file: quotas.json}
`, &behind{brokers: []string{cluster.Addr}, quotas: "connections: dial"})
	req, entry := kmsg.NewPtrAlterClientQuotasRequest(), kmsg.NewAlterClientQuotasRequestEntry()
	ip, op := kmsg.NewAlterClientQuotasRequestEntryEntity(), kmsg.NewAlterClientQuotasRequestEntryOp()
	ip.Type, op.Key, op.Value = "ip", "connection_creation_rate", 1 // ten at once
	entry.Entity, entry.Ops = append(entry.Entity, ip), append(entry.Ops, op)
	req.Entries = append(req.Entries, entry)
	resp, err := req.RequestWith(t.Context(), kafkaClient(t, kgo.SeedBrokers(g.addr)))
	if err != nil || resp.Entries[0].ErrorCode != 0 {
		t.Fatalf("%+v, %v", resp, err)
	}
	begin := time.Now()
	clients := make([]net.Conn, 12)
	for i := range clients {
		if clients[i], err = net.Dial("tcp", g.addr); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = clients[i].Close() })
		if _, err := clients[i].Write(kmsg.NewRequestFormatter().AppendRequest(nil, kmsg.NewPtrApiVersionsRequest(), 1)); err != nil {
			t.Fatal(err)
		}
	}
	for i, c := range clients {
		if err := c.SetReadDeadline(time.Now().Add(await.Patience)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(make([]byte, 4)); err != nil {
			t.Errorf("connection %d: %v", i, err)
		}
	}
	if passed := time.Since(begin); passed < time.Second {
		t.Errorf("12 connections were served in %v, where 10 may come at once and one a second", passed)
	}
	if s := g.gate(t, "dial"); s.Admitted < 12 || s.Waiting != 0 {
		t.Errorf("%+v", s)
	}
}

// weir kafka import takes the quotas of real brokers over. As long as there are both, the gateway says so.
func kafkaImport(t *testing.T, cluster *kafka.Server) {
	t.Helper()
	client, name := kafkaClient(t, kgo.SeedBrokers(cluster.Addr)), "alice"
	set := func(quotas map[string]float64) { // a negative one is removed
		t.Helper()
		req, entry, is := kmsg.NewPtrAlterClientQuotasRequest(), kmsg.NewAlterClientQuotasRequestEntry(), kmsg.NewAlterClientQuotasRequestEntryEntity()
		is.Type, is.Name = "user", &name
		entry.Entity = append(entry.Entity, is)
		for key, value := range quotas {
			op := kmsg.NewAlterClientQuotasRequestEntryOp()
			op.Key, op.Value, op.Remove = key, value, value < 0
			entry.Ops = append(entry.Ops, op)
		}
		req.Entries = append(req.Entries, entry)
		if resp, err := req.RequestWith(t.Context(), client); err != nil || resp.Entries[0].ErrorCode != 0 {
			t.Fatalf("%+v, %v", resp, err)
		}
	}
	set(map[string]float64{"producer_byte_rate": 1000, "controller_mutation_rate": 0.5, "request_percentage": 50})
	own := func() string {
		resp, err := kmsg.NewPtrDescribeClientQuotasRequest().RequestWith(t.Context(), client)
		if err != nil {
			t.Fatal(err)
		}
		var keys []string
		for _, e := range resp.Entries {
			for _, v := range e.Values {
				keys = append(keys, v.Key)
			}
		}
		slices.Sort(keys)
		return strings.Join(keys, " ")
	}
	const all = "controller_mutation_rate producer_byte_rate request_percentage"
	eventually(t, "the broker knows its quotas", func() bool { return own() == all }) // it learns of them from the controller

	g := startKafkaGateway(t, `
gates: {topics: {quota: {debt: true}}, in: {quota: {}}}
runtime_quotas: {file: quotas.json}
`, &behind{name: "orders", brokers: []string{cluster.Addr}, quotas: "mutations: topics, produce: in"})
	admin, token := strings.TrimPrefix(g.admin, "http://"), filepath.Join(filepath.Dir(g.config), "token")
	eventually(t, "the gateway says that both hold", func() bool { return strings.Contains(g.out.String(), "both hold, and the longer wait counts") })
	if metrics := string(get(t, g.admin+"/metrics")); !strings.Contains(metrics, `weir_kafka_broker_quotas{cluster="orders",key="producer_byte_rate"} 1`) {
		t.Error("the metric does not say so")
	}
	imports := func(want string, args ...string) {
		t.Helper()
		out, ok := weirCommand(t, append([]string{"kafka", "import", g.config, "--factor", "3", "--admin", admin, "--token-file", token}, args...)...)
		if !ok || !strings.Contains(strings.Join(strings.Fields(out), " "), want) {
			t.Errorf("%v: no %q in\n%s", args, want, out)
		}
	}
	imports(`user "alice" producer_byte_rate 1000 in 3000/s burst 30000 nothing is changed`)
	if now := own(); now != all {
		t.Errorf("only shown, and the broker has %s", now)
	}
	imports("deleted at the brokers: 2", "--apply", "--remove")
	eventually(t, "the broker has what is not counted here", func() bool { return own() == "request_percentage" })
	set(map[string]float64{"request_percentage": -1})
	eventually(t, "the broker has no quotas", func() bool { return own() == "" })
	out, ok := weirCommand(t, "quota", "list", "--admin", admin)
	if text := strings.Join(strings.Fields(out), " "); !ok || !strings.Contains(text, "topics user=alice 0.5/s burst 5.5") || !strings.Contains(text, "in user=alice 3000/s burst 30000") {
		t.Errorf("weir quota list: %s", out)
	}
}
