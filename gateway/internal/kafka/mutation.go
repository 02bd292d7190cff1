package kafka

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/quota"
)

// A mutation is a request that creates or deletes partitions. A quota charges each valid topic of it, as brokers do (KIP-599). So the
// gateway asks the broker first, on the client's own connection and with its rights. A copy of the request that only validates shows which
// partitions would be created, and Metadata which would be deleted. A topic that the broker would refuse costs nothing, and the client gets
// the broker's error. Topics that the quota refuses are removed from the request, and added to the answer.
type mutation struct {
	topics
	all    []mutated // in the order of the request
	memory *share    // of the decoded request, until the answer
	broker time.Time // until when the broker throttles the client, because of the gateway's questions
}

// mutated is a topic of a mutation.
type mutated struct {
	partitions int64 // the number created or deleted, or unheard; 0 if none, or if the topic was named before
	charged    weir.Permit
	code       int16 // the error if it is refused here, or 0
	why        string
}

// strictFrom are the first versions whose clients know error 89, and are refused. Older clients are delayed.
var strictFrom = map[int16]int16{keyCreateTopics: 6, keyDeleteTopics: 5, keyCreatePartitions: 3}

// mode is the mode of a quota for a mutation: it refuses clients that know error 89.
func (r *request) mode() quota.Mode {
	if from, ok := strictFrom[r.key]; ok && r.version >= from {
		return quota.Strict
	}
	return quota.Permissive
}

// readMutation reads a mutation; b is everything after the size of its frame.
func readMutation(req *request, b []byte) (*mutation, error) {
	var t topics
	switch req.key {
	case keyCreateTopics:
		t = &creation{CreateTopicsRequest: new(kmsg.CreateTopicsRequest)}
	case keyDeleteTopics:
		t = &deletion{DeleteTopicsRequest: new(kmsg.DeleteTopicsRequest)}
	case keyCreatePartitions:
		t = &growth{CreatePartitionsRequest: new(kmsg.CreatePartitionsRequest)}
	}
	t.SetVersion(req.version)
	if err := readBody(b, t); err != nil {
		return nil, endErrorf("a request for %s cannot be read: %v", kmsg.NameForKey(req.key), err)
	}
	return &mutation{topics: t, all: make([]mutated, len(t.names()))}, nil
}

// mutates reports whether a quota counts the mutations of the client that asks now.
func (r *relay) mutates(g *policy.Gate, req *request) bool {
	if g == nil || g.Mode() == policy.Off {
		return false
	}
	matched := g.Quota().Explain(r.work(req, 1))
	return len(matched) > 0 && !matched[0].Exempt
}

// mutate serves a mutation of n bytes, whose beginning is frame.
func (r *relay) mutate(g *policy.Gate, req *request, frame []byte, n int) error {
	frame, err := r.decodable(frame, n, heldRequest*n)
	if err != nil {
		return err
	}
	m, err := readMutation(req, frame[4:])
	if err != nil {
		return err
	}
	p := pending{request: *req}
	if m.dry() || len(m.all) == 0 {
		return r.send(p, frame)
	}
	if err := r.inquire(m, req, frame[4:]); err != nil {
		return err
	}
	sent := false
	m.memory, r.holds.decoded = r.holds.decoded, nil
	defer func() { // after a panic, too
		if sent {
			return // the answer decides about the charges
		}
		m.memory.free()
		for i := range m.all {
			m.all[i].charged.Cancel() // no broker has got the whole request
		}
	}()
	p.mutation, p.until = m, r.chargeTopics(g, req, m, req.mode())
	err = r.sendMutation(p, frame)
	sent = err == nil
	return err
}

// sendMutation sends the topics of a mutation that are not refused. If all are refused, the answer is the gateway's own.
func (r *relay) sendMutation(p pending, frame []byte) error {
	m := p.mutation
	refused := func(i int) bool { return m.all[i].code != 0 }
	if !slices.ContainsFunc(m.all, func(t mutated) bool { return t.code != 0 }) {
		return r.send(p, frame)
	}
	if rest := m.without(refused); rest != nil {
		return r.send(p, likeRequest(frame[4:], m, rest))
	}
	resp := m.merged(nil, m.all)
	resp.SetVersion(p.version)
	raise(resp, throttleOf(m.longer(p.until), time.Now()))
	m.memory.free()
	return r.reply(&p.request, resp)
}

// longer returns the later end of two waits: until, and the end of the broker's throttle time.
func (m *mutation) longer(until time.Time) time.Time {
	if m.broker.After(until) {
		return m.broker
	}
	return until
}

// inquire asks the broker how many partitions a mutation changes; b is everything after the size of its frame.
func (r *relay) inquire(m *mutation, req *request, b []byte) error {
	err := r.askAll(req, b, m, m.questions(), func(a kmsg.Response) {
		m.hear(a)
		if told, ok := a.(kmsg.ThrottleResponse); ok {
			if ms, _ := told.Throttle(); ms > 0 {
				m.broker = m.longer(time.Now().Add(time.Duration(ms) * time.Millisecond))
			}
		}
	})
	if err != nil {
		return err
	}
	for i, n := range m.count(r.server) {
		m.all[i].partitions = n
	}
	return nil
}

// chargeTopics charges a mutation, topic by topic, and returns until when its client must wait. A refused client is told the whole wait.
// The connection is not read for that time, or for Longest of the quotas if that is less. After the first refusal, all further topics are
// refused, too, without asking the quota or its store again.
func (r *relay) chargeTopics(g *policy.Gate, req *request, m *mutation, mode quota.Mode) time.Time {
	t, longest := &r.server.counts.throttled.mutations, r.server.opts.Quotas().Longest
	last := Charge{Gate: g.Name()} // its wait counts, not the sum of waits
	var refused *weir.Rejection
	var code int16
	var why string
	for i := range m.all {
		topic := &m.all[i]
		if topic.partitions <= 0 {
			continue
		}
		if refused == nil {
			w := r.work(req, topic.partitions)
			p, a, err := g.AdmitIn(r.ctx, mode, w)
			topic.charged = p
			c := Charge{Gate: g.Name(), Rule: a.Rule, Bucket: a.Key, User: w.User, Client: w.Client, Cost: a.Cost}
			if err == nil {
				r.note(t, c, longest)
			}
			c.Cost, c.Wait = 0, a.Wait
			if refused = weir.AsRejection(err); refused != nil {
				code, why, c.Wait = answerTo(refused, mode, a.Windows)
			}
			if c.Wait > 0 {
				last = c
			}
		}
		topic.code, topic.why = code, why
	}
	if mode == quota.Permissive {
		last.Wait = min(last.Wait, longest)
	}
	if last.Wait <= 0 {
		return time.Time{}
	}
	return r.note(t, last, longest)
}

// answerTo is the answer to a client for a refusal: an error code, the reason, and the wait. With a code of 0 there is no error, and the
// topic is sent to the broker. That is so if the client does not know the error, the connection ends, or a reload or a stop has closed the gate.
func answerTo(refused *weir.Rejection, mode quota.Mode, windows []quota.Window) (code int16, why string, wait time.Duration) {
	switch refused.Reason {
	case weir.ReasonBlocked:
		return kerr.PolicyViolation.Code, refused.Error(), 0
	case weir.ReasonQuota, weir.ReasonTooLarge, weir.ReasonStore:
	default:
		return 0, "", 0
	}
	if wait = mostTold; refused.Retryable {
		wait = min(refused.RetryAfter, mostTold)
	}
	if mode == quota.Strict {
		code, why = kerr.ThrottlingQuotaExceeded.Code, tellOwed(refused, windows)
	}
	return code, why, wait
}

// tellOwed is the text of a refusal: the rate, the debt, and when to come back.
func tellOwed(refused *weir.Rejection, windows []quota.Window) string {
	if refused.Reason == weir.ReasonStore {
		return fmt.Sprintf("gate %s cannot decide, because its store does not answer; come back in %v", refused.Gate, refused.RetryAfter)
	}
	of := "the quota"
	if i := max(refused.Window-1, 0); i < len(windows) {
		of = fmt.Sprintf("the quota of %v", windows[i])
	}
	then := "; come back in " + refused.RetryAfter.String()
	if !refused.Retryable {
		then = ", and that takes more than 146 years to pay back"
	}
	owed := strconv.FormatFloat(math.Ceil(max(-refused.Remaining, 0)*1000)/1000, 'f', -1, 64)
	return fmt.Sprintf("%s is used up (gate %s, rule %s): %s partitions are owed%s", of, refused.Gate, refused.Rule, owed, then)
}

// finishMutation takes the broker's answer to the sent topics, and returns the answer for the client. It refunds topics that the broker has
// refused in the end. The broker may have changed a topic that it did not know when it was asked, because the controller knows topics
// earlier. Such a topic is charged now.
func (r *relay) finishMutation(p *pending, resp kmsg.Response) kmsg.Response {
	m, made, now := p.mutation, &r.server.made, time.Now()
	codes, refused := m.results(resp), false
	late := &mutation{topics: m.topics, all: make([]mutated, len(m.all))}
	defer late.endUnanswered() // the topic is changed in any case
	defer m.memory.free()
	for i, name := range m.names() {
		t := &m.all[i]
		code, ok := codes[name]
		delete(codes, name) // if a topic is named twice, the first counts
		if ok && code != 0 && code != kerr.RequestTimedOut.Code {
			t.charged.Cancel()
		} else {
			t.charged.Done(weir.OK) // also after a time-out: the broker may carry it out all the same
		}
		if refused = refused || t.code != 0; !ok || code != 0 || t.code != 0 {
			continue
		}
		counted := t.partitions
		if counted == unheard {
			counted = m.size(i, r.server)
			late.all[i].partitions = counted
		}
		m.done(i, counted, now, made)
	}
	if g := r.server.opts.Quotas().Mutations; g != nil { // nil if a reload has removed the quota
		if until := r.chargeTopics(g, &p.request, late, quota.Permissive); until.After(p.until) {
			p.until = until
		}
	}
	if refused {
		return m.merged(resp, m.all)
	}
	return resp
}

// endUnanswered ends a mutation that gets no answer. The broker may have carried it out, so its charges stay.
func (m *mutation) endUnanswered() {
	if m != nil {
		for i := range m.all {
			m.all[i].charged.Done(weir.OK)
		}
		m.memory.free()
	}
}
