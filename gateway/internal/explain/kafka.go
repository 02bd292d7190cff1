package explain

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/gateway/internal/kafka"
	"github.com/weir-go/weir/policy"
)

// Kafka is what would become of a request of a client of Kafka.
type Kafka struct {
	Cluster string `json:"cluster"`
	API     string `json:"api"`
	Version int16  `json:"version"`
	// DelayMS is how long the connection would not be read. The answer says it, or a refusal the whole of RetryMS.
	DelayMS int64 `json:"delay_ms,omitempty"`
	// OwedMS is until all that would be owed is paid back, where that is longer than one delay may be.
	OwedMS int64 `json:"owed_ms,omitempty"`
	// Code is the error that the gateway itself would answer, 0 for none. RetryMS is the time to come back after.
	Code    int16  `json:"error_code,omitempty"`
	Error   string `json:"error,omitempty"`
	RetryMS int64  `json:"retry_after_ms,omitempty"`
	// Reset is true for a new connection that would be.
	Reset bool `json:"reset,omitempty"`
}

// connect stands for an API where a new connection is asked about, by its address.
const connect = "Connect"

// anonymous is who clients of Kafka are that do not log in.
const anonymous = "ANONYMOUS"

// kafkaAsk is an Ask about a client of Kafka, understood.
type kafkaAsk struct {
	Kafka
	api    kafka.API
	quotas config.KafkaQuotas
}

// explainKafka says what would happen to a request of a client of Kafka.
func (v View) explainKafka(ask Ask) (*Answer, error) {
	if strings.EqualFold(ask.API, connect) {
		return v.explainConnect(ask)
	}
	k, err := v.kafkaAsk(ask)
	if err != nil {
		return nil, err
	}
	w := weir.Work{User: cmp.Or(ask.User, anonymous), Client: ask.Client}
	if err := (&Ask{Cost: ask.Cost}).override(&w); err != nil {
		return nil, err
	}
	a := &Answer{Kafka: &k.Kafka, Gates: []Gate{}, User: w.User, Client: w.Client, Priority: w.Priority.String(), Cost: w.CostOrOne(), Notes: v.Notes}
	if k.api.Name == "Metadata" {
		if k.quotas.AutoCreate == config.Off {
			a.Notes = append(slices.Clip(a.Notes), "auto_create is off: brokers make no topic for it.")
			return a, nil
		}
		a.Notes = append(slices.Clip(a.Notes), "Only topics that the broker makes for it are counted.")
	}
	g := v.Policy.Gate(map[string]string{"produce": k.quotas.Produce, "fetch": k.quotas.Fetch, "mutations": k.quotas.Mutations}[k.api.Quota])
	if g == nil || g.Quota() == nil {
		return a, nil
	}
	gate := Gate{Name: g.Name(), Kind: g.Snapshot().Kind, Mode: g.Mode(), Says: Passes}
	if g.Mode() == policy.Off {
		gate.Says = Off
	} else {
		k.predict(&gate, g, w)
		gate.Rules = v.rules(g.Quota(), w)
	}
	a.Gates = append(a.Gates, gate)
	return a, nil
}

// explainConnect says what would happen to a new connection.
func (v View) explainConnect(ask Ask) (*Answer, error) {
	quotas, err := v.cluster(ask.Kafka)
	if err != nil {
		return nil, err
	}
	r, err := (&Ask{From: ask.From}).request()
	if err != nil {
		return nil, err
	}
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	w := weir.Work{User: policy.PeerName(host)}
	a := &Answer{Kafka: &Kafka{Cluster: ask.Kafka, API: connect}, Gates: []Gate{}, User: w.User, Priority: w.Priority.String(), Cost: w.CostOrOne(), Notes: v.Notes}
	g := v.Policy.Gate(quotas.Connections)
	if g == nil || g.Quota() == nil {
		return a, nil
	}
	one := &Answer{} // whose status is of HTTP
	one.addGate(g, v.Config.Gates[g.Name()], w, true)
	if g.Mode() != policy.Off {
		one.Gates[0].Rules = v.rules(g.Quota(), w)
	}
	a.Gates, a.Kafka.Reset, a.Kafka.RetryMS = one.Gates, one.Status != 0, one.AfterMS
	return a, nil
}

// cluster returns the quotas of a cluster that clients reach.
func (v *View) cluster(name string) (q config.KafkaQuotas, err error) {
	known := v.Config.KafkaListeners()
	switch {
	case len(known) == 0:
		given := "kafka"
		if name == "" {
			given = "api"
		}
		return q, fmt.Errorf("%s is about a cluster of Kafka, and clients reach none through this gateway; leave it out, or add one with listen: to the file", given)
	case name == "":
		return q, fmt.Errorf("kafka names no cluster; write one of those in the file: %s", strings.Join(known, ", "))
	case !slices.Contains(known, name):
		return q, fmt.Errorf("kafka %q is not a cluster that clients reach through this gateway; those are: %s", name, strings.Join(known, ", "))
	}
	return v.Config.Kafka[name].Quotas, nil
}

// kafkaAsk understands what is asked. The errors begin with the setting that is wrong.
func (v *View) kafkaAsk(ask Ask) (k *kafkaAsk, err error) {
	k = new(kafkaAsk)
	if k.quotas, err = v.cluster(ask.Kafka); err != nil {
		return nil, err
	}
	if ask.API == "" {
		return nil, fmt.Errorf("api is empty; write what the client asks, such as Produce, Fetch or CreateTopics, or connect for a new connection")
	}
	ok := false
	if k.api, ok = kafka.APIOf(ask.API); !ok {
		return nil, fmt.Errorf("api %q is not offered to clients; write it as Kafka does, such as Produce, Fetch or CreateTopics", ask.API)
	}
	k.Kafka = Kafka{Cluster: ask.Kafka, API: k.api.Name, Version: k.api.Last}
	if ask.Version != "" {
		n, err := strconv.ParseInt(ask.Version, 10, 16)
		if err != nil || int16(n) < k.api.First || int16(n) > k.api.Last {
			return nil, fmt.Errorf("version %q of %s is not offered; write one from %d to %d", ask.Version, k.api.Name, k.api.First, k.api.Last)
		}
		k.Version = int16(n)
	}
	return k, nil
}

// predict fills in what a gate with a quota would do with w.
func (k *kafkaAsk) predict(gate *Gate, g *policy.Gate, w weir.Work) {
	longest := time.Duration(k.quotas.MaxThrottle)
	wait, refused := k.demand(gate, g, w)
	switch {
	case wait <= 0 && refused == nil:
		return
	case gate.Mode == policy.Observe:
		gate.Says = Observes
		return
	case refused != nil:
		gate.Says = Refuses
		k.Code, k.Error, k.RetryMS = refused.Code, refused.Message, wait.Milliseconds()
	default:
		gate.Says = Delays
		if wait > longest {
			k.OwedMS = wait.Milliseconds()
		}
	}
	k.DelayMS = min(wait, longest).Milliseconds()
}

// demand returns how long w would have to wait, and the error if it is refused. It says why.
func (k *kafkaAsk) demand(gate *Gate, g *policy.Gate, w weir.Work) (time.Duration, *kerr.Error) {
	d, rej := gate.peek(g, w)
	strict := k.api.Strict > 0 && k.Version >= k.api.Strict
	switch {
	case rej == nil && d.Free:
		return 0, nil
	case rej == nil:
	case rej.Reason == weir.ReasonBlocked && k.api.Strict > 0:
		return 0, kerr.PolicyViolation
	case rej.Reason == weir.ReasonBlocked && k.api.Quota == "mutations":
		return 0, nil // the broker has made the topic
	case rej.Reason == weir.ReasonBlocked:
		return time.Duration(k.quotas.MaxThrottle), nil
	case rej.Reason == weir.ReasonStore && !strict:
		return rej.RetryAfter, nil
	case rej.Reason != weir.ReasonQuota && rej.Reason != weir.ReasonTooLarge && rej.Reason != weir.ReasonStore:
		return 0, nil // the gate is one that a reload has just replaced
	case strict:
		return rej.RetryAfter, kerr.ThrottlingQuotaExceeded
	}
	owed := float64(d.Cost) - d.Remaining
	if owed <= 0 {
		return 0, nil
	}
	gate.Why = remainingText(&d) + ", costs " + strconv.FormatInt(d.Cost, 10) + ": goes into debt"
	if strict {
		return 0, nil // who comes next is refused
	}
	l := d.Windows[d.Window]
	return (l.Refill(l.Burst-owed, time.Now()) + time.Millisecond - 1).Truncate(time.Millisecond), nil
}

// verdict is what becomes of the request, in a sentence.
func (k *Kafka) verdict(gates []Gate) string {
	delay := time.Duration(k.DelayMS) * time.Millisecond
	switch {
	case k.API == connect:
		return k.connects(gates)
	case len(gates) == 0:
		return fmt.Sprintf("Goes to the broker: nothing counts %s of %s.", k.API, k.Cluster)
	case k.Code != 0 && k.RetryMS > 0:
		return fmt.Sprintf("Refused by %s: %s (%d), come back in %v. The connection is not read for %v.", gates[0].Name, k.Error, k.Code, time.Duration(k.RetryMS)*time.Millisecond, delay)
	case k.Code != 0:
		return fmt.Sprintf("Refused by %s: %s (%d).", gates[0].Name, k.Error, k.Code)
	case k.DelayMS > 0 && k.OwedMS > 0:
		return fmt.Sprintf("Goes to the broker. Delayed by %s: the connection is not read for %v, the most at a time, and the debt is paid back in %v.", gates[0].Name, delay, time.Duration(k.OwedMS)*time.Millisecond)
	case k.DelayMS > 0:
		return fmt.Sprintf("Goes to the broker. Delayed by %s: the connection is not read for %v.", gates[0].Name, delay)
	case gates[0].Says == Observes:
		return fmt.Sprintf("Goes to the broker. %s would delay or refuse it, and is in observe mode.", gates[0].Name)
	}
	return "Goes to the broker."
}

// connects is what becomes of a new connection.
func (k *Kafka) connects(gates []Gate) string {
	switch {
	case len(gates) == 0:
		return fmt.Sprintf("Goes to a broker: nothing counts new connections of %s.", k.Cluster)
	case k.Reset && k.RetryMS > 0:
		return fmt.Sprintf("Reset by %s; there would be room in %v.", gates[0].Name, time.Duration(k.RetryMS)*time.Millisecond)
	case k.Reset:
		return fmt.Sprintf("Reset by %s.", gates[0].Name)
	case gates[0].Says == Waits:
		return fmt.Sprintf("Waits at %s until its turn comes.", gates[0].Name)
	}
	return "Goes to a broker."
}
