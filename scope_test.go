package weir_test

import (
	"context"
	"testing"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/keyed"
	"github.com/weir-go/weir/limit"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/shed"
	"github.com/weir-go/weir/throttle"
)

// What work becomes in the scopes of a context, whatever order they come in.
func TestScopes(t *testing.T) {
	early, late := time.Unix(1000, 0), time.Unix(2000, 0)
	type scopes []func(context.Context) context.Context
	at := func(p weir.Priority) func(context.Context) context.Context {
		return func(ctx context.Context) context.Context { return weir.WithPriority(ctx, p) }
	}
	from := func(p weir.Priority, deadline time.Time) func(context.Context) context.Context {
		return func(ctx context.Context) context.Context {
			return weir.WithReceived(ctx, weir.Work{Priority: p, Deadline: deadline, Exempt: true})
		}
	}
	for _, tt := range []struct {
		name   string
		scopes scopes
		own    weir.Priority
		want   weir.Priority
		exempt bool
		until  time.Time
	}{
		{"none", nil, weir.High, weir.High, false, early},
		{"work that says nothing", scopes{at(weir.Critical)}, weir.Normal, weir.Critical, false, early},
		{"work that is lower", scopes{at(weir.Critical)}, weir.Background, weir.Background, false, early},
		{"work that is higher", scopes{at(weir.Background)}, weir.Critical, weir.Background, false, early},
		{"a scope of Normal", scopes{at(weir.Normal)}, weir.Critical, weir.Normal, false, early},
		{"the innermost holds", scopes{at(weir.Background), at(weir.High)}, weir.Normal, weir.High, false, early},
		{"exempt", scopes{weir.WithExempt}, weir.High, weir.High, true, early},
		{"exempt, and a priority", scopes{weir.WithExempt, at(weir.Background)}, weir.Normal, weir.Background, true, early},
		{"a request that said nothing", scopes{from(weir.Normal, time.Time{})}, weir.High, weir.High, false, early},
		{"a request in the background", scopes{from(weir.Background, time.Time{})}, weir.Normal, weir.Background, false, early},
		{"and work of its handler that is higher", scopes{from(weir.Background, time.Time{})}, weir.High, weir.Background, false, early},
		{"an important request", scopes{from(weir.High, late)}, weir.Normal, weir.High, false, early},
		{"the request's deadline", scopes{from(weir.Normal, time.Unix(1, 0))}, weir.Normal, weir.Normal, false, time.Unix(1, 0)},
		{"never up for a stranger", scopes{from(weir.Normal, time.Time{}), at(weir.Critical)}, weir.Normal, weir.Normal, false, early},
		{"nor step by step", scopes{from(weir.Background, time.Time{}), at(weir.Normal), at(weir.High)}, weir.Normal, weir.Background, false, early},
		{"down for anybody", scopes{from(weir.Critical, time.Time{}), at(weir.Normal)}, weir.Normal, weir.Normal, false, early},
		{"up again, as far as it came", scopes{from(weir.High, time.Time{}), at(weir.Background), at(weir.Critical)}, weir.Normal, weir.High, false, early},
		{"a request in a request", scopes{from(weir.Background, time.Time{}), from(weir.High, time.Time{}), at(weir.High)}, weir.Normal, weir.Background, false, early},
		{"a listener of a priority", scopes{at(weir.High), from(weir.Normal, time.Time{})}, weir.Normal, weir.High, false, early},
		{"a priority that does not exist", scopes{at(100)}, weir.Normal, 100, false, early},
	} {
		ctx := t.Context()
		for _, s := range tt.scopes {
			ctx = s(ctx)
		}
		w := weir.Work{Priority: tt.own, Deadline: early}
		for twice := range 2 {
			if w.Inherit(ctx); w.Priority != tt.want || w.Exempt != tt.exempt || !w.Deadline.Equal(tt.until) {
				t.Errorf("%s, asked %d times: %v, exempt %v, until %v; want %v, %v, %v", tt.name, twice+1, w.Priority, w.Exempt, w.Deadline, tt.want, tt.exempt, tt.until)
			}
		}
	}
}

func TestReceived(t *testing.T) {
	if _, _, ok := weir.Received(weir.WithPriority(t.Context(), weir.High)); ok {
		t.Error("a scope of one's own is nothing received")
	}
	until := time.Unix(1000, 0)
	ctx := weir.WithPriority(weir.WithReceived(t.Context(), weir.Work{Priority: weir.High, Deadline: until}), weir.Background)
	if p, deadline, ok := weir.Received(ctx); p != weir.High || !deadline.Equal(until) || !ok {
		t.Errorf("%v, %v, %v", p, deadline, ok)
	}
}

// What goes on after a request, in a context that was cut off from it, keeps the priority. The deadline
// was for who waited.
func TestScopeAfterTheRequest(t *testing.T) {
	request, end := context.WithCancel(t.Context())
	ctx := weir.WithReceived(request, weir.Work{Priority: weir.Background, Deadline: time.Unix(1000, 0)})
	after, stop := context.WithTimeout(context.WithoutCancel(ctx), time.Hour)
	defer stop()
	var w weir.Work
	if w.Inherit(after); w.Deadline.IsZero() {
		t.Error("no deadline while the request is handled")
	}
	end()
	w = weir.Work{}
	if w.Inherit(after); !w.Deadline.IsZero() || w.Priority != weir.Background {
		t.Errorf("after the request: %v until %v", w.Priority, w.Deadline)
	}
	if p, deadline, ok := weir.Received(after); p != weir.Background || !deadline.IsZero() || !ok {
		t.Errorf("received %v, %v, %v", p, deadline, ok)
	}
}

// Every gate hears of the scopes of the context that it is given, alone and first in a chain.
func TestScopesReachEveryGate(t *testing.T) {
	var heard []weir.Work
	hooks := weir.Hooks{
		Admitted: func(_ string, w weir.Work, _ time.Duration) { heard = append(heard, w) },
		Rejected: func(w weir.Work, _ *weir.Rejection) { heard = append(heard, w) },
	}
	p := weir.Must(policy.Compile(policy.Spec{Gates: map[string]policy.GateSpec{
		"enforce": {Limit: &policy.LimitSpec{Limit: 1}},
		"observe": {Limit: &policy.LimitSpec{Limit: 1}, Mode: policy.Observe},
	}}, policy.Options{Hooks: hooks}))
	defer p.Close()
	pool := limit.Config{Limit: 1, Hooks: hooks}
	for name, g := range map[string]weir.Gate{
		"limit": weir.Must(limit.New(pool)),
		"quota": weir.Must(quota.New(quota.Config{Rules: []quota.Rule{{Windows: []quota.Window{{Rate: 1000, Burst: 1000}}}}, Hooks: hooks})),
		"pools": weir.Must(keyed.New(keyed.Config{Limit: 1, Hooks: hooks})),
		"adaptive": weir.Must(keyed.NewAdaptive(keyed.AdaptiveConfig{Key: func(w weir.Work) string { heard = append(heard, w); return "" }, New: func(string) (map[string]limit.Config, error) {
			return map[string]limit.Config{"": pool}, nil
		}})),
		"shed":     weir.Must(shed.New(shed.Config{Pressure: func() (float64, bool) { return 0, true }, Hooks: hooks})),
		"throttle": weir.Must(throttle.New(throttle.Config{Hooks: hooks})),
		"breaker":  weir.Must(throttle.NewBreaker(throttle.BreakerConfig{Hooks: hooks})),
		"enforce":  p.Gate("enforce"),
		"observe":  p.Gate("observe"),
	} {
		if c, ok := g.(interface{ Close() }); ok {
			defer c.Close()
		}
		for _, in := range []weir.Gate{g, weir.All(g, weir.All(), g)} {
			heard = nil
			ctx := weir.WithPriority(weir.WithReceived(t.Context(), weir.Work{Priority: weir.High}), weir.Critical)
			if permit, err := in.Admit(ctx, weir.Work{MaxWait: weir.NoWait}); err == nil {
				permit.Done(weir.OK)
			}
			if len(heard) == 0 || heard[0].Priority != weir.High || heard[0].Exempt {
				t.Errorf("%s: in a scope of High: %+v", name, heard)
			}
			heard = nil
			permit, err := in.Admit(weir.WithExempt(t.Context()), weir.Work{})
			if permit.Done(weir.OK); err != nil || len(heard) == 0 || !heard[0].Exempt {
				t.Errorf("%s: in an exempt scope: %v, %+v", name, err, heard)
			}
		}
	}
}

// An operation in a scope that is critical or exempt is not demoted.
func TestScopesOfOperations(t *testing.T) {
	var asked weir.Work
	g := gateFunc(func(w weir.Work) (weir.Permit, error) {
		asked = w
		return weir.Permit{}, nil
	})
	for _, scope := range []func(context.Context) context.Context{
		func(ctx context.Context) context.Context { return weir.WithPriority(ctx, weir.Critical) },
		weir.WithExempt,
	} {
		op := weir.Operation{DemoteAfter: 1}
		for range 2 {
			if _, err := op.Admit(scope(t.Context()), g, weir.Work{}); err != nil {
				t.Fatal(err)
			}
			if asked.Priority == weir.Background {
				t.Errorf("demoted: %+v", asked)
			}
		}
	}
}

// A request that is handled within another never has more than that one.
func TestReceivedWithinReceived(t *testing.T) {
	outer := weir.WithReceived(t.Context(), weir.Work{})
	inner := weir.WithReceived(outer, weir.Work{Priority: weir.High})
	if p, _, ok := weir.Received(inner); p != weir.Normal || !ok {
		t.Errorf("within a normal request: %v, %v", p, ok)
	}
}
