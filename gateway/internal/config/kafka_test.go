package config

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/weirkafka"
)

const kafkaFile = `
upstreams: {app: {targets: [http://127.0.0.1:3000]}}
kafka:
  main:
    bootstrap: [127.0.0.1:9092, "kafka.internal:9093"]
    tls: {}
    sasl: {mechanism: scram-sha-512, user: weir, password_file: secret}
signals:
  behind: {read: kafka_lag, cluster: main, group: indexer, topics: [a, b], take: max, from: latest}
  kafka_lag: {cluster: main, group: indexer, topics: [a], interval: 5s}
gates:
  api: {limit: {controller: lag, lag: {signal: behind}}}
  other: {limit: {controller: drain, drain: {signal: kafka_lag}}}
routes: [{match: [/], gates: [api, other], upstream: app}]
`

func TestKafka(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "secret"), []byte("hush\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Parse(filepath.Join(dir, "weir.yaml"), []byte(kafkaFile))
	if err != nil {
		t.Fatal(err)
	}
	lag, err := c.KafkaLag("behind")
	if err != nil {
		t.Fatal(err)
	}
	if lag.Name != "behind" || lag.Group != "indexer" || len(lag.Topics) != 2 || lag.Take != weirkafka.Max || lag.From != weirkafka.Latest ||
		len(lag.Brokers) != 2 || lag.TLS == nil || len(lag.SASL) != 1 || lag.SASL[0].Name() != "SCRAM-SHA-512" {
		t.Errorf("%+v", lag)
	}
	specs := c.Policy().Signals
	if got := time.Duration(specs["behind"].Interval); got != time.Second {
		t.Errorf("read every %v", got)
	}
	if got := time.Duration(specs["kafka_lag"].Interval); got != 5*time.Second {
		t.Errorf("read every %v, not as the file says", got)
	}
	if err := os.Remove(filepath.Join(dir, "secret")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.KafkaLag("behind"); err == nil || !strings.Contains(err.Error(), "kafka.main: ") {
		t.Errorf("without its password: %v", err)
	}
}

// Each setting of a lag reaches what reads it, and beside another kind of signal it is a fault.
func TestKafkaLagSettings(t *testing.T) {
	const file = `
upstreams: {app: {targets: [http://127.0.0.1:3000]}}
kafka: {main: {bootstrap: [127.0.0.1:9092]}, other: {bootstrap: [127.0.0.1:9093]}}
signals: {s: {%s}}
gates: {api: {limit: {controller: lag, lag: {signal: s}}}}
routes: [{match: [/], gates: [api], upstream: app}]
`
	read := func(settings map[string]string) weirkafka.LagConfig {
		t.Helper()
		all := []string{"read: kafka_lag"}
		for key, value := range settings {
			all = append(all, key+": "+value)
		}
		c, err := Parse("weir.yaml", fmt.Appendf(nil, file, strings.Join(all, ", ")))
		if err != nil {
			t.Fatal(err)
		}
		lag, err := c.KafkaLag("s")
		if err != nil {
			t.Fatal(err)
		}
		return lag
	}
	least := map[string]string{"cluster": "other", "group": "g", "topics": "[a]"}
	for field := range reflect.TypeFor[Signal]().Fields() {
		if field.Anonymous {
			continue
		}
		key, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		example := field.Tag.Get("example")
		changed := maps.Clone(least)
		changed[key] = example
		if reflect.DeepEqual(read(changed), read(least)) {
			t.Errorf("%s: %s changes nothing", key, example)
		}
		_, err := Parse("weir.yaml", fmt.Appendf(nil, file, "read: http, url: http://127.0.0.1:8000/lag, "+key+": "+example))
		if err == nil || !strings.Contains(err.Error(), "signals.s."+key+": means nothing to a signal that reads http") {
			t.Errorf("%s beside read: http: %v", key, err)
		}
	}
}

// All faults are reported at once, each with its line.
func TestKafkaFaults(t *testing.T) {
	_, err := Parse("weir.yaml", []byte(`
upstreams: {app: {targets: [http://127.0.0.1:3000]}}
kafka:
  main:
    bootstrap: [localhost]
    sasl: {mechanism: gssapi, user: weir}
  other:
    bootstrap: [127.0.0.1:9092]
    sasl: {mechanism: plain, user: weir}
signals:
  none: {read: kafka_lag}
  wrong: {read: kafka_lag, cluster: maim, group: g, topics: [a, "b c", a], take: mean}
  memory: {group: g}
gates:
  api: {limit: {controller: lag, lag: {signal: wrong}}}
routes: [{match: [/], gates: [api], upstream: app}]
`))
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{
		`weir.yaml:5:`, `kafka.main.bootstrap[0]: "localhost" has no port; write localhost:9092`,
		`weir.yaml:6:`, `kafka.main.sasl.mechanism: `,
		`weir.yaml:9:`, `kafka.other.sasl: there is no password; write password_file, or password_env`,
		`weir.yaml:11:`, `signals.none.cluster: no cluster is named`, `signals.none.group: no consumer group is named`, `signals.none.topics: no topic is named`,
		`weir.yaml:12:`, `signals.wrong.cluster: there is no cluster "maim"; write main`, `signals.wrong.topics[1]: "b c" is not a name of a topic`,
		`signals.wrong.topics[2]: "a" is in the list already`, `signals.wrong.take: `,
		`weir.yaml:13:`, `signals.memory.group: means nothing to a signal that reads memory`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in:\n%v", want, err)
		}
	}
}

// A word for what a signal reads that is nearly kafka_lag, or stands beside its settings, is the only fault there.
func TestKafkaLagMisspelt(t *testing.T) {
	for _, signal := range []string{
		`behind: {read: kafkalag, cluster: main, group: g, topics: [t]}`,
		`behind: {read: consumer_lag, cluster: main, group: g, topics: [t]}`,
		`kafka_lagg: {threshold: 10}`,
	} {
		_, err := Parse("weir.yaml", []byte(`
upstreams: {app: {targets: [http://127.0.0.1:3000]}}
kafka: {main: {bootstrap: [127.0.0.1:9092]}}
signals: {`+signal+`}
gates: {api: {limit: {limit: 10}}}
routes: [{match: [/], gates: [api], upstream: app}]
`))
		if err == nil || !strings.HasSuffix(err.Error(), `is nothing that a signal can read; write read: kafka_lag`) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", signal, err)
		}
	}
}

// What a reading cannot ask for in one request is no file that is right.
func TestKafkaTopicsAreBounded(t *testing.T) {
	var topics []string
	for i := range weirkafka.MaxTopics + 1 {
		topics = append(topics, fmt.Sprint("t", i))
	}
	for n, want := range map[int]string{weirkafka.MaxTopics: "", weirkafka.MaxTopics + 1: "signals.behind.topics: 1001 topics are too many"} {
		_, err := Parse("weir.yaml", fmt.Appendf(nil, `
upstreams: {app: {targets: [http://127.0.0.1:3000]}}
kafka: {main: {bootstrap: [127.0.0.1:9092]}}
signals: {behind: {read: kafka_lag, cluster: main, group: g, topics: [%s]}}
gates: {api: {limit: {limit: 10}}}
routes: [{match: [/], gates: [api], upstream: app}]
`, strings.Join(topics[:n], ", ")))
		if got := fmt.Sprint(err); (err == nil) != (want == "") || want != "" && !strings.Contains(got, want) {
			t.Errorf("%d topics: %.300s", n, got)
		}
	}
}

const listenFile = `
kafka:
  orders:
    bootstrap: [10.0.0.1:9092]
    listen: {address: "127.0.0.1:19092", max_connections: 50}
    nodes: {ports: 9100-9199, advertise: kafka.example.org}
`

// A file that lets clients of Kafka in needs nothing about HTTP, and nobody listens there.
func TestKafkaListen(t *testing.T) {
	c, err := Parse("weir.yaml", []byte(listenFile))
	if err != nil {
		t.Fatal(err)
	}
	k := c.Kafka["orders"]
	if first, last := k.Nodes.Range(); first != 9100 || last != 9199 || k.Nodes.Advertise != "kafka.example.org" {
		t.Errorf("%d to %d at %s", first, last, k.Nodes.Advertise)
	}
	l := k.Listen.Listener("127.0.0.1:9101")
	if l.Address != "127.0.0.1:9101" || l.MaxConnections != 50 || l.Connections.Addresses != 65536 || l.TLS != nil {
		t.Errorf("%+v", l)
	}
	if names := c.KafkaListeners(); len(names) != 1 || len(c.Listeners) != 0 || c.ServesHTTP() {
		t.Errorf("%v, and %d listeners for HTTP", names, len(c.Listeners))
	}
	if notes := c.Notes(); len(notes) != 0 {
		t.Errorf("%v", Texts(notes))
	}
}

// Gates count for a cluster. No route uses them and no identity says who clients of Kafka are, and that is right.
func TestKafkaQuotas(t *testing.T) {
	c, err := Parse("weir.yaml", []byte(listenFile+`    quotas: {mutations: topics, produce: in, fetch: out, connections: dial, auto_create: off}
    oauth_claim: client_id
gates:
  dial: {quota: {rate: 20/s, count: requests, by: [address], queue: {len: 100, max_wait: 20s}, rules: [{address: 10.0.0.0/8, exempt: true}]}}
  topics: {quota: {rate: 10/s, burst: 110, by: [user, client], debt: true}}
  in: {quota: {rate: 10485760/s, burst: 104857600, by: [user, client]}}
  out: {quota: {rate: 20971520/s, rules: [{user: alice, client: app, rate: 2000000/s}]}}
`))
	if err != nil {
		t.Fatal(err)
	}
	if k := c.Kafka["orders"]; k.OAuthClaim != "client_id" || k.Quotas.AutoCreate != Off {
		t.Errorf("%+v", k)
	}
	if q := c.Kafka["orders"].Quotas; q.Mutations != "topics" || q.Produce != "in" || q.Fetch != "out" || time.Duration(q.MaxThrottle) != 20*time.Second {
		t.Errorf("%+v", q)
	}
	if notes := c.Notes(); len(notes) != 0 {
		t.Errorf("%v", Texts(notes))
	}
	if got, want := c.Policy().OtherWork, map[string]string{"topics": "", "in": "", "out": "", "dial": "user"}; !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// Quotas for clients of Kafka that do something else than their author thinks.
func TestKafkaQuotaNotes(t *testing.T) {
	c, err := Parse("weir.yaml", []byte(listenFile+`    quotas: {mutations: topics, produce: in, fetch: out, max_throttle: 1m}
  second:
    bootstrap: [10.0.0.1:9092]
    sasl: {mechanism: scram-sha-256, user: weir, password_env: HOME}
    listen: {address: "127.0.0.1:19093"}
    nodes: {ports: 9200-9299, advertise: kafka.example.org}
    quotas: {mutations: topics, fetch: small}
gates:
  topics: {quota: {rate: 10/s, burst: 1, by: [user], debt: true, queue: {len: 5}}}
  in: {quota: {rate: 1000/s, by: [client], rules: [{user: alice, client: app, rate: 1000/s, burst: 999.5}]}}
  out: {quota: {limits: [2000000/s, 1000 a day], by: [user, client]}}
  small: {quota: {rate: 1000/s, by: [user], permissive: true}}
  unused: {quota: {rate: 1/s}}
`))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"weir.yaml:7:72: warning: kafka.orders.quotas.max_throttle is 1m0s, and clients give a connection up after 30s without an answer (request.timeout.ms). Those that send meanwhile come back on another connection, and wait for nothing; write less: what is owed stays a debt",
		"weir.yaml:13:25: warning: the gate topics counts for the clusters orders and second. What clients use of one is not there for the other, and a quota set at one holds at both. Give each a gate of its own",
		"warning: the gate topics counts by the user, but kafka.orders has no sasl, so brokers ask nobody for a name. All clients are ANONYMOUS, and share one bucket; count by: [client] too, or let the gateway and clients log in",
		"warning: nothing waits in the queue of the gate topics: clients of Kafka are told to wait, and are not read meanwhile; remove queue",
		"warning: permissive means nothing at the gate small: bytes always go into debt, and mutations of clients that do not know error 89; remove it",
		"warning: the quota in holds 999.5 bytes, less than the 1000 that come back in a second, so clients within their rate are delayed. Brokers allow ten seconds' worth, burst: 10000",
		"warning: the quota out holds 1000 bytes, and a fetch may bring 1048576, so it is a debt whatever was there before. Give it a burst of 1048576",
		"warning: the quota small holds 1000 bytes, and a fetch may bring 1048576, so it is a debt whatever was there before. Give it a burst of 1048576",
		"warning: no route uses the gate unused",
	}
	got := c.Notes()
	for _, w := range want {
		if n := slices.IndexFunc(got, func(n Note) bool { return strings.HasSuffix(n.Error(), w) }); n < 0 {
			t.Errorf("no note %s", w)
		} else {
			got = slices.Delete(got, n, n+1)
		}
	}
	for _, n := range got {
		t.Errorf("also %s", n.Error())
	}
}

func TestKafkaQuotaFaults(t *testing.T) {
	_, err := Parse("weir.yaml", []byte(`
kafka:
  first:
    bootstrap: [10.0.0.1:9092]
    listen: {address: 127.0.0.1:19091}
    nodes: {ports: 9100-9199, advertise: kafka.example.org}
    quotas: {produce: inn, fetch: slots, max_throttle: 1ms}
  second:
    bootstrap: [10.0.0.1:9092]
    listen: {address: 127.0.0.1:19092}
    nodes: {ports: 9200-9299, advertise: kafka.example.org}
    quotas: {mutations: in, produce: requests, fetch: addresses, samples: -1}
  third:
    bootstrap: [10.0.0.1:9092]
    quotas: {produce: in}
  fourth:
    bootstrap: [10.0.0.1:9092]
    listen: {address: 127.0.0.1:19094}
    nodes: {ports: 9400-9499, advertise: kafka.example.org}
    quotas: {produce: in, fetch: in, connections: names}
identity: {user: address}
gates:
  in: {quota: {rate: 1/s}}
  slots: {limit: 10}
  requests: {quota: {rate: 1/s, count: requests}}
  addresses: {quota: {rate: 1/s, by: [address]}}
  names: {quota: {rate: 1/s, by: [user, route]}}
`))
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{
		`kafka.first.quotas.produce: there is no gate "inn"; write in`,
		`kafka.first.quotas.fetch: the gate slots has no quota; name a gate such as slots: {quota: {rate: 10485760/s, burst: 104857600, by: [user]}}`,
		`kafka.first.quotas.max_throttle: `,
		`kafka.second.quotas.mutations: the gate in has no debt. It would refuse a topic with more partitions than its burst for ever; write debt: true`,
		`kafka.second.quotas.produce: the gate requests counts requests, and here bytes or partitions are counted; remove count: requests`,
		`kafka.second.quotas.fetch: the gate addresses counts by address, and addresses are for connections; count by user and by client`,
		`kafka.fourth.quotas.connections: the gate names counts by user and route, and nobody has logged in yet when a connection is counted; write by: [address]`,
		`kafka.second.quotas.samples: `,
		`kafka.fourth.quotas.produce: the gate in counts for fetch already, and a quota that a client sets for one would hold for both; write a gate of its own`,
		`kafka.third.quotas: means nothing where no client bootstraps; write listen: `,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in:\n%v", want, err)
		}
	}
}

// With upstreams or routes in it, the same file is about HTTP too, and has to be complete.
func TestKafkaBesideHTTP(t *testing.T) {
	_, err := Parse("weir.yaml", []byte(listenFile+"upstreams: {app: {targets: [http://127.0.0.1:3000]}}\n"))
	if err == nil || !strings.Contains(err.Error(), "routes: is missing; add routes: [{match: [/], upstream: app}]") {
		t.Errorf("%v", err)
	}
	c, err := Parse("weir.yaml", []byte(listenFile+"upstreams: {app: {targets: [http://127.0.0.1:3000]}}\nroutes: [{match: [/], upstream: app}]\n"))
	if err != nil || len(c.Listeners) != 1 || !c.ServesHTTP() {
		t.Errorf("%v", err)
	}
}

func TestKafkaListenFaults(t *testing.T) {
	_, err := Parse("weir.yaml", []byte(`
kafka:
  alone:
    bootstrap: [10.0.0.1:9092]
    listen: {address: 127.0.0.1:19091}
  nobody:
    bootstrap: [10.0.0.1:9092]
    nodes: {ports: 9300-9400, advertise: kafka.example.org}
  first:
    bootstrap: [10.0.0.1:9092]
    listen: {address: "127.0.0.1:9101", tls: {cert: a, key: b, client_ca: c}}
    nodes: {ports: 9100-9199, advertise: kafka.example.org}
  second:
    bootstrap: [10.0.0.1:9092]
    listen: {address: ":19093"}
    nodes: {ports: 9199-9299}
  third:
    bootstrap: [10.0.0.1:9092]
    listen: {address: "127.0.0.1:19094"}
    nodes: {ports: 9199-9100, advertise: "kafka.example.org:9092"}
  fourth:
    bootstrap: [10.0.0.1:9092]
    listen: {address: "127.0.0.1:19095"}
    nodes: {ports: 1000-60000, advertise: 0.0.0.0}
  fifth:
    bootstrap: [10.0.0.1:9092]
    listen: {address: "127.0.0.1:19096"}
    nodes: {ports: 8000-8099, advertise: h}
  sixth:
    bootstrap: [10.0.0.1:9092]
    listen: {address: "0.0.0.0:19097"}
    nodes: {ports: 8050-8060, advertise: h}
  seventh: {bootstrap: []}
`))
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{
		`weir.yaml:5:`, `kafka.alone.listen: lets clients bootstrap, and nodes does not say where the brokers are to them; write nodes: `,
		`weir.yaml:8:`, `kafka.nobody.nodes: means nothing where no client bootstraps; write listen: `,
		`weir.yaml:11:`, `kafka.first.listen.tls.client_ca: clients of Kafka cannot be asked for certificates here: the broker would see the gateway's; remove it`,
		`weir.yaml:12:`, `kafka.first.nodes.ports: port 9101 of 9100-9199 is taken by kafka.first.listen.address on line 11; `,
		`weir.yaml:16:`, `kafka.second.nodes.advertise: is missing; add advertise: kafka.example.org`,
		`weir.yaml:20:`, `kafka.third.nodes.ports: 9199-9100 ends before it begins; write first-last, for instance 9100-9199`,
		`kafka.third.nodes.advertise: "kafka.example.org:9092" is not a host; `,
		`weir.yaml:24:`, `kafka.fourth.nodes.ports: 1000-60000 is 59001 ports, and at most 1000 may be for nodes`,
		`kafka.fourth.nodes.advertise: 0.0.0.0 is all interfaces, and clients cannot connect to that`,
		`weir.yaml:28:`, `kafka.fifth.nodes.ports: port 8090 of 8000-8099 is taken by admin.address, where that is the default`,
		`weir.yaml:33:13: kafka.seventh.bootstrap: is an empty list; write a broker, for instance [127.0.0.1:9092]`,
		`weir.yaml:32:`, `kafka.sixth.nodes.ports: 8050-8060 has ports in common with kafka.fifth.nodes.ports on line 28; write ports of its own for each cluster`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in:\n%v", want, err)
		}
	}
}

// The kernel may give a port to a connection unless it is reserved.
func TestPortsGivenAway(t *testing.T) {
	for _, c := range []struct {
		first, last        int
		outgoing, reserved string
		want               int
	}{
		{9100, 9199, "32768\t60999\n", "\n", 0},
		{32700, 32800, "32768\t60999\n", "\n", 32768},
		{40000, 40010, "32768\t60999\n", "", 40000},
		{40000, 40010, "32768\t60999\n", "8080,40000-40005,40007\n", 40006},
		{40000, 40010, "32768\t60999\n", "1-65535\n", 0},
		{61000, 61010, "32768\t60999\n", "", 0},
		{40000, 40010, "nonsense", "", 0},
	} {
		if got := givenAway(c.first, c.last, c.outgoing, c.reserved); got != c.want {
			t.Errorf("%d-%d of %q without %q: %d, not %d", c.first, c.last, c.outgoing, c.reserved, got, c.want)
		}
	}
}

// A password that changes is used by the next connection. One that cannot be read is an error of that connection.
func TestKafkaPasswordChanges(t *testing.T) {
	file := filepath.Join(t.TempDir(), "secret")
	c := Config{Kafka: map[string]Kafka{"main": {Bootstrap: []string{"127.0.0.1:9092"}, SASL: &SASL{Mechanism: "plain", User: "weir", Secret: Secret{PasswordFile: file}}}}}
	if _, _, err := c.KafkaLogin("main"); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("without the file: %v, want its name", err)
	}
	write := func(password string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(password+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("first")
	_, mechanisms, err := c.KafkaLogin("main")
	if err != nil || len(mechanisms) != 1 {
		t.Fatal(mechanisms, err)
	}
	for _, password := range []string{"first", "second"} {
		write(password)
		_, shown, err := mechanisms[0].Authenticate(t.Context(), "127.0.0.1:9092")
		if err != nil || !strings.HasSuffix(string(shown), "weir\x00"+password) {
			t.Errorf("%q is shown, %v; want the password %q", shown, err, password)
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if _, _, err := mechanisms[0].Authenticate(t.Context(), "127.0.0.1:9092"); err == nil {
		t.Error("no error without the file")
	}
}
