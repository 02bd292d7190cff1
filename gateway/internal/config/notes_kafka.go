package config

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/quota"
)

// kafkaNotes is about gates that count for clients of Kafka, and the waits that these are told.
func (w *warner) kafkaNotes() {
	counts := map[string]string{} // the cluster that a gate counts for
	for _, cluster := range w.KafkaListeners() {
		k := w.Config.Kafka[cluster]
		path := fault.Path{"kafka", cluster, "quotas"}
		all := k.Quotas.gates()
		for _, key := range slices.Sorted(maps.Keys(all)) {
			name := all[key]
			q := w.Gates[name].Quota
			if q == nil {
				continue
			}
			if other := counts[name]; other != "" {
				w.warn(path.At(key), "the gate %s counts for the clusters %s and %s. What clients use of one is not there for the other, and a quota set at one holds at both. Give each a gate of its own", name, other, cluster)
			} else {
				counts[name] = cluster
				w.kafkaRuleNotes(name, q)
				if key != connections {
					w.kafkaGateNotes(name, key, q)
				}
			}
			if key != connections && k.SASL == nil && q.LooksAt("user") && !q.LooksAt("client") {
				w.warn(fault.Path{"gates", name, "quota"}, "the gate %s counts by the user, but kafka.%s has no sasl, so brokers ask nobody for a name. All clients are ANONYMOUS, and share one bucket; count by: [client] too, or let the gateway and clients log in", name, cluster)
			}
		}
		if most := time.Duration(k.Quotas.MaxThrottle); most > clientsWait {
			w.warn(path.At("max_throttle"), "kafka.%s.quotas.max_throttle is %v, and clients give a connection up after %v without an answer (request.timeout.ms). Those that send meanwhile come back on another connection, and wait for nothing; write less: what is owed stays a debt", cluster, most, clientsWait)
		}
	}
}

// kafkaRuleNotes is about rules with names as Kafka's tools write them.
func (w *warner) kafkaRuleNotes(gate string, q *policy.QuotaSpec) {
	for i := range q.Rules {
		for _, of := range []struct{ part, name string }{{"user", string(q.Rules[i].User)}, {"client", string(q.Rules[i].Client)}} {
			at := fault.Path{"gates", gate, "quota", "rules"}.Index(i).At(of.part)
			name, principal := strings.CutPrefix(of.name, "User:")
			switch {
			case of.name == "<default>":
				w.warn(at, "%v: <default> is the name of one %s here; write \"*\" for each that has no rule of its own", at, of.part)
			case principal && of.part == "user":
				w.warn(at, "%v: names of users have no User: here, so this rule matches nobody; write %s", at, name)
			}
		}
	}
}

// kafkaLoginNotes is about passwords that can be read on the way to the brokers.
func (w *warner) kafkaLoginNotes() {
	for _, name := range slices.Sorted(maps.Keys(w.Config.Kafka)) {
		k := w.Config.Kafka[name]
		if k.SASL == nil || k.SASL.Mechanism != "plain" || k.TLS != nil || !slices.ContainsFunc(k.Bootstrap, func(broker string) bool { return !loopback(broker) }) {
			continue
		}
		w.warn(fault.Path{"kafka", name, "sasl", "mechanism"}, "plain sends the password as it is, and kafka.%s has no tls. Whoever sees the connection reads it; write tls: {} beside sasl, or mechanism: scram-sha-512", name)
	}
}

// clientsWait is how long clients of Kafka wait for an answer by default.
const clientsWait = 30 * time.Second

// leastFetched is what a fetch asks for at least, however little its quota holds.
const leastFetched = 1 << 20

// kafkaGateNotes is about a gate that counts mutations, produce or fetch.
func (w *warner) kafkaGateNotes(name, key string, q *policy.QuotaSpec) {
	at := fault.Path{"gates", name, "quota"}
	if w.onlyKafka(name) {
		if q.Queue.Len > 0 {
			w.warn(at.At("queue"), "nothing waits in the queue of the gate %s: clients of Kafka are told to wait, and are not read meanwhile; remove queue", name)
		}
		if q.Permissive {
			w.warn(at.At("permissive"), "permissive means nothing at the gate %s: bytes always go into debt, and mutations of clients that do not know error 89; remove it", name)
		}
	}
	if key == "mutations" {
		return
	}
	for i, limits := range limitsOf(q) {
		at := at
		if i > 0 {
			at = at.At("rules").Index(i - 1)
		}
		if j := slices.IndexFunc(limits, func(l quota.Window) bool { return l.Rate > l.Burst }); j >= 0 {
			l := limits[j]
			w.warn(at, "the quota %s holds %s bytes, less than the %s that come back in a second, so clients within their rate are delayed. Brokers allow ten seconds' worth, burst: %s", name, written(l.Burst), written(l.Rate), written(10*l.Rate))
		} else if j := slices.IndexFunc(limits, func(l quota.Window) bool { return l.Burst < leastFetched }); j >= 0 && key == "fetch" {
			w.warn(at, "the quota %s holds %s bytes, and a fetch may bring %d, so it is a debt whatever was there before. Give it a burst of %[3]d", name, written(limits[j].Burst), leastFetched)
		}
	}
}

// limitsOf are the limits of a quota, and then those of its rules.
func limitsOf(q *policy.QuotaSpec) [][]quota.Window {
	all := make([][]quota.Window, 1, 1+len(q.Rules))
	all[0], _ = q.Parse() // check reports the faults
	for i := range q.Rules {
		limits, _ := q.Rules[i].Parse()
		all = append(all, limits)
	}
	return all
}

// written writes a number as a file has it.
func written(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }
