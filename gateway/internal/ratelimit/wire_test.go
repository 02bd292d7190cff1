package ratelimit

import (
	"strings"
	"testing"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/quota"
)

// Whatever comes is read or refused, and what protobuf reads is read here with the same meaning.
func FuzzRequest(f *testing.F) {
	for _, m := range []*rls.RateLimitRequest{
		{Domain: "rl", HitsAddend: 1 << 31},
		{Domain: "rl", Descriptors: []*common.RateLimitDescriptor{{
			Entries:    []*common.RateLimitDescriptor_Entry{{Key: "a", Value: "b"}, {Key: "c"}},
			Limit:      &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 7, Unit: 3, UnitMultiplier: wrapperspb.UInt32(2)},
			HitsAddend: wrapperspb.UInt64(0), IsNegativeHits: true,
		}, {}}},
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	for _, more := range []uint64{1 << 32, 1<<32 + 7} { // numbers of 32 bits lose what is above
		f.Add(varint(nil, 3, more))
		f.Add(message(nil, 2, func(b []byte) []byte {
			return message(b, 2, func(b []byte) []byte { return varint(varint(b, 1, more), 2, 3) })
		}))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var got request
		err := got.ReadWire(b)
		var want rls.RateLimitRequest
		if proto.Unmarshal(b, &want) != nil {
			return
		}
		if err != nil {
			t.Fatalf("%v, and protobuf reads %v", err, &want)
		}
		unknown := len(want.ProtoReflect().GetUnknown()) > 0
		for _, d := range want.Descriptors {
			unknown = unknown || len(d.ProtoReflect().GetUnknown())+len(d.GetLimit().ProtoReflect().GetUnknown())+len(d.GetHitsAddend().ProtoReflect().GetUnknown())+len(d.GetLimit().GetUnitMultiplier().ProtoReflect().GetUnknown()) > 0
			for _, e := range d.Entries {
				unknown = unknown || len(e.ProtoReflect().GetUnknown()) > 0
			}
		}
		if unknown || got.fault != nil {
			return // a field of another type may look like one of ours
		}
		if got.domain != want.Domain || got.hits != uint64(want.HitsAddend) || len(got.descriptors) != len(want.Descriptors) {
			t.Fatalf("%+v of %v", got, &want)
		}
		for i, d := range want.Descriptors {
			g := got.descriptors[i]
			if len(g.entries) != len(d.Entries) || g.hits != d.GetHitsAddend().GetValue() || g.counted != (d.HitsAddend != nil) || g.negative != d.IsNegativeHits {
				t.Fatalf("%+v of %v", g, d)
			}
			for k, e := range d.Entries {
				if g.entries[k] != [2]string{e.Key, e.Value} {
					t.Fatalf("%+v of %v", g, d)
				}
			}
			if l := d.Limit; (l == nil) != (g.limit == nil) || l != nil && (g.limit.requests != uint64(l.RequestsPerUnit) || int32(g.limit.unit) != int32(l.Unit) || uint32(g.limit.multiplier) != l.UnitMultiplier.GetValue()) {
				t.Fatalf("%+v of %v", g.limit, l)
			}
		}
	})
}

// The answer is what protobuf reads, also where parts of it are long.
func TestAnswerOnTheWire(t *testing.T) {
	long := strings.Repeat("x", 1000)
	r := response{code: codeOver, headers: [][2]string{{"a", "b"}, {"", ""}}, statuses: []status{{code: codeOK}, {codeOver, &current{7, 3, long}, 5, 1_500_000_001}}}
	var got rls.RateLimitResponse
	if err := proto.Unmarshal(r.AppendWire(nil), &got); err != nil {
		t.Fatal(err)
	}
	s := got.Statuses[1]
	if got.OverallCode != rls.RateLimitResponse_OVER_LIMIT || len(got.ResponseHeadersToAdd) != 2 || got.ResponseHeadersToAdd[0].Value != "b" ||
		got.Statuses[0].CurrentLimit != nil || s.CurrentLimit.Name != long || s.CurrentLimit.RequestsPerUnit != 7 || s.CurrentLimit.Unit != 3 || s.LimitRemaining != 5 || s.DurationUntilReset.AsDuration() != 1_500_000_001 {
		t.Errorf("%v", &got)
	}
}

// What is left is told in whole tokens. A bucket that came short of one by a rounding error has it.
func TestWholeTokensAreLeft(t *testing.T) {
	windows := []quota.Window{{Rate: 3, Burst: 10}}
	for left, want := range map[float64]uint64{7: 7, 7 - 1e-9: 7, 6.9: 6, -2: 0} {
		m := matched{limit: noLimit}
		s := m.status(&quota.Charge{Answer: quota.Answer{Windows: windows, Decision: quota.Decision{OK: true, Remaining: left}}})
		if s.remaining != want || s.reset <= 0 {
			t.Errorf("with %v tokens: %+v, want %d", left, s, want)
		}
	}
}

// A wait that does not end is not told: there is no time to name.
func TestNeverIsNoTime(t *testing.T) {
	m := matched{limit: noLimit}
	s := m.status(&quota.Charge{Refused: &weir.Rejection{Reason: weir.ReasonTooLarge, RetryAfter: quota.Never}})
	if s.reset != 0 || s.code != codeOver {
		t.Errorf("%+v", s)
	}
}
