package kafka

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weir-go/weir/gateway/internal/quotas"
	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/quota"
)

// Clients set quotas by AlterClientQuotas, as kafka-configs does. If a gate of the gateway counts a quota, it becomes a rule that is set at
// run time (package quotas). All other quotas stay with the broker. The broker always decides first whether the client has the right. It is
// asked on the client's own connection, and its refusals are passed on in its words.

// Keys of quotas that a gate may count.
const (
	mutationRate   = "controller_mutation_rate"
	produceRate    = "producer_byte_rate"
	fetchRate      = "consumer_byte_rate"
	connectionRate = "connection_creation_rate"
)

// gates are the gates of the quotas that are counted here, by Kafka's names for them.
func (q *Quotas) gates() map[string]*policy.Gate {
	all := map[string]*policy.Gate{mutationRate: q.Mutations, produceRate: q.Produce, fetchRate: q.Fetch, connectionRate: q.Connections}
	maps.DeleteFunc(all, func(_ string, g *policy.Gate) bool { return g == nil || g.Quota() == nil })
	return all
}

// unlimited is how a quota without a limit is described.
const unlimited = float64(math.MaxInt64)

// ruleOf returns the rule for an entity whose quota has a value. If the rule cannot have exactly that value, asked is the value. The burst
// is what brokers allow: all samples for mutations (KIP-599), and all but one for rates (ClientQuotaManager). A rate that is too large to
// count is no limit.
func (q *Quotas) ruleOf(whose quota.Rule, key string, value float64) (spec *policy.QuotaRuleSpec, asked float64, err error) {
	if !(value > 0) || math.IsInf(value, 0) {
		return nil, 0, fault.New(fmt.Sprintf("%s=%v is not a rate", key, value), "set one above 0, or delete the quota")
	}
	spec = &policy.QuotaRuleSpec{Rule: whose}
	rate := max(value, quota.MinRate)
	if rate != value {
		asked = value
	}
	if rate > quota.MaxTokens {
		spec.Exempt = true
		return spec, value, nil
	}
	samples, least := q.Samples, 0.0
	if key != mutationRate {
		samples, least = max(samples-1, 1), 1 // bytes and connections are whole
	}
	spec.Rate = strconv.FormatFloat(rate, 'f', -1, 64) + "/s"
	spec.Burst = min(max(rate*float64(samples)*q.Window.Seconds(), least), quota.MaxTokens)
	return spec, asked, nil
}

// alteration is a request to set quotas, with the result of each entry.
type alteration struct {
	*kmsg.AlterClientQuotasRequest
	gates   map[string]*policy.Gate
	results []altered // of its entries, in their order
}

// altered is the result of an entry. A code of 0 is no error.
type altered struct {
	code int16
	why  *string
	kept bool // the gateway's part of it is carried out
}

// alterQuotas serves a request to set quotas, of n bytes.
func (r *relay) alterQuotas(req *request, frame []byte, n int) error {
	frame, err := r.decodable(frame, n, heldRequest*n)
	if err != nil {
		return err
	}
	a := &alteration{AlterClientQuotasRequest: new(kmsg.AlterClientQuotasRequest)}
	a.SetVersion(req.version)
	if err := readBody(frame[4:], a.AlterClientQuotasRequest); err != nil {
		return endErrorf("a request for %s cannot be read: %v", kmsg.NameForKey(req.key), err)
	}
	q := r.server.opts.Quotas()
	a.gates, a.results = q.gates(), make([]altered, len(a.Entries))
	if !slices.ContainsFunc(a.Entries, func(e kmsg.AlterClientQuotasRequestEntry) bool { return len(a.ops(&e)) > 0 }) {
		return r.send(pending{request: *req}, frame)
	}
	valid := *a.AlterClientQuotasRequest
	valid.ValidateOnly = true
	resp, err := r.ask(req, frame[4:], a, &valid)
	if err != nil {
		return err
	}
	throttle := a.judged(&valid, resp)
	r.logRefused(a)
	r.changeRules(a, &q)
	if rest := a.rest(); rest != nil {
		if resp, err = r.ask(req, frame[4:], a, rest); err != nil {
			return err
		}
		throttle = max(throttle, a.judged(rest, resp))
	}
	out := a.answer()
	raise(out, throttle)
	return r.reply(req, out)
}

// ops are the operations of an entry that are about quotas counted here.
func (a *alteration) ops(e *kmsg.AlterClientQuotasRequestEntry) (ops []kmsg.AlterClientQuotasRequestEntryOp) {
	for _, op := range e.Ops {
		if a.gates[op.Key] != nil {
			ops = append(ops, op)
		}
	}
	return ops
}

// judged keeps the broker's results for the entries that it was asked about. It returns the throttle time for the client, in ms. If the
// broker has not carried out its part of an entry, the client is told which part holds nevertheless.
func (a *alteration) judged(asked *kmsg.AlterClientQuotasRequest, resp kmsg.Response) (throttle int32) {
	wanted, said := map[string]bool{}, map[string]*kmsg.AlterClientQuotasResponseEntry{}
	for i := range asked.Entries {
		wanted[entityOf(asked.Entries[i].Entity)] = true
	}
	all := resp.(*kmsg.AlterClientQuotasResponse)
	for i := range all.Entries {
		said[entityOf(all.Entries[i].Entity)] = &all.Entries[i]
	}
	for i := range a.Entries {
		id := entityOf(a.Entries[i].Entity)
		e := said[id]
		r := &a.results[i]
		switch {
		case r.code != 0 || !wanted[id]:
			continue
		case e == nil:
			why := "the broker's answer does not contain this entity"
			r.code, r.why = kerr.UnknownServerError.Code, &why
		case e.ErrorCode != 0:
			r.code, r.why = e.ErrorCode, e.ErrorMessage
		}
		if r.code != 0 && r.kept {
			why := kerr.ErrorForCode(r.code).Error()
			if r.why != nil {
				why = *r.why
			}
			why = "the quotas that the gateway counts are changed, and the others are not: " + why
			r.why = &why
		}
	}
	return all.ThrottleMillis
}

// rest is the broker's part of the entries that were not refused: quotas that are not counted here, and each removal. So removals also
// delete old quotas of the broker that are counted here now. It is nil if there is no such part.
func (a *alteration) rest() *kmsg.AlterClientQuotasRequest {
	if a.ValidateOnly {
		return nil
	}
	rest := *a.AlterClientQuotasRequest
	rest.Entries = nil
	for i, e := range a.Entries {
		e.Ops = slices.DeleteFunc(slices.Clone(e.Ops), func(op kmsg.AlterClientQuotasRequestEntryOp) bool { return a.gates[op.Key] != nil && !op.Remove })
		if a.results[i].code == 0 && len(e.Ops) > 0 {
			rest.Entries = append(rest.Entries, e)
		}
	}
	if len(rest.Entries) == 0 {
		return nil
	}
	return &rest
}

// answer is the answer to the client.
func (a *alteration) answer() *kmsg.AlterClientQuotasResponse {
	resp := kmsg.NewPtrAlterClientQuotasResponse()
	resp.SetVersion(a.Version)
	for i := range a.Entries {
		out := kmsg.NewAlterClientQuotasResponseEntry()
		for _, is := range a.Entries[i].Entity {
			named := kmsg.NewAlterClientQuotasResponseEntryEntity()
			named.Type, named.Name = is.Type, is.Name
			out.Entity = append(out.Entity, named)
		}
		out.ErrorCode, out.ErrorMessage = a.results[i].code, a.results[i].why
		resp.Entries = append(resp.Entries, out)
	}
	return resp
}

// changeRules carries out the gateway's part of the entries that the broker finds valid. For each entity it carries out all changes, or
// none.
func (r *relay) changeRules(a *alteration, q *Quotas) {
	var changes []quotas.Change
	var of []int // the entries
	for i := range a.Entries {
		if a.results[i].code != 0 {
			continue
		}
		ops, err := a.changes(&a.Entries[i], q)
		switch {
		case err != nil:
			a.fail(i, err)
		case len(ops) > 0:
			changes = append(changes, quotas.Change{Ops: ops, ValidateOnly: a.ValidateOnly, MayMiss: true, Via: quotas.ViaKafka, By: r.by()})
			of = append(of, i)
		}
	}
	if r.server.opts.Rules == nil {
		for _, i := range of {
			a.fail(i, quotas.ErrNowhere)
		}
		return
	}
	for len(changes) > 0 { // in steps, so that others wait for a bounded time
		n := min(len(changes), quotas.MaxOps)
		for j, answer := range r.server.opts.Rules.Each(r.ctx, changes[:n]) {
			if answer.Err != nil {
				a.fail(of[j], answer.Err)
			} else {
				a.results[of[j]].kept = !a.ValidateOnly
			}
		}
		changes, of = changes[n:], of[n:]
	}
}

// changes returns the operations on rules that an entry asks for.
func (a *alteration) changes(e *kmsg.AlterClientQuotasRequestEntry, q *Quotas) (ops []quotas.Op, err error) {
	whose, err := whoseRule(e.Entity)
	for _, op := range a.ops(e) {
		do := quotas.Op{Gate: a.gates[op.Key].Name()}
		switch {
		case !op.Remove && err != nil:
			return nil, err
		case err != nil:
			continue // no rule can have such an entity, but the broker may have a quota for it
		case op.Remove:
			do.Delete = &whose
		default:
			if do.Set, do.Asked, err = q.ruleOf(whose, op.Key, op.Value); err != nil {
				return nil, err
			}
		}
		ops = append(ops, do)
	}
	return ops, nil
}

// fail keeps the reason why an entry was not carried out.
func (a *alteration) fail(i int, err error) {
	text, code := err.Error(), kerr.UnknownServerError.Code
	var wrong fault.Fault
	var faults quotas.Faults
	if errors.As(err, &wrong) || errors.As(err, &faults) || errors.Is(err, quotas.ErrNowhere) {
		code = kerr.InvalidRequest.Code
	}
	a.results[i].code, a.results[i].why = code, &text
}

// logRefused logs that the broker has refused to set quotas. Clients without the right are only counted, because anybody can ask.
func (r *relay) logRefused(a *alteration) {
	book, n, first := r.server.opts.Rules, 0, -1
	for i := range a.results {
		switch a.results[i].code {
		case 0:
		case kerr.ClusterAuthorizationFailed.Code:
			if book != nil {
				book.CountDenied()
			}
			return
		default:
			if n++; first < 0 {
				first = i
			}
		}
	}
	if n == 0 || book == nil {
		return
	}
	why := kerr.ErrorForCode(a.results[first].code).Error()
	if said := a.results[first].why; said != nil {
		why = *said
	}
	why = fmt.Sprintf("the broker says of %s: %s", entityOf(a.Entries[first].Entity), why)
	if n > 1 {
		why += fmt.Sprintf(" (and it refuses %d more)", n-1)
	}
	book.LogRefused(r.by(), quotas.ViaKafka, errors.New(why))
}

// by names the client, for the log.
func (r *relay) by() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	name := "(unnamed)"
	if p := r.state.login.principal(); p.known {
		name = "User:" + p.name
	}
	return name + " of kafka." + r.server.opts.Cluster
}

// The types of Kafka's entities.
const (
	ofUser    = "user"
	ofClient  = "client-id"
	ofAddress = "ip"
)

// peerBits is the part of an IPv6 address that stands for its host, as everywhere else here.
const peerBits = 64

// whoseRule returns the match of a rule for an entity. The default entity of a type is each user, each client, or each address.
func whoseRule(entity []kmsg.AlterClientQuotasRequestEntryEntity) (whose quota.Rule, err error) {
	for _, is := range entity {
		match := quota.Every
		if is.Name != nil {
			if !utf8.ValidString(*is.Name) {
				return whose, fault.New(fmt.Sprintf("the %s %.80q is not text in UTF-8", is.Type, *is.Name), "")
			}
			match = quota.Named(*is.Name)
		}
		field := map[string]*quota.Match{ofUser: &whose.User, ofClient: &whose.Client, ofAddress: &whose.Address}[is.Type]
		switch {
		case field == nil:
			return whose, fault.New(fmt.Sprintf("there are no rules for the type %.80q of entities", is.Type), "")
		case *field != "":
			return whose, fault.New(fmt.Sprintf("the type %s of entities is named twice", is.Type), "")
		case is.Type == ofAddress && is.Name != nil:
			network, err := networkOf(*is.Name)
			if err != nil {
				return whose, err
			}
			match = quota.Match(network.String())
		}
		*field = match
	}
	return whose, nil
}

// networkOf is the network of an address: the address itself, or its /64 for IPv6.
func networkOf(name string) (netip.Prefix, error) {
	addr, err := netip.ParseAddr(name)
	if err != nil {
		return netip.Prefix{}, fault.New(fmt.Sprintf("%.80q is not an address", name), "set it for an address, such as 10.0.0.7; host names are not looked up here")
	}
	addr = addr.Unmap().WithZone("")
	return addr.Prefix(min(addr.BitLen(), peerBits))
}

// describeQuotas serves a request for quotas, of n bytes. The answer has the broker's quotas, overlaid by those that are kept here.
func (r *relay) describeQuotas(req *request, frame []byte, n int) error {
	memory, book := heldRequest*n, r.server.opts.Rules
	if book != nil {
		rules, bytes := book.Size()
		memory += heldRule*rules + heldName*bytes
	}
	frame, err := r.decodable(frame, n, memory)
	if err != nil {
		return err
	}
	filter := new(kmsg.DescribeClientQuotasRequest)
	filter.SetVersion(req.version)
	if err := readBody(frame[4:], filter); err != nil {
		return endErrorf("a request for %s cannot be read: %v", kmsg.NameForKey(req.key), err)
	}
	a, err := r.ask(req, frame[4:], filter, filter)
	if err != nil {
		return err
	}
	resp := a.(*kmsg.DescribeClientQuotasResponse)
	if resp.ErrorCode == 0 && book != nil {
		q := r.server.opts.Quotas()
		q.describe(book, filter, resp)
	}
	return r.reply(req, resp)
}

// describe overlays the quotas in an answer with those here that match a filter.
func (q *Quotas) describe(book *quotas.Book, filter *kmsg.DescribeClientQuotasRequest, resp *kmsg.DescribeClientQuotasResponse) {
	gates := q.gates()
	at := map[string]int{}
	for i := range resp.Entries {
		at[entityOf(resp.Entries[i].Entity)] = i
	}
	for _, key := range slices.Sorted(maps.Keys(gates)) {
		for _, v := range book.List(gates[key].Name()).Rules {
			entity, value, ok := described(&v)
			if !ok || !matches(filter, entity) {
				continue
			}
			id := entityOf(entity)
			i, known := at[id]
			if !known {
				i = len(resp.Entries)
				at[id] = i
				e := kmsg.NewDescribeClientQuotasResponseEntry()
				e.Entity = entity
				resp.Entries = append(resp.Entries, e)
			}
			setValue(&resp.Entries[i], key, value)
		}
	}
	sorted := make([]kmsg.DescribeClientQuotasResponseEntry, 0, len(at))
	for _, id := range slices.Sorted(maps.Keys(at)) {
		sorted = append(sorted, resp.Entries[at[id]])
	}
	resp.Entries = sorted
}

// described is a rule in Kafka's terms. ok is false if Kafka has no terms for it: the rule is not in force, has more than one limit, or
// matches something else.
func described(v *quotas.View) (entity []kmsg.DescribeClientQuotasResponseEntryEntity, value float64, ok bool) {
	rule := &v.Rule
	if !v.InForce || rule.Blocked {
		return nil, 0, false
	}
	windows, err := rule.Parse()
	switch {
	case v.Asked > 0:
		value = v.Asked
	case rule.Exempt:
		value = unlimited
	case err == nil && len(windows) == 1 && windows[0].Rate > 0:
		value = windows[0].Rate
	default:
		return nil, 0, false
	}
	for _, part := range quota.Parts() {
		m := *rule.Part(part)
		if m == "" {
			continue
		}
		is := kmsg.NewDescribeClientQuotasResponseEntryEntity()
		switch part {
		case "user":
			is.Type = ofUser
		case "client":
			is.Type = ofClient
		case "address":
			is.Type = ofAddress
		default:
			return nil, 0, false
		}
		if name, named := m.Value(); named {
			is.Name = &name
			if is.Type == ofAddress {
				network, err := netip.ParsePrefix(name)
				if err != nil || network.Bits() != min(network.Addr().BitLen(), peerBits) {
					return nil, 0, false
				}
				name = network.Addr().String()
			}
		}
		entity = append(entity, is)
	}
	return entity, value, len(entity) > 0
}

// matches reports whether an entity is one that a filter asks for. Every component of the filter must match. If the filter is strict, the
// entity must have no other part. An address gets the name that the filter has for it.
func matches(filter *kmsg.DescribeClientQuotasRequest, entity []kmsg.DescribeClientQuotasResponseEntryEntity) bool {
	for _, c := range filter.Components {
		i := slices.IndexFunc(entity, func(is kmsg.DescribeClientQuotasResponseEntryEntity) bool { return is.Type == c.EntityType })
		if i < 0 {
			return false
		}
		is := &entity[i]
		switch c.MatchType {
		case kmsg.QuotasMatchTypeExact:
			if is.Name == nil || c.Match == nil || *is.Name != *c.Match && !(is.Type == ofAddress && sameHost(*is.Name, *c.Match)) {
				return false
			}
			is.Name = c.Match
		case kmsg.QuotasMatchTypeDefault:
			if is.Name != nil {
				return false
			}
		}
	}
	return !filter.Strict || len(filter.Components) == len(entity)
}

// sameHost reports whether two addresses are of the same host.
func sameHost(a, b string) bool {
	one, errA := networkOf(a)
	other, errB := networkOf(b)
	return errA == nil && errB == nil && one == other
}

// setValue sets a value of an entity in an answer.
func setValue(e *kmsg.DescribeClientQuotasResponseEntry, key string, to float64) {
	for i := range e.Values {
		if e.Values[i].Key == key {
			e.Values[i].Value = to
			return
		}
	}
	value := kmsg.NewDescribeClientQuotasResponseEntryValue()
	value.Key, value.Value = key, to
	e.Values = append(e.Values, value)
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
