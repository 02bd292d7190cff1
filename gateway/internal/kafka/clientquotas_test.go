package kafka

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/quotas"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/quota"
)

// clerk is the broker of a rig that keeps quotas, as Kafka 4.2 does. It serves one connection.
type clerk struct {
	*rig
	conn   net.Conn
	book   *quotas.Book
	policy *policy.Policy
	log    bytes.Buffer // of the book
	own    map[string]map[string]float64
	denied bool   // whoever asks may not
	mute   string // what a request begins with that is answered for no entity
	seen   []string
	done   chan struct{}
}

// newClerk is a gateway before it that counts everything except what is left out.
func newClerk(t *testing.T, store quotas.Store, without ...string) (c *clerk, client net.Conn) {
	c = &clerk{own: map[string]map[string]float64{}, done: make(chan struct{})}
	spec := policy.Spec{
		RuntimeRules: true, OtherWork: map[string]string{"in": "", "out": "", "topics": "", "dial": "user"},
		Gates: map[string]policy.GateSpec{
			"in": {Quota: &policy.QuotaSpec{
				QuotaLimitSpec: policy.QuotaLimitSpec{Rate: "1000/s"}, By: []string{"user"}, Rules: []policy.QuotaRuleSpec{{Rule: quota.Rule{User: "file"}, QuotaLimitSpec: policy.QuotaLimitSpec{Rate: "5/s"}}},
			}},
			"out": {Quota: &policy.QuotaSpec{}}, "topics": {Quota: &policy.QuotaSpec{Debt: true}}, "dial": {Quota: &policy.QuotaSpec{}},
		},
	}
	var err error
	if c.book, err = quotas.Open(t.Context(), quotas.Options{Store: store, Logger: slog.New(slog.NewTextHandler(&c.log, nil))}); err != nil {
		t.Fatal(err)
	}
	plan := c.book.Plan(spec, func(gate, field string) string { return "weir.yaml:" + gate + "." + field }, nil)
	if c.policy, err = policy.Compile(spec, policy.Options{QuotaRules: plan.Rules}); err != nil {
		t.Fatal(err)
	}
	c.book.SetPolicy(plan, c.policy)
	gate := func(name string) *policy.Gate {
		if slices.Contains(without, name) {
			return nil
		}
		return c.policy.Gate(name)
	}
	q := Quotas{Produce: gate("in"), Fetch: gate("out"), Mutations: gate("topics"), Connections: gate("dial"), Longest: time.Minute, Samples: 11, Window: time.Second}
	c.rig = newRigOf(t, q, c.book)
	client, c.conn = c.pair()
	go serve(t, c.conn, c.done, c.answer)
	t.Cleanup(func() { _ = client.Close(); <-c.done })
	return c, client
}

// brokerKeys are the quotas that brokers know, and the types of entities that they are for.
var brokerKeys = map[string]string{mutationRate: "user", produceRate: "user", fetchRate: "user", "request_percentage": "user", connectionRate: "ip"}

func (c *clerk) answer(req kmsg.Request) kmsg.Response {
	switch req := req.(type) {
	case *kmsg.AlterClientQuotasRequest:
		return c.alter(req)
	case *kmsg.DescribeClientQuotasRequest:
		resp := kmsg.NewPtrDescribeClientQuotasResponse()
		if c.denied {
			resp.ErrorCode = kerr.ClusterAuthorizationFailed.Code
			return resp
		}
		for _, id := range slices.Sorted(maps.Keys(c.own)) {
			e := kmsg.NewDescribeClientQuotasResponseEntry()
			for _, is := range entityIn(id) {
				part := kmsg.NewDescribeClientQuotasResponseEntryEntity()
				part.Type, part.Name = is.Type, is.Name
				e.Entity = append(e.Entity, part)
			}
			for _, key := range slices.Sorted(maps.Keys(c.own[id])) {
				setValue(&e, key, c.own[id][key])
			}
			resp.Entries = append(resp.Entries, e)
		}
		return resp
	}
	return kmsg.NewPtrListGroupsResponse()
}

func (c *clerk) alter(req *kmsg.AlterClientQuotasRequest) kmsg.Response {
	resp := kmsg.NewPtrAlterClientQuotasResponse()
	said := "alter"
	if req.ValidateOnly {
		said = "validate"
	}
	answered := map[string]int{}
	for _, e := range req.Entries {
		id := nameIn(e.Entity)
		said += " " + id
		out := kmsg.NewAlterClientQuotasResponseEntry()
		for _, is := range e.Entity {
			part := kmsg.NewAlterClientQuotasResponseEntryEntity()
			part.Type, part.Name = is.Type, is.Name
			out.Entity = append(out.Entity, part)
		}
		refuse := func(err *kerr.Error, why string) { out.ErrorCode, out.ErrorMessage = err.Code, &why }
		for _, op := range e.Ops {
			said += fmt.Sprintf(" %s=%v", op.Key, op.Value)
			switch {
			case op.Remove:
				said += " removed"
			case brokerKeys[op.Key] == "" || brokerKeys[op.Key] == "ip" != (e.Entity[0].Type == "ip"):
				refuse(kerr.InvalidRequest, "Invalid configuration key "+op.Key)
			case op.Value <= 0:
				refuse(kerr.InvalidRequest, "Quota "+op.Key+" must be greater than 0")
			}
		}
		for _, is := range e.Entity {
			if is.Name != nil && *is.Name == "" {
				refuse(kerr.InvalidRequest, "Empty "+is.Type+" not supported")
			}
		}
		if c.denied {
			refuse(kerr.ClusterAuthorizationFailed, "Cluster authorization failed.")
		}
		if i, twice := answered[id]; twice {
			why := "Ignoring duplicate entity"
			resp.Entries[i].ErrorCode, resp.Entries[i].ErrorMessage = kerr.InvalidRequest.Code, &why
			continue
		}
		answered[id] = len(resp.Entries)
		resp.Entries = append(resp.Entries, out)
		if req.ValidateOnly || out.ErrorCode != 0 {
			continue
		}
		for _, op := range e.Ops {
			if c.own[id] == nil {
				c.own[id] = map[string]float64{}
			}
			if c.own[id][op.Key] = op.Value; op.Remove {
				delete(c.own[id], op.Key)
			}
			if len(c.own[id]) == 0 {
				delete(c.own, id)
			}
		}
	}
	slices.Reverse(resp.Entries) // no order is promised
	if c.mute != "" && strings.HasPrefix(said, c.mute) {
		resp.Entries = nil
	}
	c.seen = append(c.seen, said)
	return resp
}

// entityIn is an entity by its parts, as in "user=alice client-id=app", where a part without a name is the default. A name may hold
// no space.
func entityIn(text string) (entity []kmsg.AlterClientQuotasRequestEntryEntity) {
	for part := range strings.FieldsSeq(text) {
		is := kmsg.NewAlterClientQuotasRequestEntryEntity()
		kind, name, named := strings.Cut(part, "=")
		if is.Type = kind; named {
			is.Name = &name
		}
		entity = append(entity, is)
	}
	return entity
}

// nameIn is the text of an entity, with its parts in one order.
func nameIn(entity []kmsg.AlterClientQuotasRequestEntryEntity) string {
	var words []string
	for _, is := range entity {
		word := is.Type
		if is.Name != nil {
			word += "=" + *is.Name
		}
		words = append(words, word)
	}
	slices.Sort(words)
	return strings.Join(words, " ")
}

// alter sets quotas of entities. Each text is an entity; after it come its quotas, as key=value, or key- to remove one.
func alter(all ...any) *kmsg.AlterClientQuotasRequest {
	req := kmsg.NewPtrAlterClientQuotasRequest()
	req.Version = 1
	for i := 0; i < len(all); i++ {
		switch v := all[i].(type) {
		case string:
			e := kmsg.NewAlterClientQuotasRequestEntry()
			e.Entity = entityIn(v)
			req.Entries = append(req.Entries, e)
		case kmsg.AlterClientQuotasRequestEntryOp:
			e := &req.Entries[len(req.Entries)-1]
			e.Ops = append(e.Ops, v)
		}
	}
	return req
}

func set(key string, value float64) kmsg.AlterClientQuotasRequestEntryOp {
	return kmsg.AlterClientQuotasRequestEntryOp{Key: key, Value: value}
}

func unset(key string) kmsg.AlterClientQuotasRequestEntryOp {
	return kmsg.AlterClientQuotasRequestEntryOp{Key: key, Remove: true}
}

// altered sends a request and returns the error of each entity, in the order of the answer.
func (c *clerk) altered(client net.Conn, req *kmsg.AlterClientQuotasRequest) (errs []string) {
	c.Helper()
	resp := c.ask(client, req).(*kmsg.AlterClientQuotasResponse)
	if len(resp.Entries) != len(req.Entries) {
		c.Fatalf("%d entries for %d", len(resp.Entries), len(req.Entries))
	}
	for i, e := range resp.Entries {
		if got, want := entityOf(e.Entity), entityOf(req.Entries[i].Entity); got != want {
			c.Errorf("entry %d is about %s, want %s", i, got, want)
		}
		text := ""
		if e.ErrorCode != 0 {
			text = kerr.ErrorForCode(e.ErrorCode).(*kerr.Error).Message + ": "
			if e.ErrorMessage != nil {
				text += *e.ErrorMessage
			}
		}
		errs = append(errs, text)
	}
	return errs
}

// filter asks for quotas. Each component is type=name, type for the default, or type? for any name.
func filter(strict bool, components ...string) *kmsg.DescribeClientQuotasRequest {
	req := kmsg.NewPtrDescribeClientQuotasRequest()
	req.Version, req.Strict = 1, strict
	for _, text := range components {
		c := kmsg.NewDescribeClientQuotasRequestComponent()
		kind, name, named := strings.Cut(text, "=")
		c.EntityType, c.MatchType = strings.TrimSuffix(kind, "?"), kmsg.QuotasMatchTypeDefault
		if named {
			c.MatchType, c.Match = kmsg.QuotasMatchTypeExact, &name
		} else if strings.HasSuffix(kind, "?") {
			c.MatchType = kmsg.QuotasMatchTypeAny
		}
		req.Components = append(req.Components, c)
	}
	return req
}

// described returns all quotas, as lines.
func (c *clerk) described(client net.Conn, f *kmsg.DescribeClientQuotasRequest) (lines []string) {
	c.Helper()
	resp := c.ask(client, f).(*kmsg.DescribeClientQuotasResponse)
	if resp.ErrorCode != 0 {
		return []string{kerr.ErrorForCode(resp.ErrorCode).Error()}
	}
	for _, e := range resp.Entries {
		line := entityOf(e.Entity) + ":"
		slices.SortFunc(e.Values, func(a, b kmsg.DescribeClientQuotasResponseEntryValue) int { return strings.Compare(a.Key, b.Key) })
		for _, v := range e.Values {
			line += fmt.Sprintf(" %s=%v", v.Key, v.Value)
		}
		lines = append(lines, line)
	}
	return lines
}

// byFile are the quotas from the file of a clerk.
var byFile = []string{"user: producer_byte_rate=1000", `user="file": producer_byte_rate=5`}

// Each case is a request for one entity, with the answer, the requests to the broker, and the quota that is described afterwards.
func TestAlterOneEntity(t *testing.T) {
	long := strings.Repeat("x", 300)
	for _, c := range []struct {
		name   string
		entity string
		ops    []any
		err    string
		seen   string // a ; between requests
		quotas string // of the entity; empty: none
	}{
		{"a user", "user=a", []any{set(produceRate, 10)}, "", "validate user=a producer_byte_rate=10", `user="a": producer_byte_rate=10`},
		{"a user and a client", "client-id=b user=a", []any{set(mutationRate, 0.5)}, "", "validate client-id=b user=a controller_mutation_rate=0.5", `client-id="b",user="a": controller_mutation_rate=0.5`},
		{"the defaults", "user client-id", []any{set(fetchRate, 7)}, "", "validate client-id user consumer_byte_rate=7", `client-id,user: consumer_byte_rate=7`},
		{"an address", "ip=10.0.0.7", []any{set(connectionRate, 7)}, "", "validate ip=10.0.0.7 connection_creation_rate=7", `ip="10.0.0.7": connection_creation_rate=7`},
		{"each address", "ip", []any{set(connectionRate, 7)}, "", "validate ip connection_creation_rate=7", `ip: connection_creation_rate=7`},
		{"an address of IPv6", "ip=2001:db8::7", []any{set(connectionRate, 7)}, "", "validate ip=2001:db8::7 connection_creation_rate=7", `ip="2001:db8::7": connection_creation_rate=7`},
		{"an address of IPv4 as IPv6", "ip=::ffff:10.0.0.7", []any{set(connectionRate, 7)}, "", "validate ip=::ffff:10.0.0.7 connection_creation_rate=7", `ip="::ffff:10.0.0.7": connection_creation_rate=7`},
		{"a host", "ip=localhost", []any{set(connectionRate, 7)}, `"localhost" is not an address`, "validate ip=localhost connection_creation_rate=7", ""},
		{"a host that the broker has", "ip=localhost", []any{unset(connectionRate)}, "", "validate ip=localhost connection_creation_rate=0 removed; alter ip=localhost connection_creation_rate=0 removed", ""},
		{"several keys, of which one is the broker's", "user=a", []any{set(produceRate, 10), set("request_percentage", 50), set(fetchRate, 20)}, "",
			"validate user=a producer_byte_rate=10 request_percentage=50 consumer_byte_rate=20; alter user=a request_percentage=50",
			`user="a": consumer_byte_rate=20 producer_byte_rate=10 request_percentage=50`},
		{"an unknown key beside one that is known", "user=a", []any{set(produceRate, 10), set("speed", 50)}, "Invalid configuration key speed",
			"validate user=a producer_byte_rate=10 speed=50", ""},
		{"a key of another type", "user=a", []any{set(connectionRate, 10)}, "Invalid configuration key connection_creation_rate", "validate user=a connection_creation_rate=10", ""},
		{"what is not there is removed", "user=a", []any{unset(produceRate), unset(mutationRate)}, "",
			"validate user=a producer_byte_rate=0 removed controller_mutation_rate=0 removed; alter user=a producer_byte_rate=0 removed controller_mutation_rate=0 removed", ""},
		{"one is set, one that is not there removed", "user=a", []any{unset(fetchRate), set(mutationRate, 5)}, "",
			"validate user=a consumer_byte_rate=0 removed controller_mutation_rate=5; alter user=a consumer_byte_rate=0 removed", `user="a": controller_mutation_rate=5`},
		{"the file's is not removed", "user=file", []any{unset(produceRate)}, "the rule for user=file of gate in is that of weir.yaml:in.rules[0]; change it there",
			"validate user=file producer_byte_rate=0 removed", `user="file": producer_byte_rate=5`},
		{"the file's is set over", "user=file", []any{set(produceRate, 9)}, "", "validate user=file producer_byte_rate=9", `user="file": producer_byte_rate=9`},
		{"a key twice", "user=a", []any{set(produceRate, 9), set(produceRate, 8)}, "is about the same rule", "validate user=a producer_byte_rate=9 producer_byte_rate=8", ""},
		{"an empty name", "user=", []any{set(produceRate, 9)}, "Empty user not supported", "validate user= producer_byte_rate=9", ""},
		{"the name *", "user=*", []any{set(produceRate, 9)}, "", "validate user=* producer_byte_rate=9", `user="*": producer_byte_rate=9`},
		{"a name like several parts", "user=a,client=b", []any{set(produceRate, 9)}, "", "validate user=a,client=b producer_byte_rate=9", `user="a,client=b": producer_byte_rate=9`},
		{"a long name", "user=" + long, []any{set(produceRate, 9)}, "", "validate user=" + long + " producer_byte_rate=9", `user="` + long + `": producer_byte_rate=9`},
		{"a name that cannot be printed", "client-id=a\x01\x00b", []any{set(produceRate, 9)}, "", "validate client-id=a\x01\x00b producer_byte_rate=9", `client-id="a\x01\x00b": producer_byte_rate=9`},
		{"a name that is no text", "client-id=a\xffb", []any{set(produceRate, 9)}, "is not text in UTF-8", "validate client-id=a\xffb producer_byte_rate=9", ""},
		{"a type twice", "user=a user=b", []any{set(produceRate, 9)}, "the type user of entities is named twice", "validate user=a user=b producer_byte_rate=9", ""},
		{"0", "user=a", []any{set(produceRate, 0)}, "Quota producer_byte_rate must be greater than 0", "validate user=a producer_byte_rate=0", ""},
		{"-1", "user=a", []any{set(produceRate, -1)}, "Quota producer_byte_rate must be greater than 0", "validate user=a producer_byte_rate=-1", ""},
		{"NaN", "user=a", []any{set(mutationRate, math.NaN())}, "controller_mutation_rate=NaN is not a rate", "validate user=a controller_mutation_rate=NaN", ""},
		{"infinite", "user=a", []any{set(mutationRate, math.Inf(1))}, "controller_mutation_rate=+Inf is not a rate", "validate user=a controller_mutation_rate=+Inf", ""},
		{"huge", "user=a", []any{set(mutationRate, 1e300)}, "", "validate user=a controller_mutation_rate=1e+300", `user="a": controller_mutation_rate=1e+300`},
		{"no limit", "user=a", []any{set(produceRate, math.MaxInt64)}, "", "validate user=a producer_byte_rate=9.223372036854776e+18", `user="a": producer_byte_rate=9.223372036854776e+18`},
		{"just countable", "user=a", []any{set(produceRate, quota.MaxTokens)}, "", "validate user=a producer_byte_rate=1e+15", `user="a": producer_byte_rate=1e+15`},
		{"tiny", "user=a", []any{set(mutationRate, 1e-300)}, "", "validate user=a controller_mutation_rate=1e-300", `user="a": controller_mutation_rate=1e-300`},
		{"a fraction", "user=a", []any{set(mutationRate, 1.0/3)}, "", "validate user=a controller_mutation_rate=0.3333333333333333", `user="a": controller_mutation_rate=0.3333333333333333`},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, client := newClerk(t, new(quotas.Memory))
			errs := b.altered(client, alter(append([]any{c.entity}, c.ops...)...))
			if (errs[0] == "") != (c.err == "") || !strings.Contains(errs[0], c.err) {
				t.Errorf("%q, want %q", errs[0], c.err)
			}
			if errs[0] != "" && !strings.HasPrefix(errs[0], "INVALID_REQUEST: ") {
				t.Errorf("%q is another error", errs[0])
			}
			if seen := strings.Join(b.seen, "; "); seen != c.seen {
				t.Errorf("the broker is asked %s\nwant %s", seen, c.seen)
			}
			var f []string
			for _, is := range entityIn(c.entity) {
				if is.Name == nil {
					f = append(f, is.Type)
				} else {
					f = append(f, is.Type+"="+*is.Name)
				}
			}
			if got := strings.Join(b.described(client, filter(true, f...)), "; "); got != c.quotas {
				t.Errorf("described as %q, want %q", got, c.quotas)
			}
		})
	}
}

// The entities of a request are independent, and the answer is in the order of the request.
func TestAlterSeveralEntities(t *testing.T) {
	b, client := newClerk(t, new(quotas.Memory))
	b.own["user=a"] = map[string]float64{produceRate: 3}
	all := []any{
		"user=a", unset(produceRate), set("request_percentage", 9),
		"user=b", set(produceRate, 1), set("speed", 1),
		"user=c", set(produceRate, 2), set(mutationRate, math.NaN()),
		"client-id=d", set(fetchRate, 3), set(mutationRate, 4),
		"user=e", set("request_percentage", 5),
		"user=f", set(produceRate, 6), "user=f", set(produceRate, 7),
	}
	want := []string{"", "INVALID_REQUEST: Invalid configuration key speed", "INVALID_REQUEST: controller_mutation_rate=NaN is not a rate; set one above 0, or delete the quota", "", "",
		"INVALID_REQUEST: Ignoring duplicate entity", "INVALID_REQUEST: Ignoring duplicate entity"}
	dry := alter(all...)
	dry.ValidateOnly = true
	if got := b.altered(client, dry); !slices.Equal(got, want) {
		t.Errorf("only validated: %q, want %q", got, want)
	}
	if got := b.described(client, filter(false)); !slices.Equal(got, append([]string{byFile[0], `user="a": producer_byte_rate=3`}, byFile[1:]...)) || len(b.seen) != 1 {
		t.Errorf("only validated, and there are %q; the broker is asked %q", got, b.seen)
	}
	if got := b.altered(client, alter(all...)); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	described := []string{`client-id="d": consumer_byte_rate=3 controller_mutation_rate=4`, byFile[0], `user="a": request_percentage=9`, `user="e": request_percentage=5`, byFile[1]}
	if got := b.described(client, filter(false)); !slices.Equal(got, described) {
		t.Errorf("described as %q, want %q", got, described)
	}
	if got := b.seen[len(b.seen)-1]; got != "alter user=a producer_byte_rate=0 removed request_percentage=9 user=e request_percentage=5" {
		t.Errorf("the broker carries out %s", got)
	}
	for _, line := range []string{
		`msg="quota changed" by="User:ANONYMOUS of kafka.orders" gate="out; topics" rule="client=d"`, `after="3/s burst 30; 4/s burst 44"`,
		`msg="quota change refused" by="User:ANONYMOUS of kafka.orders" result=refused error="the broker says of user=\"b\": Invalid configuration key speed (and it refuses 2 more)"`,
	} {
		if !strings.Contains(b.log.String(), line) {
			t.Errorf("no %s in\n%s", line, b.log.String())
		}
	}
}

// A quota holds at once, with the burst of a broker.
func TestQuotasHold(t *testing.T) {
	b, client := newClerk(t, new(quotas.Memory))
	long := strings.Repeat("x", 300)
	for _, err := range b.altered(client, alter(
		"user=*", set(produceRate, 10), "user="+long, set(produceRate, 20), "user=a,client=b", set(produceRate, 30), "client-id=a\x01b", set(produceRate, 40),
		"user=free", set(produceRate, math.MaxInt64), "user=m", set(mutationRate, 0.5), "user=slow", set(mutationRate, 1e-300),
		"ip=10.0.0.7", set(connectionRate, 1), "ip=2001:db8::7", set(connectionRate, 2),
	)) {
		if err != "" {
			t.Error(err)
		}
	}
	for _, c := range []struct {
		gate  string
		w     weir.Work
		rule  string
		burst float64
	}{
		{"in", weir.Work{User: "*"}, "user='*'", 100}, {"in", weir.Work{User: "somebody"}, "user=*", 1000}, {"in", weir.Work{User: long}, "user=" + long, 200},
		{"in", weir.Work{User: "a,client=b"}, "user='a,client=b'", 300}, {"in", weir.Work{User: "a", Client: "b"}, "user=*", 1000},
		{"topics", weir.Work{User: "m"}, "user=m", 5.5}, {"topics", weir.Work{User: "slow"}, "user=slow", 11e-9},
		{"dial", weir.Work{User: policy.PeerName("10.0.0.7")}, "address=10.0.0.7/32", 10}, {"dial", weir.Work{User: policy.PeerName("2001:db8::99")}, "address=2001:db8::/64", 20},
	} {
		got := b.policy.Gate(c.gate).Quota().Explain(c.w)
		if len(got) == 0 || got[0].Name != c.rule || math.Abs(got[0].Windows[0].Burst-c.burst) > c.burst/1e9 {
			t.Errorf("%s %.40q: %+v, want %s with a burst of %v", c.gate, c.w.User, got, c.rule, c.burst)
		}
	}
	if got := b.policy.Gate("in").Quota().Explain(weir.Work{User: "free"}); !got[0].Exempt {
		t.Errorf("no limit: %+v", got)
	}
}

// Rules are described through filters as a broker's quotas are (KIP-546).
func TestDescribeFilters(t *testing.T) {
	b, client := newClerk(t, new(quotas.Memory))
	for _, err := range b.altered(client, alter(
		"user=a", set(mutationRate, 1), "user=a client-id=x", set(mutationRate, 2), "user=a client-id", set(mutationRate, 3), "client-id=x", set(mutationRate, 4),
		"client-id", set(mutationRate, 5), "user client-id=x", set(mutationRate, 6), "user client-id", set(mutationRate, 7), "user", set(mutationRate, 8),
		"ip=10.0.0.7", set(connectionRate, 9), "ip", set(connectionRate, 10),
	)) {
		if err != "" {
			t.Error(err)
		}
	}
	for _, c := range []struct {
		strict     bool
		components []string
		want       []int // the values above
	}{
		{false, nil, []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}},
		{true, nil, nil},
		{true, []string{"user=a"}, []int{1}},
		{false, []string{"user=a"}, []int{1, 2, 3}},
		{true, []string{"user=nobody"}, nil},
		{true, []string{"user"}, []int{8}},
		{false, []string{"user"}, []int{6, 7, 8}},
		{true, []string{"user?"}, []int{1, 8}},
		{false, []string{"user?"}, []int{1, 2, 3, 6, 7, 8}},
		{true, []string{"client-id=x"}, []int{4}},
		{false, []string{"client-id=x"}, []int{2, 4, 6}},
		{true, []string{"client-id?"}, []int{4, 5}},
		{true, []string{"user=a", "client-id"}, []int{3}},
		{true, []string{"client-id?", "user?"}, []int{2, 3, 6, 7}},
		{false, []string{"client-id?", "user?"}, []int{2, 3, 6, 7}},
		{true, []string{"ip?"}, []int{9, 10}},
		{true, []string{"ip"}, []int{10}},
		{true, []string{"ip=10.0.0.7"}, []int{9}},
		{true, []string{"ip=::ffff:10.0.0.7"}, []int{9}},
		{true, []string{"ip=10.0.0.8"}, nil},
		{true, []string{"ip=localhost"}, nil},
	} {
		resp := b.ask(client, filter(c.strict, c.components...)).(*kmsg.DescribeClientQuotasResponse)
		var got []int
		for _, e := range resp.Entries {
			for _, v := range e.Values {
				if v.Key == mutationRate || v.Key == connectionRate {
					got = append(got, int(v.Value))
				}
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, c.want) {
			t.Errorf("%v, strict %v: %v, want %v", c.components, c.strict, got, c.want)
		}
	}
}

// The gateway's quotas replace the broker's of the same key, and stand beside others.
func TestDescribeMerges(t *testing.T) {
	b, client := newClerk(t, new(quotas.Memory))
	b.own["user=a"] = map[string]float64{produceRate: 3, "request_percentage": 50}
	b.own["user=b"] = map[string]float64{fetchRate: 4}
	if errs := b.altered(client, alter("user=a", set(produceRate, 5), set(fetchRate, 6))); errs[0] != "" {
		t.Error(errs)
	}
	want := []string{byFile[0], `user="a": consumer_byte_rate=6 producer_byte_rate=5 request_percentage=50`, `user="b": consumer_byte_rate=4`, byFile[1]}
	if got := b.described(client, filter(false)); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := b.altered(client, alter("user=a", unset(produceRate))); got[0] != "" || len(b.own["user=a"]) != 1 {
		t.Errorf("%q, the broker has %v still", got, b.own["user=a"])
	}
}

// Rules without terms in Kafka are not described: with several limits, blocked, for a network, or for something else.
func TestNotDescribed(t *testing.T) {
	b, client := newClerk(t, new(quotas.Memory))
	rule := func(r quota.Rule, limits ...string) *policy.QuotaRuleSpec {
		return &policy.QuotaRuleSpec{Rule: r, QuotaLimitSpec: policy.QuotaLimitSpec{Limits: limits}}
	}
	_, err := b.book.Change(t.Context(), quotas.Change{Ops: []quotas.Op{
		{Gate: "out", Set: rule(quota.Rule{User: "two"}, "1/s", "10/h")}, {Gate: "out", Set: rule(quota.Rule{User: "blocked", Blocked: true})},
		{Gate: "out", Set: rule(quota.Rule{User: "a", Priority: "high"}, "1/s")}, {Gate: "out", Set: rule(quota.Rule{}, "1/s")},
		{Gate: "out", Set: rule(quota.Rule{User: "daily"}, "5 a day")}, {Gate: "out", Set: rule(quota.Rule{User: "shown"}, "90/h")}, {Gate: "out", Set: rule(quota.Rule{User: "free", Exempt: true})},
		{Gate: "dial", Set: rule(quota.Rule{Address: "10.0.0.0/8"}, "1/s")},
	}})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{byFile[0], byFile[1], `user="free": consumer_byte_rate=9.223372036854776e+18`, `user="shown": consumer_byte_rate=0.025`}
	if got := b.described(client, filter(false)); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// A client without the right gets the broker's error, and nothing is kept or shown. The refusal is counted, and not logged.
func TestQuotasDenied(t *testing.T) {
	b, client := newClerk(t, new(quotas.Memory))
	b.denied = true
	for range 3 {
		if got := b.altered(client, alter("user=a", set(produceRate, 10), "user=b", unset(produceRate))); got[0] != "CLUSTER_AUTHORIZATION_FAILED: Cluster authorization failed." || got[1] != got[0] {
			t.Errorf("%q", got)
		}
	}
	if got := b.described(client, filter(false)); len(got) != 1 || !strings.Contains(got[0], "CLUSTER_AUTHORIZATION_FAILED") {
		t.Errorf("described: %q", got)
	}
	if n := b.book.Stats().Changes[quotas.By{Via: quotas.Nobody, Result: quotas.Denied}]; n != 3 || b.log.Len() > 0 || len(b.book.List("").Rules) != len(byFile) {
		t.Errorf("counted %d times, and logged %s", n, b.log.String())
	}
}

// broken is a store that cannot write.
type broken struct{ quotas.Memory }

func (*broken) Write(context.Context, string, []byte) error {
	return fmt.Errorf("%w: disk full", quotas.ErrUnchanged)
}

// If a change cannot be kept here, the broker does not carry it out either.
func TestQuotasCannotBeKept(t *testing.T) {
	for want, store := range map[string]quotas.Store{
		"UNKNOWN_SERVER_ERROR: nothing is changed: disk full": &broken{}, "INVALID_REQUEST: " + quotas.ErrNowhere.Error(): nil,
	} {
		b, client := newClerk(t, store)
		b.own["user=c"] = map[string]float64{produceRate: 1}
		got := b.altered(client, alter("user=a", set(produceRate, 10), set("request_percentage", 5), "user=b", set("request_percentage", 5), "user=c", unset(produceRate)))
		if got[0] != want || got[1] != "" || got[2] != "" || len(b.own) != 1 || b.own["user=b"] == nil {
			t.Errorf("%q, and the broker has %v; want %s for the first only", got, b.own, want)
		}
	}
}

// Quotas that no gate counts are the broker's alone, and the request is passed on as it is.
func TestQuotasOfTheBroker(t *testing.T) {
	b, client := newClerk(t, new(quotas.Memory), "out", "dial")
	req := alter("user=a", set(fetchRate, 10), "ip=localhost", set(connectionRate, 5))
	b.write(client, framed("app", req.GetVersion(), req))
	if got := b.frame(client); len(got) == 0 {
		t.Fatal("no answer")
	}
	if len(b.seen) != 1 || b.own["user=a"][fetchRate] != 10 || b.own["ip=localhost"][connectionRate] != 5 {
		t.Errorf("the broker is asked %q, and has %v", b.seen, b.own)
	}
	if got := b.altered(client, alter("user=a", set(fetchRate, 11), set(produceRate, 12))); got[0] != "" || b.own["user=a"][fetchRate] != 11 || len(b.own["user=a"]) != 1 {
		t.Errorf("%q, and the broker has %v", got, b.own)
	}
	none, client := newClerk(t, new(quotas.Memory), "in", "out", "topics", "dial")
	none.own["user=a"] = map[string]float64{fetchRate: 10}
	if got := none.described(client, filter(false)); !slices.Equal(got, []string{`user="a": consumer_byte_rate=10`}) {
		t.Errorf("without gates: %q", got)
	}
}

// A request that cannot be read ends the connection, and nothing is asked.
func TestBadQuotaRequests(t *testing.T) {
	for name, req := range map[string]kmsg.Request{"alter": alter("user=a", set(produceRate, 1)), "describe": filter(false, "user=a")} {
		b, client := newClerk(t, new(quotas.Memory))
		frame := framed("app", 1, req)
		frame = frame[:len(frame)-5]
		frame[3] -= 5
		b.write(client, frame)
		if n, err := client.Read(make([]byte, 1)); err == nil {
			t.Errorf("%s: answered with %d bytes", name, n)
		}
		if len(b.seen) != 0 {
			t.Errorf("%s: the broker is asked %q", name, b.seen)
		}
	}
}

// For any name and any quota, an entity is kept, read again after a restart, and described as it was set.
func FuzzKeptQuota(f *testing.F) {
	f.Add("alice", "app", false, false, 10.0)
	f.Add("*", "\x00", true, false, 1e300)
	f.Add("a,client=b", "'", false, true, 1e-300)
	f.Add("\u00e4\U0001f600", "\\", false, false, 0.1)
	f.Fuzz(func(t *testing.T, user, client string, noUser, noClient bool, value float64) {
		if !utf8.ValidString(user) || !utf8.ValidString(client) || noUser && noClient {
			return
		}
		var entity []kmsg.AlterClientQuotasRequestEntryEntity
		if !noUser {
			entity = append(entity, kmsg.AlterClientQuotasRequestEntryEntity{Type: ofUser, Name: &user})
		}
		if !noClient {
			entity = append(entity, kmsg.AlterClientQuotasRequestEntryEntity{Type: ofClient, Name: &client})
		}
		whose, err := whoseRule(entity)
		if err != nil {
			t.Fatal(err)
		}
		q := Quotas{Samples: 11, Window: time.Second}
		rule, asked, err := q.ruleOf(whose, mutationRate, value)
		if bad := !(value > 0) || math.IsInf(value, 0); bad != (err != nil) {
			t.Fatalf("%v: %v", value, err)
		} else if bad {
			return
		}
		spec := policy.Spec{RuntimeRules: true, OtherWork: map[string]string{"topics": ""}, Gates: map[string]policy.GateSpec{"topics": {Quota: &policy.QuotaSpec{Debt: true}}}}
		store := new(quotas.Memory)
		for i := range 2 { // the second reads what the first has kept
			book, err := quotas.Open(t.Context(), quotas.Options{Store: store, Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			plan := book.Plan(spec, func(string, string) string { return "" }, nil)
			p, err := policy.Compile(spec, policy.Options{QuotaRules: plan.Rules})
			if err != nil {
				t.Fatal(err)
			}
			book.SetPolicy(plan, p)
			if i == 0 {
				if _, err := book.Change(t.Context(), quotas.Change{Ops: []quotas.Op{{Gate: "topics", Set: rule, Asked: asked}}}); err != nil {
					t.Fatal(err)
				}
			}
			views := book.List("topics").Rules
			if len(views) != 1 {
				t.Fatalf("%+v", views)
			}
			got, was, ok := described(&views[0])
			if !ok || was != value || entityOf(got) != entityOf(entity) {
				t.Errorf("%v of %s is described as %v of %s, %v", value, entityOf(entity), was, entityOf(got), ok)
			}
			p.Close()
		}
	})
}

// For any request for quotas, and any answer of the broker, each entry gets one result. The broker never gets an entry that it or the
// gateway has refused, or that is kept here.
func FuzzQuotaRequest(f *testing.F) {
	p, err := policy.Compile(policy.Spec{RuntimeRules: true, Gates: map[string]policy.GateSpec{"in": {Quota: &policy.QuotaSpec{}}, "dial": {Quota: &policy.QuotaSpec{}}}}, policy.Options{})
	if err != nil {
		f.Fatal(err)
	}
	q := Quotas{Produce: p.Gate("in"), Connections: p.Gate("dial"), Samples: 11, Window: time.Second}
	for version := range int16(2) {
		req := alter("user=a client-id", set(produceRate, 5), unset("request_percentage"), "ip=10.0.0.7", set(connectionRate, 1), "user=b", set(fetchRate, 1))
		req.Version = version
		resp := kmsg.NewPtrAlterClientQuotasResponse()
		e := kmsg.NewAlterClientQuotasResponseEntry()
		e.ErrorCode, e.Entity = 42, append(e.Entity, kmsg.AlterClientQuotasResponseEntryEntity(req.Entries[0].Entity[0]))
		resp.Entries = append(resp.Entries, e)
		f.Add(sent("client", version, req), resp.AppendTo(nil), sent("client", version, filter(true, "user=a", "ip?")))
	}
	f.Fuzz(func(t *testing.T, asked, answered, described []byte) {
		for version := range int16(2) {
			a := &alteration{AlterClientQuotasRequest: new(kmsg.AlterClientQuotasRequest), gates: q.gates()}
			a.Version = version
			resp := new(kmsg.AlterClientQuotasResponse) // without tags: brokers are believed about their number
			if readBody(asked, a.AlterClientQuotasRequest) == nil && resp.ReadFrom(answered) == nil {
				a.results = make([]altered, len(a.Entries))
				a.judged(a.AlterClientQuotasRequest, resp)
				for i := range a.Entries {
					if _, err := a.changes(&a.Entries[i], &q); err != nil {
						a.fail(i, err)
					}
				}
				if rest := a.rest(); rest != nil {
					if len(rest.Entries) == 0 || len(rest.Entries) > len(a.Entries) || a.ValidateOnly {
						t.Fatalf("%d of %d entries go on, validate only: %v", len(rest.Entries), len(a.Entries), a.ValidateOnly)
					}
					for _, e := range rest.Entries {
						for _, op := range e.Ops {
							if a.gates[op.Key] != nil && !op.Remove {
								t.Fatalf("%s goes on", op.Key)
							}
						}
					}
				}
				if n := len(a.answer().Entries); n != len(a.Entries) {
					t.Fatalf("%d results for %d entries", n, len(a.Entries))
				}
			}
			by := new(kmsg.DescribeClientQuotasRequest)
			by.Version = version
			if readBody(described, by) == nil {
				for _, id := range []string{"user=a", "user client-id=b", "ip=10.0.0.7"} {
					var entity []kmsg.DescribeClientQuotasResponseEntryEntity
					for _, is := range entityIn(id) {
						entity = append(entity, kmsg.DescribeClientQuotasResponseEntryEntity(is))
					}
					if matches(by, entity) && by.Strict && len(by.Components) != len(entity) {
						t.Fatalf("%s matches %+v", id, by)
					}
				}
			}
		}
	})
}

// The burst of a rule is that of a broker, within the bounds of a rule.
func TestRuleOf(t *testing.T) {
	for _, c := range []struct {
		key     string
		value   float64
		samples int
		window  time.Duration
		rate    string
		burst   float64
		asked   float64
	}{
		{mutationRate, 10, 11, time.Second, "10/s", 110, 0},
		{produceRate, 10, 11, time.Second, "10/s", 100, 0},
		{connectionRate, 10, 11, time.Second, "10/s", 100, 0},
		{fetchRate, 1, 1, time.Millisecond, "1/s", 1, 0},
		{mutationRate, 0.015, 1, 2000 * time.Second, "0.015/s", 30, 0},
		{mutationRate, 1e-12, 11, time.Second, "0.000000001/s", 11e-9, 1e-12},
		{produceRate, 1e15, 11, time.Second, "1000000000000000/s", 1e15, 0},
		{produceRate, 1e16, 11, time.Second, "", 0, 1e16},
	} {
		q := Quotas{Samples: c.samples, Window: c.window}
		got, asked, err := q.ruleOf(quota.Rule{User: "a"}, c.key, c.value)
		if err != nil || got.Rate != c.rate || math.Abs(got.Burst-c.burst) > c.burst/1e9 || asked != c.asked || got.Exempt != (c.rate == "") || got.User != "a" {
			t.Errorf("%s=%v: %+v, %v, %v; want %s burst %v, asked %v", c.key, c.value, got, asked, err, c.rate, c.burst, c.asked)
		}
		if err := got.Check(); err != nil {
			t.Errorf("%s=%v: %v", c.key, c.value, err)
		}
	}
	if _, _, err := new(Quotas).ruleOf(quota.Rule{}, produceRate, 0); err == nil || errors.Is(err, quotas.ErrNowhere) {
		t.Errorf("0: %v", err)
	}
}

// Two addresses of one /64 are one rule here. The second is not taken over, and its error says why.
func TestOneQuotaOfAPrefix(t *testing.T) {
	q := Quotas{Samples: 11, Window: time.Second}
	var all []BrokerQuota
	for _, address := range []string{"2001:db8::1", "2001:db8::2", "2001:db8:0:1::1", "10.0.0.1", "10.0.0.2"} {
		is := kmsg.NewDescribeClientQuotasResponseEntryEntity()
		is.Type, is.Name = "ip", &address
		b := BrokerQuota{Key: connectionRate, Value: 5, entity: []kmsg.DescribeClientQuotasResponseEntryEntity{is}}
		b.Op, b.Err = q.imported(&b, "dial", 1)
		all = append(all, b)
	}
	onlyFirst(all)
	for i := range all {
		b := &all[i]
		if refused := i == 1; (b.Err != nil) != refused || (b.Op.Set == nil) != refused {
			t.Errorf("%s: %+v, %v", b.Entity(), b.Op, b.Err)
		}
	}
	if err := all[1].Err; err == nil || !strings.Contains(err.Error(), `ip "2001:db8::2" and ip "2001:db8::1" as one`) {
		t.Error(err)
	}
}

// An entity that is missing in the broker's answer is not allowed. If only the gateway's part is carried out, the client is told so.
func TestBrokerSaysNothingOfAnEntity(t *testing.T) {
	const nothing = "the broker's answer does not contain this entity"
	const validated, altered = "validate user=a producer_byte_rate=10 request_percentage=50", "alter user=a request_percentage=50"
	for silent, want := range map[string]struct {
		err, seen string
		kept      bool
	}{
		"validate": {nothing, validated, false},
		"alter":    {"the quotas that the gateway counts are changed, and the others are not: " + nothing, validated + "; " + altered, true},
	} {
		c, client := newClerk(t, new(quotas.Memory))
		c.mute = silent
		if errs := c.altered(client, alter("user=a", set(produceRate, 10), set("request_percentage", 50))); errs[0] != "UNKNOWN_SERVER_ERROR: "+want.err {
			t.Errorf("%s: %q", silent, errs)
		}
		if got := strings.Join(c.seen, "; "); got != want.seen {
			t.Errorf("%s: the broker sees %s", silent, got)
		}
		if got := c.book.List("in").Rules; (len(got) > len(byFile)) != want.kept {
			t.Errorf("%s: %+v", silent, got)
		}
	}
}
