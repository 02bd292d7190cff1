package admin

import (
	"maps"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/policy"
)

// Who is refused by a quota has series of its own, as many as tenants have; a reload keeps
// them, and takes those of gates that are gone.
func TestRefusedBuckets(t *testing.T) {
	const most = 3
	by := policy.GateSpec{Quota: &policy.QuotaSpec{QuotaLimitSpec: policy.QuotaLimitSpec{Rate: "1/h", Burst: 2}, By: []string{"user"},
		Rules: []policy.QuotaRuleSpec{{Name: "banned", User: "mallory", Blocked: true}}}}
	slots := policy.GateSpec{Limit: &policy.LimitSpec{Limit: 1}}
	src := &still{}
	m := NewMetrics(src, "v0")
	opts := policy.Options{Hooks: weir.Hooks{Rejected: m.Rejected}}
	load := func(gates map[string]policy.GateSpec) *policy.Policy {
		src.policy = compiled(t, gates, opts)
		m.Tenants(most)
		m.Keep(maps.Collect(src.policy.Gates()), nil)
		return src.policy
	}
	p := load(map[string]policy.GateSpec{"api": by, "slots": slots})
	ask := func(user string, cost int64, times int) {
		for range times {
			_, _ = p.Gate("api").TryAdmit(weir.Work{User: user, Cost: cost})
		}
	}
	ask("alice", 1, 2+5)
	ask("mallory", 1, 4)
	ask("bob\xff", 3, 1)
	for i := range 9 {
		ask("u"+strconv.Itoa(i), 3, 1)
	}
	_, _ = p.Gate("slots").TryAdmit(weir.Work{User: "alice", Cost: 9})

	want := []Refused{{"api/user=alice", 5}, {"api/banned", 4}, {"api/user=bob\xff", 1}, {Rest, 9}}
	if got := m.MostRefused("api"); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := m.MostRefused("slots"); got != nil {
		t.Errorf("a gate without a quota has refused %v", got)
	}
	shown := func() string {
		rec := httptest.NewRecorder()
		m.Handler().ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
		return rec.Body.String()
	}
	text := shown()
	for _, line := range []string{
		`weir_quota_refused_total{bucket="api/user=alice",gate="api"} 5`,
		"weir_quota_refused_total{bucket=\"api/user=bob\ufffd\",gate=\"api\"} 1",
		`weir_quota_refused_total{bucket="other",gate="api"} 9`,
	} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("no %s", line)
		}
	}

	load(map[string]policy.GateSpec{"api": by})
	if got := m.MostRefused("api"); !slices.Equal(got, want) {
		t.Errorf("after a reload: %v, want %v", got, want)
	}
	load(map[string]policy.GateSpec{"slots": slots})
	if got := m.MostRefused("api"); got != nil || strings.Contains(shown(), "weir_quota_refused_total") {
		t.Errorf("of a gate that is gone: %v", got)
	}
}
