package config

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/internal/setting"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/signal"
	"github.com/weir-go/weir/weirkafka"
)

// Kafka is a cluster of Kafka: signals read it, and the gateway may stand before it.
type Kafka struct {
	// host:port of some of its brokers. They name the others.
	Bootstrap []string `json:"bootstrap" example:"[127.0.0.1:9092]" form:"host:port" required:"true"`
	// Certificates for TLS. {} lets the authorities of the system vouch for the brokers. Left out, there is no TLS.
	// Connections for clients at listen have the same, so cert needs sasl beside listen.
	TLS *StoreTLS `json:"tls,omitempty" example:"{}"`
	// How to log in. Left out, nobody does.
	SASL *SASL `json:"sasl,omitempty" example:"{mechanism: scram-sha-512, user: weir, password_file: kafka.password}"`
	// The claim of a token of OAUTHBEARER that is the name of its client, as the brokers' sasl.oauthbearer.sub.claim.name.
	OAuthClaim string `json:"oauth_claim,omitempty" default:"sub" example:"client_id"`
	// Where clients of Kafka connect to reach this cluster through the gateway. They keep their own principals: sasl
	// above is the gateway's. Left out, it is only read.
	Listen *KafkaListen `json:"listen,omitempty" example:"{address: \":9092\"}"`
	// The addresses by which clients reach the single brokers through the gateway. Required with listen.
	Nodes *KafkaNodes `json:"nodes,omitempty" example:"{ports: 9100-9199, advertise: kafka.example.org}"`
	// The gates whose quotas hold for clients at listen: for the whole cluster, by user and client id.
	Quotas KafkaQuotas `json:"quotas,omitzero" example:"{produce: in, fetch: out}"`
}

// SetDefaults fills in what the file may leave out.
func (k *Kafka) SetDefaults() { setting.Fill(k) }

// KafkaQuotas names the gates whose quotas hold for clients of a cluster. They delay. Only mutations are refused, to clients
// that know the error, and connections.
type KafkaQuotas struct {
	// The gate whose quota counts partitions that are created and deleted, Kafka's controller_mutation_rate. It needs debt: true.
	Mutations string `json:"mutations,omitempty" example:"topics" form:"the name of a gate, such as topics: {quota: {rate: 10/s, burst: 110, by: [user], debt: true}}"`
	// The gate whose quota counts the bytes of requests to produce, Kafka's producer_byte_rate.
	Produce string `json:"produce,omitempty" example:"in" form:"the name of a gate, such as in: {quota: {rate: 1048576/s, burst: 10485760, by: [user]}}"`
	// The gate whose quota counts the bytes of answers to fetch, Kafka's consumer_byte_rate.
	Fetch string `json:"fetch,omitempty" example:"out" form:"the name of a gate, such as out: {quota: {rate: 1048576/s, burst: 10485760, by: [user]}}"`
	// The gate whose quota counts new connections by address, Kafka's connection_creation_rate. An IPv6 address stands for
	// its /64. With a queue they wait in it before TLS, else they are reset.
	Connections string `json:"connections,omitempty" example:"dial" form:"the name of a gate, such as dial: {quota: {rate: 20/s, burst: 200, by: [address]}}"`
	// Topics that brokers make because a client has asked for their metadata (auto.create.topics.enable). count charges that client to
	// mutations. off lets none be made.
	AutoCreate string `json:"auto_create,omitempty" default:"count" enum:"count,off" meant:"true=count,false=off,yes=count,no=off,on=count"`
	// The longest delay at a time. What a client owes beyond it stays a debt. Clients give a connection up after 30 s
	// without an answer.
	MaxThrottle policy.Duration `json:"max_throttle,omitempty" default:"20s" min:"1s" max:"1h"`
	// The burst of a quota that clients set (kafka-configs), as of brokers: so many windows' worth of mutations, and one less of
	// bytes.
	Samples int `json:"samples,omitempty" default:"11" min:"1" max:"1000000"`
	// How long one of them is.
	Window policy.Duration `json:"window,omitempty" default:"1s" min:"1ms" max:"24h"`
}

// gates are the settings that name gates, with the gates.
func (q *KafkaQuotas) gates() map[string]string {
	return map[string]string{"mutations": q.Mutations, "produce": q.Produce, "fetch": q.Fetch, connections: q.Connections}
}

// Counts reports whether a gate counts anything for the cluster.
func (q *KafkaQuotas) Counts() bool {
	return q.Mutations != "" || q.Produce != "" || q.Fetch != "" || q.Connections != ""
}

// connections is the quota that counts by address. The others count by who has logged in.
const connections = "connections"

// KafkaListen is where clients of a cluster bootstrap.
type KafkaListen struct {
	// host:port that clients bootstrap at; :9092 means all interfaces. The listeners of nodes have the same host.
	Address string `json:"address" example:"127.0.0.1:19092" form:"host:port" required:"true"`
	// Certificate for TLS, on the listeners of nodes too. Clients cannot be asked for certificates.
	TLS *TLS `json:"tls,omitempty" example:"{cert: kafka.crt, key: kafka.key}"`
	// Connections of clients open at a time, those to nodes included. Each has one to a broker. Further ones are
	// reset.
	MaxConnections int `json:"max_connections,omitempty" default:"10000" min:"1" max:"1000000"`
	// Limits on connections beside max_connections: from one address, and new ones a second. They hold for all
	// listeners of the cluster together.
	Connections Connections `json:"connections,omitzero" example:"{rate_per_address: 20}"`
}

// SetDefaults fills in what the file may leave out.
func (l *KafkaListen) SetDefaults() { setting.Fill(l) }

// Guess implements setting.Guesser: an address in the place of the listener is its address.
func (l *KafkaListen) Guess(scalar string) string { return new(Listener).Guess(scalar) }

// Listener returns the settings of the listener at an address of the cluster.
func (l *KafkaListen) Listener(address string) Listener {
	all := DefaultListener(address)
	all.TLS, all.MaxConnections, all.Connections = l.TLS, l.MaxConnections, l.Connections
	return all
}

// KafkaNodes says where the brokers of a cluster are to its clients.
type KafkaNodes struct {
	// The ports for nodes, as first-last. The node with the id N is at first+N. A node beyond last is left out of
	// all answers, and so is one whose port is taken.
	Ports string `json:"ports" example:"9100-9199" form:"first-last, such as 9100-9199" required:"true"`
	// The host by which clients reach this gateway. It replaces the brokers' own in each answer.
	Advertise string `json:"advertise" example:"kafka.example.org" form:"a host without a port" required:"true"`
}

// mostNodePorts bounds the range of ports of a cluster.
const mostNodePorts = 1000

// Range returns the first and the last port, of which Parse has made sure.
func (n *KafkaNodes) Range() (first, last int) {
	first, last, err := n.ports()
	if err != nil {
		return 0, -1
	}
	return first, last
}

func (n *KafkaNodes) ports() (first, last int, err error) {
	const form = "write first-last, for instance 9100-9199"
	from, to, ok := strings.Cut(n.Ports, "-")
	a, errA := strconv.ParseUint(strings.TrimSpace(from), 10, 16)
	b, errB := strconv.ParseUint(strings.TrimSpace(to), 10, 16)
	switch {
	case !ok || errA != nil || errB != nil || a == 0:
		return 0, 0, fault.New(fmt.Sprintf("%s is not a range of ports", quote(n.Ports)), form)
	case b < a:
		return 0, 0, fault.New(fmt.Sprintf("%d-%d ends before it begins", a, b), form)
	case b-a >= mostNodePorts:
		return 0, 0, fault.New(fmt.Sprintf("%d-%d is %d ports, and at most %d may be for nodes", a, b, b-a+1, mostNodePorts), form)
	}
	return int(a), int(b), nil
}

// SASL is a user of a cluster.
type SASL struct {
	// How the password is shown. plain sends it, so it needs tls.
	Mechanism string `json:"mechanism" enum:"plain,scram-sha-256,scram-sha-512" meant:"PLAIN=plain,SCRAM-SHA-256=scram-sha-256,SCRAM-SHA-512=scram-sha-512" required:"true"`
	// Name of the user.
	User string `json:"user" example:"weir" required:"true"`
	Secret
}

// kafkaLag is the word for signals that read how far a consumer group is behind.
const kafkaLag = "kafka_lag"

// kafkaInterval is the time between two readings of a lag that names none.
const kafkaInterval = time.Second

// Signal is a signal of the policy, and what the gateway alone can read.
type Signal struct {
	policy.SignalSpec
	// kafka_lag: the cluster, one of kafka. The lag is read every second unless interval says otherwise.
	Cluster string `json:"cluster,omitempty" example:"main"`
	// kafka_lag: the consumer group whose lag it is.
	Group string `json:"group,omitempty" example:"indexer"`
	// kafka_lag: the topics that count.
	Topics []string `json:"topics,omitempty" example:"[documents]" form:"the name of a topic"`
	// kafka_lag: all partitions together, or the one that is furthest behind (default: sum).
	Take string `json:"take,omitempty" enum:"sum,max" example:"max"`
	// kafka_lag: the consumers' isolation.level. read_committed ends a partition before the first open transaction
	// (default: read_uncommitted).
	Isolation string `json:"isolation,omitempty" enum:"read_uncommitted,read_committed" example:"read_committed"`
	// kafka_lag: the consumers' auto.offset.reset. On a partition without a commit everything is lag, or nothing
	// (default: earliest).
	From string `json:"from,omitempty" enum:"earliest,latest" example:"latest"`
}

// readsKafka reports whether the signal of that name is a lag of Kafka's.
func (s *Signal) readsKafka(name string) bool { return cmp.Or(s.Read, name) == kafkaLag }

// ofKafka are the settings of the signal that mean something only to one that reads Kafka.
func (s *Signal) ofKafka() (given []string) {
	for _, setting := range []struct {
		key string
		is  bool
	}{
		{"cluster", s.Cluster != ""}, {"group", s.Group != ""}, {"topics", len(s.Topics) > 0},
		{"take", s.Take != ""}, {"isolation", s.Isolation != ""}, {"from", s.From != ""},
	} {
		if setting.is {
			given = append(given, setting.key)
		}
	}
	return given
}

// spec is the signal as a policy takes it. A lag of Kafka's is one of the policy's Options.Signals.
func (s *Signal) spec(name string) policy.SignalSpec {
	spec := s.SignalSpec
	if s.readsKafka(name) {
		spec.Read = ""
		spec.Interval = cmp.Or(spec.Interval, policy.Duration(kafkaInterval))
	}
	return spec
}

// signalSpecs are the signals as a policy takes them.
func (c *Config) signalSpecs() map[string]policy.SignalSpec {
	if c.Signals == nil {
		return nil
	}
	all := make(map[string]policy.SignalSpec, len(c.Signals))
	for name, s := range c.Signals {
		all[name] = s.spec(name)
	}
	return all
}

// KafkaLags returns the names of the signals that read a lag of Kafka's, sorted.
func (c *Config) KafkaLags() []string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(c.Signals)) {
		if s := c.Signals[name]; s.readsKafka(name) {
			names = append(names, name)
		}
	}
	return names
}

// Unread returns options for a policy that reads nothing: to check a file is to connect to nothing. The
// stores are the caller's.
func (c *Config) Unread() policy.Options {
	signals := map[string]signal.Signal{}
	for _, name := range c.KafkaLags() {
		signals[name] = signal.Func(name, func(context.Context) (float64, error) { return 0, signal.ErrNoValue })
	}
	return policy.Options{Readings: silent{}, Signals: signals}
}

// kafka checks the clusters, without connecting to any.
func (m *meaning) kafka() {
	for _, name := range slices.Sorted(maps.Keys(m.Config.Kafka)) {
		k, path := m.Config.Kafka[name], fault.Path{"kafka", name}
		if len(k.Bootstrap) == 0 {
			m.report(path.At("bootstrap"), "write a broker, for instance [127.0.0.1:9092]", "is an empty list")
		}
		for i, addr := range k.Bootstrap {
			if problem, remedy := brokerProblem(addr); problem != "" {
				m.report(path.At("bootstrap").Index(i), remedy, "%s", problem)
			}
		}
		if k.TLS != nil {
			m.clientTLS(path.At("tls"), k.TLS)
		}
		if k.SASL != nil {
			m.secret(path.At("sasl"), &k.SASL.Secret)
			if k.SASL.PasswordFile == "" && k.SASL.PasswordEnv == "" {
				m.report(path.At("sasl"), "write password_file, or password_env", "there is no password")
			}
		}
		m.kafkaListen(path, &k)
		m.kafkaQuotas(path, &k)
		m.Config.Kafka[name] = k
	}
	m.nodePorts()
}

// brokerProblem says what is wrong with the address of a broker and what to write, empty for nothing. What checkAddress advises
// is about listeners.
func brokerProblem(address string) (problem, remedy string) {
	var wrong fault.Fault
	if !errors.As(checkAddress(address), &wrong) {
		return "", ""
	}
	_, behind, isURL := strings.Cut(address, "://")
	switch {
	case strings.Contains(address, ","):
		all := strings.FieldsFunc(address, func(r rune) bool { return r == ',' || r == ' ' })
		return fmt.Sprintf("%s is %d brokers in one text", quote(address), len(all)), `write each by itself: ["` + setting.Clip(strings.Join(all, `", "`)) + `"]`
	case isURL && checkAddress(behind) == nil:
		return wrong.Problem, "write " + behind
	case plainHost.MatchString(address):
		return wrong.Problem, "write " + address + ":9092"
	}
	return wrong.Problem, "write host:port, for instance 127.0.0.1:9092"
}

// kafkaListen checks where clients of a cluster connect.
func (m *meaning) kafkaListen(path fault.Path, k *Kafka) {
	l, n := k.Listen, k.Nodes
	switch {
	case l == nil && n == nil:
		if m.root.Has(path.At("oauth_claim")) {
			m.report(path.At("oauth_claim"), "write listen: {address: 127.0.0.1:19092} and nodes beside it, or remove oauth_claim", "means nothing where no client bootstraps")
		}
		return
	case l == nil:
		m.report(path.At("nodes"), "write listen: {address: 127.0.0.1:19092} beside it, or remove nodes", "means nothing where no client bootstraps")
		return
	case n == nil:
		m.report(path.At("listen"), "write nodes: {ports: 9100-9199, advertise: kafka.example.org} beside it", "lets clients bootstrap, and nodes does not say where the brokers are to them")
	}
	if k.TLS != nil && k.TLS.Cert != "" && k.SASL == nil { // with sasl, these brokers take names from logins only
		m.report(path.At("tls", "cert"), "remove cert and key, or let the gateway and clients log in by SASL", "makes every client at listen the gateway itself to brokers: without a login, they take names from certificates")
	}
	m.address(path.At("listen", "address"), l.Address)
	m.exempt(path.At("listen", "connections", "exempt"), l.Connections.Exempt)
	if l.TLS != nil {
		m.kafkaTLS(path.At("listen", "tls"), l.TLS)
	}
	if n == nil {
		return
	}
	if _, _, err := n.ports(); err != nil {
		m.reportError(path.At("nodes", "ports"), err)
	}
	if at := path.At("nodes", "advertise"); !m.Wrong(at) {
		if _, err := netip.ParseAddr(n.Advertise); err != nil && !hostName.MatchString(n.Advertise) {
			m.report(at, "write the name or the address of this machine, as clients know it, such as kafka.example.org", "%s is not a host", quote(n.Advertise))
		} else if addr, err := netip.ParseAddr(n.Advertise); err == nil && addr.IsUnspecified() {
			m.report(at, "write the address by which clients reach this machine", "%s is all interfaces, and clients cannot connect to that", n.Advertise)
		}
	}
}

// kafkaQuotas checks the gates that count for a cluster.
func (m *meaning) kafkaQuotas(path fault.Path, k *Kafka) {
	if m.root.Has(path.At("quotas")) && k.Listen == nil {
		m.report(path.At("quotas"), "write listen: {address: 127.0.0.1:19092} and nodes beside it, or remove quotas", "means nothing where no client bootstraps")
		return
	}
	all, used := k.Quotas.gates(), map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(all)) {
		name, at := all[key], path.At("quotas", key)
		if name == "" {
			continue
		}
		if other := used[name]; other != "" {
			m.report(at, "write a gate of its own", "the gate %s counts for %s already, and a quota that a client sets for one would hold for both", name, other)
			continue
		}
		used[name] = key
		g, ok := m.Gates[name]
		switch q := g.Quota; {
		case !ok && isCount(name):
			m.report(at, kafkaGate(key, name), "%s is a number, and not the name of a gate", quote(name))
		case !ok:
			m.report(at, oneOf(name, slices.Sorted(maps.Keys(m.Gates)), "gates"), "there is no gate %q", name)
		case q == nil:
			m.report(at, "name a gate such as "+name+": "+kafkaQuota(key, ""), "the gate %s has no quota", name)
		case q.Count == "requests" && key != connections:
			m.report(at, "remove count: requests from the gate, or name another", "the gate %s counts requests, and here bytes or partitions are counted", name)
		case key == "mutations" && !q.Debt:
			m.report(at, "write debt: true beside its rate, or name another gate", "the gate %s has no debt. It would refuse a topic with more partitions than its burst for ever", name)
		default:
			m.kafkaParts(at, key, name, q)
		}
	}
}

// kafkaGate is the remedy for a rate in the place of a gate.
func kafkaGate(key, rate string) string {
	name := map[string]string{"mutations": "topics", "produce": "in", "fetch": "out", connections: "dial"}[key]
	return "write " + name + ", and gates: {" + name + ": " + kafkaQuota(key, rate) + "}"
}

// kafkaQuota is an example of a gate that counts for a cluster, with the burst that brokers allow.
func kafkaQuota(key, rate string) string {
	rest, windows, example := "by: [user]", 10, "10485760"
	switch key {
	case "mutations":
		rest, windows, example = "by: [user], debt: true", 11, "10"
	case connections:
		rest, example = "by: [address]", "20"
	}
	n, err := strconv.Atoi(cmp.Or(rate, example))
	if err != nil || n > maxExample {
		n, _ = strconv.Atoi(example)
	}
	return fmt.Sprintf("{quota: {rate: %d/s, burst: %d, %s}}", n, n*windows, rest)
}

// maxExample is the largest rate that an example repeats.
const maxExample = 1 << 40

// isCount reports whether a text is digits alone.
func isCount(text string) bool { return text != "" && strings.Trim(text, "0123456789") == "" }

// kafkaParts checks what a gate that counts for a cluster counts by.
func (m *meaning) kafkaParts(at fault.Path, key, gate string, q *policy.QuotaSpec) {
	remedy, why := "count by user and by client, or name another gate", "clients of Kafka have none"
	known := []string{"user", "client"}
	if key == connections {
		remedy, why, known = "write by: [address], or name another gate", "nobody has logged in yet when a connection is counted", []string{"address"}
	}
	others := slices.DeleteFunc(quota.Parts(), func(part string) bool { return slices.Contains(known, part) || !q.LooksAt(part) })
	switch {
	case len(others) == 0:
		return
	case slices.Contains(others, "address"):
		why = "addresses are for connections"
	}
	m.report(at, remedy, "the gate %s counts by %s, and %s", gate, strings.Join(others, " and "), why)
	m.Blame(fault.Path{"gates", gate, "quota"}) // what the compiler advises is about requests of HTTP
}

// kafkaWork are the gates that count for clients of Kafka, each with the part of its work that is an address.
func (c *Config) kafkaWork() map[string]string {
	all := map[string]string{}
	for _, name := range c.KafkaListeners() {
		q := c.Kafka[name].Quotas
		for key, gate := range q.gates() {
			switch {
			case gate == "":
			case key == connections:
				all[gate] = "user" // which nobody has, before a login
			case all[gate] == "":
				all[gate] = ""
			}
		}
	}
	return all
}

// servesKafka reports whether a gate counts for clients of Kafka.
func (c *Config) servesKafka(gate string) bool {
	for _, name := range c.KafkaListeners() {
		q := c.Kafka[name].Quotas
		if slices.Contains(slices.Collect(maps.Values(q.gates())), gate) {
			return true
		}
	}
	return false
}

// hostName is the name of a host, in one word or several.
var hostName = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_.-]{0,252}[A-Za-z0-9])?$`)

// kafkaTLS checks the certificate of a listener for Kafka. A client's own would have to be shown to the broker, and nobody but
// the client can do that.
func (m *meaning) kafkaTLS(path fault.Path, t *TLS) {
	for _, key := range []string{"client_ca", "client_auth"} {
		if m.root.Has(path.At(key)) {
			m.report(path.At(key), "remove it, and let clients log in by SASL", "clients of Kafka cannot be asked for certificates here: the broker would see the gateway's")
			return
		}
	}
	m.certificate(path, t)
}

// nodePorts reports ports for nodes that something else listens on.
func (m *meaning) nodePorts() {
	type ports struct {
		path        fault.Path
		host        string
		first, last int
	}
	var before []ports
	for _, name := range slices.Sorted(maps.Keys(m.Config.Kafka)) {
		k, path := m.Config.Kafka[name], fault.Path{"kafka", name, "nodes", "ports"}
		if k.Listen == nil || k.Nodes == nil || m.Has(path) {
			continue
		}
		host, _, err := net.SplitHostPort(k.Listen.Address)
		first, last, errPorts := k.Nodes.ports()
		if err != nil || errPorts != nil {
			continue
		}
		own := ports{path, host, first, last}
		for port := first; port <= last; port++ {
			for _, other := range m.listening[strconv.Itoa(port)] {
				if other.clashes(host) {
					m.report(path, "write ports that nothing else listens on", "port %d of %s is taken by %s", port, k.Nodes.Ports, m.named(other.path))
				}
			}
		}
		for _, other := range before {
			if other.first <= last && first <= other.last && (listening{host: other.host}).clashes(host) {
				m.report(path, "write ports of its own for each cluster", "%s has ports in common with %s", k.Nodes.Ports, m.named(other.path))
			}
		}
		before = append(before, own)
	}
}

// kafkaSignals checks what signals read from Kafka, of which the policy knows nothing.
func (m *meaning) kafkaSignals() {
	known := policy.SignalKinds()
	for name, s := range m.Signals {
		path, word, given := fault.Path{"signals", name}, cmp.Or(s.Read, name), s.ofKafka()
		switch {
		case s.readsKafka(name):
			m.kafkaLag(path, &s)
		case slices.Contains(known, word):
			for _, key := range given {
				m.report(path.At(key), "leave it out, or write read: "+kafkaLag, "means nothing to a signal that reads %s", word)
			}
		case len(given) > 0 || fault.Nearest(word, append(known, kafkaLag)) == kafkaLag:
			// The policy, which does not know this word, says so of all others.
			if s.Read != "" {
				path = path.At("read")
			}
			m.report(path, "write read: "+kafkaLag, "%q is nothing that a signal can read", word)
		}
	}
}

// kafkaLag checks a signal that reads Kafka.
func (m *meaning) kafkaLag(path fault.Path, s *Signal) {
	known := slices.Sorted(maps.Keys(m.Config.Kafka))
	if _, ok := m.Config.Kafka[s.Cluster]; !ok {
		remedy := "define one, as in kafka: {main: {bootstrap: [127.0.0.1:9092]}}, and write cluster: main"
		if len(known) > 0 {
			remedy = oneOf(s.Cluster, known, "kafka")
		}
		if s.Cluster == "" {
			m.report(path.At("cluster"), remedy, "no cluster is named")
		} else {
			m.report(path.At("cluster"), remedy, "there is no cluster %s", quote(s.Cluster))
		}
	}
	if s.Group == "" {
		m.report(path.At("group"), "write the group.id of the consumers whose lag it is", "no consumer group is named")
	}
	if len(s.Topics) == 0 {
		m.report(path.At("topics"), "write the topics that the group reads, such as [documents]", "no topic is named")
	}
	if n := len(s.Topics); n > weirkafka.MaxTopics {
		m.report(path.At("topics"), fmt.Sprintf("write at most %d, or make a second signal", weirkafka.MaxTopics), "%d topics are too many", n)
	}
	for i, topic := range s.Topics {
		at := path.At("topics").Index(i)
		if err := weirkafka.CheckTopic(topic); err != nil {
			m.reportError(at, err)
		} else if slices.Contains(s.Topics[:i], topic) {
			m.report(at, "leave one of them out", "%s is in the list already", quote(topic))
		}
	}
}

// KafkaLag returns how to read a signal, with passwords and certificates read. The error names what
// cannot be read.
func (c *Config) KafkaLag(name string) (weirkafka.LagConfig, error) {
	s := c.Signals[name]
	k := c.Kafka[s.Cluster]
	cfg := weirkafka.LagConfig{
		Brokers: k.Bootstrap, Name: name, Group: s.Group, Topics: s.Topics,
		Take: weirkafka.Take(s.Take), Isolation: weirkafka.Isolation(s.Isolation), From: weirkafka.From(s.From),
	}
	var err error
	if cfg.TLS, cfg.SASL, err = k.login(); err != nil {
		return cfg, fmt.Errorf("kafka.%s: %w", s.Cluster, err)
	}
	return cfg, nil
}

// login returns what the gateway itself connects to the cluster with.
func (k *Kafka) login() (conf *tls.Config, mechanisms []sasl.Mechanism, err error) {
	var errTLS, errSASL error
	if k.TLS != nil {
		conf, errTLS = k.TLS.config()
	}
	if k.SASL != nil {
		_, errSASL = k.SASL.read()
		mechanisms = []sasl.Mechanism{k.SASL.mechanism()}
	}
	return conf, mechanisms, errors.Join(errTLS, errSASL)
}

// KafkaLogin returns the certificates and the way to log in of the gateway itself at a cluster. nil is none. The
// error names what cannot be read.
func (c *Config) KafkaLogin(cluster string) (*tls.Config, []sasl.Mechanism, error) {
	k := c.Kafka[cluster]
	conf, mechanisms, err := k.login()
	if err != nil {
		return nil, nil, fmt.Errorf("kafka.%s: %w", cluster, err)
	}
	return conf, mechanisms, nil
}

// KafkaListeners returns the names of the clusters that clients reach through the gateway, sorted.
func (c *Config) KafkaListeners() (names []string) {
	for _, name := range slices.Sorted(maps.Keys(c.Kafka)) {
		if k := c.Kafka[name]; k.Listen != nil && k.Nodes != nil {
			names = append(names, name)
		}
	}
	return names
}

// mechanism reads the password for each connection, so that a new one is used without a reload.
func (s *SASL) mechanism() sasl.Mechanism {
	if s.Mechanism == "plain" {
		return plain.Plain(func(context.Context) (plain.Auth, error) {
			password, err := s.read()
			return plain.Auth{User: s.User, Pass: password}, err
		})
	}
	auth := func(context.Context) (scram.Auth, error) {
		password, err := s.read()
		return scram.Auth{User: s.User, Pass: password}, err
	}
	if s.Mechanism == "scram-sha-256" {
		return scram.Sha256(auth)
	}
	return scram.Sha512(auth)
}
