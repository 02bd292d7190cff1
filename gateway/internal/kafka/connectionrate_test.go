package kafka

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weir-go/weir/gateway/internal/await"
	"github.com/weir-go/weir/policy"
)

// newDoor is a gateway with a quota of new connections, and a broker that accepts everything.
func newDoor(t *testing.T, q policy.QuotaSpec, mode policy.Mode) (r *rig, brokers <-chan net.Conn) {
	q.By = []string{"address"}
	spec := policy.Spec{OtherWork: map[string]string{"dial": "user"}, Gates: map[string]policy.GateSpec{"dial": {Mode: mode, Quota: &q}}}
	p, err := policy.Compile(spec, policy.Options{})
	if err != nil {
		t.Fatal(err)
	}
	r = newRigOf(t, Quotas{Connections: p.Gate("dial"), Longest: time.Minute}, nil)
	r.gate = p.Gate("dial")
	all := make(chan net.Conn, 10)
	go func() {
		for {
			c, err := r.broker.Accept()
			if err != nil {
				return
			}
			all <- c
		}
	}()
	return r, all
}

// A connection beyond the quota is refused, and the broker never sees it.
func TestConnectionsAreRefused(t *testing.T) {
	r, brokers := newDoor(t, policy.QuotaSpec{QuotaLimitSpec: policy.QuotaLimitSpec{Rate: "1/h", Burst: 2}}, policy.Enforce)
	for range 2 {
		r.come()
		<-brokers
	}
	third := r.come()
	if n, err := third.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read %d bytes, %v", n, err)
	}
	if len(brokers) > 0 || r.gate.Snapshot().Admitted != 2 {
		t.Errorf("%+v, and %d more at the broker", r.gate.Snapshot(), len(brokers))
	}
	exempt := policy.QuotaRuleSpec{}
	exempt.Address, exempt.Exempt = "127.0.0.0/8", true
	r, brokers = newDoor(t, policy.QuotaSpec{QuotaLimitSpec: policy.QuotaLimitSpec{Rate: "1/h"}, Rules: []policy.QuotaRuleSpec{exempt}}, policy.Enforce)
	r.come()
	r.come()
	<-brokers
	<-brokers
	r, brokers = newDoor(t, policy.QuotaSpec{QuotaLimitSpec: policy.QuotaLimitSpec{Rate: "1/h"}}, policy.Observe)
	r.come()
	r.come()
	<-brokers
	<-brokers
}

// With a queue a connection waits for its turn, and is served then. Bytes that it has sent meanwhile are not lost.
func TestConnectionsWait(t *testing.T) {
	q := policy.QuotaSpec{QuotaLimitSpec: policy.QuotaLimitSpec{Rate: "5/s", Burst: 1}}
	q.Queue.Len, q.Queue.MaxWait = 1, policy.Duration(time.Minute)
	r, brokers := newDoor(t, q, policy.Enforce)
	begin := time.Now()
	r.come()
	<-brokers
	second := r.come()
	r.write(second, framed("app", 0, kmsg.NewPtrListGroupsRequest()))
	b := <-brokers
	if passed := time.Since(begin); passed < 150*time.Millisecond {
		t.Errorf("served after %v", passed)
	}
	if got := r.frame(b); len(got) == 0 {
		t.Error("the request is lost")
	}
	r.write(b, answer(0, kmsg.NewPtrListGroupsResponse()))
	if got := r.frame(second); len(got) == 0 {
		t.Error("no answer")
	}
}

// A waiting connection ends when its client leaves, or when it is drained.
func TestConnectionsLeaveTheQueue(t *testing.T) {
	q := policy.QuotaSpec{QuotaLimitSpec: policy.QuotaLimitSpec{Rate: "1/h", Burst: 1}}
	q.Queue.Len, q.Queue.MaxWait = 10, policy.Duration(4*time.Hour)
	r, brokers := newDoor(t, q, policy.Enforce)
	r.come()
	<-brokers
	waiting := func(n int64) {
		t.Helper()
		await.That(t, "the others have left", func() bool { return r.gate.Snapshot().Waiting == n })
	}
	second, third := r.come(), r.come()
	r.wrap = unwatched
	r.come()
	waiting(3)
	r.write(third, framed("app", 0, kmsg.NewPtrListGroupsRequest()))
	_ = second.Close()
	waiting(2)
	for _, open := range r.server.all() {
		open.drain()
	}
	waiting(0)
	if _, err := third.Read(make([]byte, 1)); err == nil {
		t.Error("answered")
	}
	if len(brokers) > 0 {
		t.Error("the broker has seen one that was never let in")
	}
}
