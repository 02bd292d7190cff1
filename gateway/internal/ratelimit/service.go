// Package ratelimit is Envoy's rate limit service, envoy.service.ratelimit.v3, over quotas. It reads
// the files of envoyproxy/ratelimit: each domain is the quota of a gate, with rules by descriptor.
package ratelimit

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/weirgrpc"
)

// Name is the service's name in gRPC.
const Name = "envoy.service.ratelimit.v3.RateLimitService"

// Found is what the configuration in force says of a domain.
type Found struct {
	// Gate has the quota. nil means that nobody knows the domain, and nothing is limited.
	Gate *policy.Gate
	// Domain is that of the files, nil for a gate that is only in weir's own file.
	Domain *Domain
	// Debt charges hits whatever there is, into debt if need be.
	Debt bool
	// Headers and Metadata are what Envoy gets beside the answer.
	Headers, Metadata bool
}

// Service answers what Envoy asks. It is safe for concurrent use.
type Service struct {
	find   func(domain string) Found
	counts counts
}

// New returns a service. find is asked for the domain of each request.
func New(find func(domain string) Found) *Service {
	return &Service{find: find, counts: counts{knows: func(domain string) bool { return find(domain).Gate != nil }}}
}

// Register has a server of gRPC serve it. The server's codec lets messages read and write
// themselves, as that of package rpc does.
func (s *Service) Register(r grpc.ServiceRegistrar) {
	const method = "ShouldRateLimit"
	info := &grpc.UnaryServerInfo{Server: s, FullMethod: "/" + Name + "/" + method}
	handle := func(ctx context.Context, in any) (any, error) { return s.answer(ctx, in.(*request)) }
	r.RegisterService(&grpc.ServiceDesc{
		ServiceName: Name,
		HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: method, Handler: func(_ any, ctx context.Context, decode func(any) error, around grpc.UnaryServerInterceptor) (any, error) {
			in := new(request)
			if err := decode(in); err != nil {
				return nil, err
			}
			if around == nil {
				return handle(ctx, in)
			}
			return around(ctx, in, info, handle)
		}}},
	}, s)
}

// answer answers a request. The error is a status of gRPC: for a request that makes no sense, or
// where nobody can decide. Envoy's failure_mode_deny says what it makes of that.
func (s *Service) answer(ctx context.Context, r *request) (*response, error) {
	if problem := r.problem(); problem != "" {
		return nil, grpcstatus.Error(codes.InvalidArgument, problem)
	}
	d := decision{request: r, Found: s.find(r.domain), statuses: make([]status, len(r.descriptors))}
	if rej := d.decide(ctx); rej != nil {
		s.counts.add(r.domain, "", false, Failed)
		return nil, weirgrpc.Status(rej).Err()
	}
	d.count(&s.counts)
	return d.response(), nil
}

// Crowded counts a call that was turned away before it was read, because too many are open. What
// it asked about is not known.
func (s *Service) Crowded() { s.counts.add("", "crowded", false, Failed) }

// problem says what is wrong with a request; empty if nothing is.
func (r *request) problem() string {
	switch {
	case r.fault != nil:
		return r.fault.Error()
	case r.domain == "":
		return "the domain is empty"
	case len(r.descriptors) == 0:
		return "there is no descriptor"
	}
	for i := range r.descriptors {
		d := &r.descriptors[i]
		if len(d.entries) == 0 || slices.ContainsFunc(d.entries, func(e [2]string) bool { return e[0] == "" }) {
			return fmt.Sprintf("descriptor %d is empty, or has an empty key", i)
		}
		if d.limit == nil {
			continue
		}
		if unitOf(d.limit.unit) == nil {
			return fmt.Sprintf("descriptor %d brings a limit without a unit of time", i)
		}
		if w := d.limit.window(); d.limit.requests > 0 && w.Check() != nil {
			return fmt.Sprintf("descriptor %d brings a limit of %d in %d units of time; it must be at least one in 31 years", i, d.limit.requests, d.limit.multiplier)
		}
	}
	return ""
}

// unitOf returns the unit with a number of the protocol, nil if there is none.
func unitOf(number uint64) *unit {
	i := slices.IndexFunc(units, func(u unit) bool { return u.number == number })
	if i < 0 {
		return nil
	}
	return &units[i]
}

// decision is a request on its way to the answer.
type decision struct {
	*request
	Found
	matched  []matched
	charges  []quota.Charge
	statuses []status
	over     bool
}

// matched is what is known of a descriptor before it is charged.
type matched struct {
	work   weir.Work
	rule   string
	limit  *limit // nil for a rule that no file has
	charge int    // of charges; -1: none
}

var noLimit = &limit{}

// decide fills in the statuses. It returns the refusal of a gate that cannot decide.
func (d *decision) decide(ctx context.Context) *weir.Rejection {
	for i := range d.statuses {
		d.statuses[i].code = codeOK
	}
	if d.Gate == nil || d.Gate.Quota() == nil || d.Gate.Mode() == policy.Off {
		return nil
	}
	q := d.Gate.Quota()
	d.match(q)
	d.replace()
	d.charges = make([]quota.Charge, 0, len(d.matched))
	for i := range d.matched {
		m := &d.matched[i]
		if m.charge < 0 {
			continue
		}
		m.charge = len(d.charges)
		d.charges = append(d.charges, quota.Charge{
			Work: m.work, Tokens: d.hitsOf(i), Windows: windowsOf(d.descriptors[i].limit), Debt: d.Debt,
			Alone: m.limit.shadow || m.limit.quota,
		})
	}
	if len(d.charges) == 0 {
		return nil
	}
	d.over = !d.Gate.ChargeAll(ctx, d.charges)
	for i := range d.matched {
		m := &d.matched[i]
		if m.charge < 0 {
			continue
		}
		c := &d.charges[m.charge]
		if r := c.Refused; r != nil {
			switch r.Reason {
			case weir.ReasonQuota, weir.ReasonBlocked, weir.ReasonTooLarge:
			case weir.ReasonStore:
				if !c.Alone { // which refuses nothing, whatever the reason
					return r
				}
			default:
				return r
			}
		}
		d.statuses[i] = m.status(c)
	}
	return nil
}

// match finds the rule of each descriptor.
func (d *decision) match(q *quota.Quota) {
	d.matched = make([]matched, len(d.descriptors))
	var buf [256]byte
	for i := range d.descriptors {
		a, m := &d.descriptors[i], &d.matched[i]
		text := buf[:0]
		for _, e := range a.entries {
			text = quota.AppendPair(text, e[0], e[1])
		}
		m.work.Descriptor, m.limit = string(text), noLimit
		if a.limit != nil {
			continue
		}
		var pattern quota.Pattern
		m.rule, pattern = q.RuleFor(m.work)
		if l := d.limitOf(pattern); l != nil {
			m.limit = l
		}
		if m.rule == "" {
			m.charge = -1
		}
	}
}

// limitOf returns what the files say of a rule, nil if nothing. They say it also of the rule that
// replaces theirs at run time, however that is spelled.
func (d *decision) limitOf(rule quota.Pattern) *limit {
	if d.Domain == nil {
		return nil
	}
	return d.Domain.limits[rule]
}

// replace leaves out the limits that others in the request replace.
func (d *decision) replace() {
	if d.Domain == nil || !d.Domain.replaces {
		return
	}
	for i := range d.matched {
		for j := range d.matched {
			if name := d.matched[i].limit.name; name != "" && slices.Contains(d.matched[j].limit.replaces, name) {
				d.matched[i].charge, d.matched[i].rule = -1, ""
			}
		}
	}
}

// hitsOf returns what a descriptor is charged: its own hits, or else those of the request, or
// else 1.
func (d *decision) hitsOf(i int) int64 {
	a, hits := &d.descriptors[i], max(d.hits, 1)
	if a.counted {
		hits = a.hits
	}
	n := int64(min(hits, uint64(quota.MaxTokens)))
	if a.negative {
		return -n
	}
	return n
}

// windowsOf returns the window of a limit that comes with a request, nil if none does. A limit of 0
// is a window that lets nothing through.
func windowsOf(o *override) []quota.Window {
	if o == nil {
		return nil
	}
	if o.requests == 0 {
		return []quota.Window{{}}
	}
	return []quota.Window{o.window()}
}

// window returns the window of a limit with a unit. Its time is no Duration: that ends at 292 years.
func (o *override) window() quota.Window {
	n := float64(o.requests)
	return quota.Window{Rate: n / (float64(unitOf(o.unit).seconds) * float64(max(o.multiplier, 1))), Burst: n}
}

// status returns the status of a descriptor that was charged.
func (m *matched) status(c *quota.Charge) status {
	s, a := status{code: codeOK}, &c.Answer
	if m.unlimited(c) {
		s.remaining = math.MaxUint32
	}
	if a.Window < len(a.Windows) && !a.Free { // free with windows: a store is lost, and fails open
		s.limit = currentOf(&a.Windows[a.Window], m.limit.name)
		s.remaining = uint64(min(max(math.Floor(a.Remaining+1e-6), 0), math.MaxUint32))
		s.reset = a.UntilFull(time.Now())
	} else if c.Refused != nil && m.limit.unit != 0 {
		s.limit = &current{0, m.limit.unit, m.limit.name}
	}
	if r := c.Refused; r != nil {
		s.reset = r.RetryAfter
		if !c.Alone {
			s.code = codeOver
		}
	}
	if s.reset == quota.Never {
		s.reset = 0
	}
	// Envoy tells clients the whole seconds of it: one that was refused would read 0 in its last second.
	if part := s.reset % time.Second; part > 0 {
		s.reset += min(time.Second-part, quota.Never-s.reset)
	}
	return s
}

// unlimited reports whether a limit is unlimited in the file, and by the rule in force.
func (m *matched) unlimited(c *quota.Charge) bool { return m.limit.unlimited && c.Answer.Free }

// currentOf says a window in the terms of the protocol: so many in a unit. That is exact for
// windows whose burst is what comes back in a unit; of others it is the rate.
func currentOf(w *quota.Window, name string) *current {
	c := &current{name: name}
	if p := w.Calendar.Period; p != 0 {
		c.unit = map[quota.Period]uint64{quota.Hour: 3, quota.Day: 4, quota.Week: 7, quota.Month: 5}[p]
		c.requests = whole(w.Burst)
		return c
	}
	for _, u := range units {
		n := w.Rate * float64(u.seconds)
		if c.unit == 0 && (n >= 1 || u == units[len(units)-1]) {
			c.requests, c.unit = whole(n), u.number // unless a unit fits better
		}
		if math.Abs(n-w.Burst) <= 1e-9*w.Burst {
			c.requests, c.unit = whole(n), u.number
			break
		}
	}
	return c
}

func whole(n float64) uint64 { return uint64(min(max(math.Round(n), 0), math.MaxUint32)) }

// response makes the answer.
func (d *decision) response() *response {
	r := &response{code: codeOK, statuses: d.statuses}
	if d.over {
		r.code = codeOver
	}
	if d.Headers {
		if s := d.binding(); s != nil {
			r.headers = [][2]string{
				{"RateLimit-Limit", strconv.FormatUint(s.limit.requests, 10)},
				{"RateLimit-Remaining", strconv.FormatUint(s.remaining, 10)},
				{"RateLimit-Reset", strconv.FormatInt(int64(s.reset/time.Second), 10)},
			}
		}
	}
	if d.Metadata {
		r.metadata = d.metadata()
	}
	return r
}

// binding returns the status that headers are about: one that refuses, or else the one with the
// least left. It is nil if there is no limit.
func (d *decision) binding() (least *status) {
	for i := range d.statuses {
		s := &d.statuses[i]
		if s.limit == nil {
			continue
		}
		if least == nil || s.code > least.code || s.code == least.code && s.remaining < least.remaining {
			least = s
		}
	}
	return least
}
