//go:build integration

package main

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"github.com/weir-go/weir/internal/testbed/kafka"
	"github.com/weir-go/weir/weirkafka"
)

// What an operator does to a real Kafka, and what may become of it, one after the other: nothing is lost, and nothing is
// applied twice.
func TestOnAKafka(t *testing.T) {
	t.Parallel()
	broker, err := startKafka(t.Context(), "message.max.bytes=20000000")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := broker.Stop(); err != nil {
			t.Error(err)
		}
	})
	elsewhere, err := brokerPorts.Addr()
	if err != nil {
		t.Fatal(err)
	}
	o := &operated{system: systemOn(t, broker.Addr, elsewhere), broker: broker}
	o.a = o.api(5, nil)
	if o.lag, err = weirkafka.NewLag(weirkafka.LagConfig{Brokers: o.brokers, Group: group, Topics: []string{topic}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(o.lag.Close)
	o.tooLarge()
	o.offsetsReset()
	o.groupDeleted()
	o.recordsLost()
	o.moved(elsewhere)

	got := o.get(o.a, "/v1/databases/orders/events")
	seen := map[string]bool{}
	for i, e := range got.Events {
		if e.Revision != int64(i+1) || seen[e.Batch] {
			t.Errorf("event %d: %+v", i, e)
		}
		seen[e.Batch] = true
	}
	if len(seen) != o.sent {
		t.Errorf("%d batches of %d in the log", len(seen), o.sent)
	}
	if n := o.a.inFlight(); n != 0 {
		t.Errorf("%d permits are left", n)
	}
}

// operated is a system whose Kafka somebody operates.
type operated struct {
	*system
	broker *kafka.Server
	a      *api
	lag    *weirkafka.Lag
	sent   int // batches, each of one event
}

// send sends the next batch, and wants this answer.
func (o *operated) send(code int, header ...string) {
	o.t.Helper()
	o.sent++
	if got := o.post(o.a, "orders", fmt.Sprintf(`{"id":"%d","events":[{"type":"x"}]}`, o.sent), header...); got.code != code {
		o.t.Fatalf("batch %d: %d %s", o.sent, got.code, got.body)
	}
}

// behind waits until the lag is this.
func (o *operated) behind(want float64) {
	o.t.Helper()
	o.until(fmt.Sprintf("the lag is %v", want), func() bool {
		v, err := o.lag.Read(o.t.Context())
		return err == nil && v == want
	})
}

// caughtUp stops a processor when Kafka has heard that it is done. At the end it has a second for that: on a busy machine too
// little, and the next owner would tell.
func (o *operated) caughtUp(stop func()) {
	o.t.Helper()
	o.behind(0)
	stop()
}

// groups runs Kafka's tool for consumer groups until it has done what it should: a group that somebody has just left may still
// have a member.
func (o *operated) groups(args ...string) {
	o.t.Helper()
	o.until(strings.Join(args, " "), func() bool {
		out, err := o.tool(args...)
		return err == nil && !strings.Contains(out, "Error")
	})
}

func (o *operated) tool(args ...string) (string, error) {
	return o.broker.Tool(o.t.Context(), "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
		append([]string{"--bootstrap-server", o.broker.Addr, "--group", group}, args...)...)
}

// A record of 10 MB is an error result, and the next one is applied.
func (o *operated) tooLarge() {
	random := make([]byte, 10<<20*3/4)
	_, _ = rand.Read(random) // nothing that can be compressed
	value := strings.Replace(goodRecord, `"type":"x"`, `"type":"x","data":"`+base64.StdEncoding.EncodeToString(random)+`"`, 1)
	partition := o.produce("orders", value)
	_, stop := o.processor(nil)
	o.send(201)
	o.caughtUp(stop)
	var reason string
	if err := o.a.cfg.store.db.QueryRowContext(o.t.Context(), "SELECT reason FROM rejects WHERE partition = ?", partition).Scan(&reason); err != nil || !strings.Contains(reason, "at most 1048576") {
		o.t.Errorf("the error result: %q, %v", reason, err)
	}
	if n := strings.Count(o.logged.String(), "a record is no batch"); n != 1 {
		o.t.Errorf("%d lines in the log", n)
	}
}

// The tool moves the group's offsets: not while a processor runs, and afterwards to the start and to the end. The store says
// where to begin, and Kafka hears of it.
func (o *operated) offsetsReset() {
	reset := func(to string) []string {
		return []string{"--reset-offsets", "--topic", topic, to, "--execute"}
	}
	_, stop := o.processor(nil)
	o.send(201)
	if out, err := o.tool(reset("--to-earliest")...); err == nil && !strings.Contains(out, "inactive") {
		o.t.Errorf("while a processor runs: %s", out)
	}
	o.send(201)
	o.caughtUp(stop)
	o.groups(reset("--to-earliest")...)
	o.behind(float64(o.sent + 1)) // and the record that is too large
	_, stop = o.processor(nil)
	o.behind(0)
	o.send(201)
	stop()

	o.send(202, "Prefer", "wait=0")
	o.until("it is in the topic", func() bool { return o.a.acknowledged() == 1 })
	o.groups(reset("--to-latest")...)
	o.behind(0)
	_, stop = o.processor(nil)
	o.until("it is applied", func() bool { return o.a.inFlight() == 0 })
	stop()
}

// The tool deletes the group. One of this name begins anew, with generation 1.
func (o *operated) groupDeleted() {
	o.groups("--delete")
	_, stop := o.processor(nil)
	o.send(201)
	o.caughtUp(stop)
	if !strings.Contains(o.logged.String(), "the group has begun anew") {
		o.t.Error("nobody says that the group has begun anew")
	}
}

// Kafka loses the records of applied batches while a processor runs.
func (o *operated) recordsLost() {
	_, stop := o.processor(nil)
	o.send(201)
	o.send(201)
	o.send(201)
	r := o.produceAt("orders", "no batch")
	o.until("it is past that", func() bool {
		next, err := o.a.cfg.store.next(o.t.Context(), r.Partition)
		return err == nil && next == r.Offset+1
	})
	if err := o.broker.Lose(o.t.Context(), topic, r.Partition, r.Offset-2); err != nil {
		o.t.Fatal(err)
	}
	o.send(201)
	o.send(201)
	o.caughtUp(stop)
	if !strings.Contains(o.logged.String(), "Kafka has lost records") {
		o.t.Error("nobody says that records are lost")
	}
	if next, err := o.a.cfg.store.next(o.t.Context(), r.Partition); err != nil || next != r.Offset {
		o.t.Errorf("it goes on at %d, want %d: %v", next, r.Offset, err)
	}
}

// Kafka goes away and comes back at another address, that clients have in their list.
func (o *operated) moved(to string) {
	_, stop := o.processor(nil)
	o.send(201)
	if err := o.broker.Move(o.t.Context(), to); err != nil {
		o.t.Fatal(err)
	}
	o.send(201)
	o.caughtUp(stop)
}
