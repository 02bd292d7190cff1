package kafka

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weir-go/weir/gateway/internal/quotas"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/quota"
)

// Quotas that clients set by AlterClientQuotas, as kafka-configs does. Those that a gate of the gateway counts are kept as rules that are
// set at run time (package quotas); all others are the broker's. The broker always decides first who may ask for what: it is asked on
// the client's own connection, and what it refuses is refused in its words.

// Keys of quotas that a gate may count.
const (
	mutationRate = "controller_mutation_rate"
	produceRate  = "producer_byte_rate"
	fetchRate    = "consumer_byte_rate"
)

// gates are the quotas that are counted here, by Kafka's names for them.
func (q *Quotas) gates() map[string]*policy.Gate {
	all := map[string]*policy.Gate{mutationRate: q.Mutations, produceRate: q.Produce, fetchRate: q.Fetch}
	maps.DeleteFunc(all, func(_ string, g *policy.Gate) bool { return g == nil || g.Quota() == nil })
	return all
}

// unlimited is how a quota without a limit is described.
const unlimited = float64(math.MaxInt64)

// limitOf returns the limit of a quota. Its burst is what brokers allow (KIP-599, and ClientQuotaManager for bytes): all samples
// for mutations, all but one for bytes. A rate that is beyond counting is none.
func (q *Quotas) limitOf(key string, rate float64) (l policy.QuotaLimitSpec, none bool) {
	samples := q.Samples
	if key != mutationRate {
		samples--
	}
	l.Burst = rate * float64(max(samples, 1)) * q.Window.Seconds()
	l.Rate = strconv.FormatFloat(rate, 'f', -1, 64) + "/s"
	return l, max(l.Burst, rate) > quota.MaxTokens
}

// alterQuotas serves a request to set quotas, of n bytes.
func (r *relay) alterQuotas(req *request, frame []byte, n int) error {
	frame, err := r.small(frame, n)
	if err != nil {
		return err
	}
	alter := new(kmsg.AlterClientQuotasRequest)
	alter.SetVersion(req.version)
	if err := readBody(frame[4:], alter); err != nil {
		return refuse("a request for %s cannot be read: %v", kmsg.NameForKey(req.key), err)
	}
	q := r.server.opts.Quotas()
	ours := q.gates()
	if !slices.ContainsFunc(alter.Entries, func(e kmsg.AlterClientQuotasRequestEntry) bool { return len(opsOf(&e, ours)) > 0 }) {
		return r.send(pending{request: *req}, frame)
	}
	valid := *alter
	valid.ValidateOnly = true
	a, err := r.ask(req, frame[4:], alter, &valid)
	if err != nil {
		return err
	}
	said := results(a)
	if rest := restOf(alter, said, ours); len(rest.Entries) > 0 && !alter.ValidateOnly {
		if a, err = r.ask(req, frame[4:], alter, rest); err != nil {
			return err
		}
		maps.Copy(said, results(a))
	}
	resp := kmsg.NewPtrAlterClientQuotasResponse()
	resp.SetVersion(req.version)
	throttle, _ := a.(kmsg.ThrottleResponse).Throttle()
	raise(resp, throttle)
	for i := range alter.Entries {
		e := &alter.Entries[i]
		out := kmsg.NewAlterClientQuotasResponseEntry()
		for _, is := range e.Entity {
			named := kmsg.NewAlterClientQuotasResponseEntryEntity()
			named.Type, named.Name = is.Type, is.Name
			out.Entity = append(out.Entity, named)
		}
		if res, ok := said[entityOf(e.Entity)]; ok && res.ErrorCode != 0 {
			out.ErrorCode, out.ErrorMessage = res.ErrorCode, res.ErrorMessage
		} else if err := r.keep(&q, e, ours, alter.ValidateOnly); err != nil {
			text := err.Error()
			out.ErrorCode, out.ErrorMessage = kerr.InvalidRequest.Code, &text
		}
		resp.Entries = append(resp.Entries, out)
	}
	return r.reply(req, resp)
}

// opsOf are the operations of an entry that are about quotas counted here.
func opsOf(e *kmsg.AlterClientQuotasRequestEntry, ours map[string]*policy.Gate) (ops []kmsg.AlterClientQuotasRequestEntryOp) {
	if slices.ContainsFunc(e.Entity, func(is kmsg.AlterClientQuotasRequestEntryEntity) bool { return !entityType(is.Type) }) {
		return nil // addresses are the broker's
	}
	for _, op := range e.Ops {
		if ours[op.Key] != nil {
			ops = append(ops, op)
		}
	}
	return ops
}

func entityType(name string) bool { return name == "user" || name == "client-id" }

// restOf is what the broker has to carry out: for entities that it finds valid, quotas that are not counted here, and each removal, so that
// what it has of the others goes too.
func restOf(alter *kmsg.AlterClientQuotasRequest, valid map[string]kmsg.AlterClientQuotasResponseEntry, ours map[string]*policy.Gate) *kmsg.AlterClientQuotasRequest {
	rest := *alter
	rest.Entries = nil
	for _, e := range alter.Entries {
		if valid[entityOf(e.Entity)].ErrorCode != 0 {
			continue
		}
		mine := len(opsOf(&e, ours)) > 0
		e.Ops = slices.DeleteFunc(slices.Clone(e.Ops), func(op kmsg.AlterClientQuotasRequestEntryOp) bool {
			return mine && ours[op.Key] != nil && !op.Remove
		})
		if len(e.Ops) > 0 {
			rest.Entries = append(rest.Entries, e)
		}
	}
	return &rest
}

// results are the entries of an answer, by entity.
func results(resp kmsg.Response) map[string]kmsg.AlterClientQuotasResponseEntry {
	all := map[string]kmsg.AlterClientQuotasResponseEntry{}
	for _, e := range resp.(*kmsg.AlterClientQuotasResponse).Entries {
		all[entityOf(e.Entity)] = e
	}
	return all
}

// keep sets and removes the quotas of an entity that are counted here: all of them, or none.
func (r *relay) keep(q *Quotas, e *kmsg.AlterClientQuotasRequestEntry, ours map[string]*policy.Gate, validateOnly bool) error {
	c := quotas.Change{ValidateOnly: validateOnly, Via: quotas.ViaKafka, By: "User:" + r.who()}
	whose, err := ruleOf(e.Entity)
	if err != nil {
		return err
	}
	for _, op := range opsOf(e, ours) {
		do := quotas.Op{Gate: ours[op.Key].Name()}
		if op.Remove {
			do.Delete = &whose
		} else {
			if !(op.Value > 0) || math.IsInf(op.Value, 0) {
				return fmt.Errorf("%s=%v is no rate; write one above 0, or remove the quota", op.Key, op.Value)
			}
			do.Set = &policy.QuotaRuleSpec{Rule: whose}
			if limit, none := q.limitOf(op.Key, op.Value); none {
				do.Set.Exempt = true
			} else {
				do.Set.QuotaLimitSpec = limit
			}
		}
		c.Ops = append(c.Ops, do)
	}
	if r.server.opts.Rules == nil {
		return quotas.ErrNowhere
	}
	for len(c.Ops) > 0 {
		_, err := r.server.opts.Rules.Change(r.ctx, c)
		var faults quotas.Faults
		if errors.As(err, &faults) {
			all := len(c.Ops)
			for i, f := range slices.Backward(faults) { // what is not there need not be removed
				if f.Missing && f.Op >= 0 && c.Ops[f.Op].Delete != nil {
					c.Ops, faults = slices.Delete(c.Ops, f.Op, f.Op+1), slices.Delete(faults, i, i+1)
				}
			}
			if len(c.Ops) < all && len(faults) == 0 {
				continue
			}
			return faults
		}
		return err
	}
	return nil
}

// who is the name of the client, for the log.
func (r *relay) who() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.state.login.principal()
	if !p.known {
		return "(unnamed)"
	}
	return p.name
}

// ruleOf is what a rule for an entity matches. The default of a kind is each user, or each client.
func ruleOf(entity []kmsg.AlterClientQuotasRequestEntryEntity) (whose quota.Rule, err error) {
	for _, is := range entity {
		match := quota.Match("*")
		if is.Name != nil {
			if match = quota.Match(*is.Name); match == "*" {
				return whose, fmt.Errorf("a %s with the name * cannot have a quota of its own here, where * is each one; leave it to the default", is.Type)
			}
		}
		if is.Type == "user" {
			whose.User = match
		} else {
			whose.Client = match
		}
	}
	return whose, nil
}

// describeQuotas serves a request for quotas, of n bytes: those of the broker, and over them those that are kept here.
func (r *relay) describeQuotas(req *request, frame []byte, n int) error {
	frame, err := r.small(frame, n)
	if err != nil {
		return err
	}
	filter := new(kmsg.DescribeClientQuotasRequest)
	filter.SetVersion(req.version)
	if err := readBody(frame[4:], filter); err != nil {
		return refuse("a request for %s cannot be read: %v", kmsg.NameForKey(req.key), err)
	}
	a, err := r.ask(req, frame[4:], filter, filter)
	if err != nil {
		return err
	}
	resp := a.(*kmsg.DescribeClientQuotasResponse)
	if q := r.server.opts.Quotas(); resp.ErrorCode == 0 && r.server.opts.Rules != nil {
		for key, g := range q.gates() {
			for _, v := range r.server.opts.Rules.List(g.Name()).Rules {
				if entity, rate, ok := described(&v); ok && matches(filter, entity) {
					put(resp, entity, key, rate)
				}
			}
		}
		slices.SortFunc(resp.Entries, func(a, b kmsg.DescribeClientQuotasResponseEntry) int {
			return strings.Compare(entityOf(a.Entity), entityOf(b.Entity))
		})
	}
	return r.reply(req, resp)
}

// described is a rule in Kafka's terms. ok is false if Kafka has none for it: it is not in force, has more than one limit, or is about
// something else.
func described(v *quotas.View) (entity []kmsg.DescribeClientQuotasResponseEntryEntity, rate float64, ok bool) {
	rule := &v.Rule
	whose := rule.Rule
	whose.User, whose.Client, whose.Name, whose.Exempt = "", "", "", false
	if !v.InForce || rule.Blocked || whose.Pattern() != (quota.Pattern{}) || rule.User == "" && rule.Client == "" {
		return nil, 0, false
	}
	windows, err := rule.Parse()
	switch {
	case rule.Exempt:
		rate = unlimited
	case err == nil && len(windows) == 1 && windows[0].Rate > 0:
		rate = windows[0].Rate
	default:
		return nil, 0, false
	}
	for _, of := range []struct {
		kind string
		name quota.Match
	}{{"user", rule.User}, {"client-id", rule.Client}} {
		if of.name == "" {
			continue
		}
		is := kmsg.NewDescribeClientQuotasResponseEntryEntity()
		is.Type = of.kind
		if name := string(of.name); name != "*" {
			is.Name = &name
		}
		entity = append(entity, is)
	}
	return entity, rate, true
}

// matches reports whether an entity is one that a filter asks for: every component of it has to match, and if it is strict the entity has
// no other.
func matches(filter *kmsg.DescribeClientQuotasRequest, entity []kmsg.DescribeClientQuotasResponseEntryEntity) bool {
	for _, c := range filter.Components {
		i := slices.IndexFunc(entity, func(is kmsg.DescribeClientQuotasResponseEntryEntity) bool { return is.Type == c.EntityType })
		if i < 0 {
			return false
		}
		name := entity[i].Name
		switch c.MatchType {
		case kmsg.QuotasMatchTypeExact:
			if name == nil || c.Match == nil || *name != *c.Match {
				return false
			}
		case kmsg.QuotasMatchTypeDefault:
			if name != nil {
				return false
			}
		}
	}
	return !filter.Strict || len(filter.Components) == len(entity)
}

// put sets a value of an entity in an answer.
func put(resp *kmsg.DescribeClientQuotasResponse, entity []kmsg.DescribeClientQuotasResponseEntryEntity, key string, rate float64) {
	value := kmsg.NewDescribeClientQuotasResponseEntryValue()
	value.Key, value.Value = key, rate
	id := entityOf(entity)
	for i := range resp.Entries {
		e := &resp.Entries[i]
		if entityOf(e.Entity) == id {
			e.Values = append(slices.DeleteFunc(e.Values, func(v kmsg.DescribeClientQuotasResponseEntryValue) bool { return v.Key == key }), value)
			return
		}
	}
	e := kmsg.NewDescribeClientQuotasResponseEntry()
	e.Entity, e.Values = entity, append(e.Values, value)
	resp.Entries = append(resp.Entries, e)
}

// entityOf names an entity, whatever the order of its parts.
func entityOf[E kmsg.AlterClientQuotasRequestEntryEntity | kmsg.AlterClientQuotasResponseEntryEntity | kmsg.DescribeClientQuotasResponseEntryEntity](parts []E) string {
	var words []string
	for _, p := range parts {
		is := kmsg.DescribeClientQuotasResponseEntryEntity(p)
		word := is.Type
		if is.Name != nil {
			word += "=" + strconv.Quote(*is.Name)
		}
		words = append(words, word)
	}
	slices.Sort(words)
	return strings.Join(words, ",")
}
