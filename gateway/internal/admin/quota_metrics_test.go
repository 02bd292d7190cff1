package admin

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/quota"
)

// What there is to see of quotas and of their stores is in the metrics, and reasons for
// which a quota may refuse have a series before the first refusal.
func TestQuotaMetrics(t *testing.T) {
	p := compiled(t, map[string]policy.GateSpec{
		"api":   {Quota: &policy.QuotaSpec{QuotaLimitSpec: policy.QuotaLimitSpec{Rate: "1/h"}, By: []string{"user"}, MaxKeys: 1000}},
		"far":   {Quota: &policy.QuotaSpec{QuotaLimitSpec: policy.QuotaLimitSpec{Rate: "1/h"}, Store: "shared"}},
		"slots": {Limit: &policy.LimitSpec{Limit: 1}},
	}, policy.Options{Stores: map[string]quota.Store{"shared": struct{ quota.Store }{}}})
	for range 3 {
		_, _ = p.Gate("api").TryAdmit(weir.Work{User: "alice"})
	}
	rec := httptest.NewRecorder()
	NewMetrics(still{p}, "v0").Handler().ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
	text := rec.Body.String()
	for _, want := range []string{
		`weir_gate_rejected_total{gate="api",reason="quota"} 2`,
		`weir_gate_rejected_total{gate="far",reason="blocked"} 0`,
		`weir_quota_rules{gate="api"} 1`,
		`weir_quota_buckets{gate="api"} 1`,
		`weir_quota_buckets_limit{gate="api"} 1000`,
		`weir_quota_overflowed_total{gate="api"} 0`,
		`weir_quota_store_errors_total{gate="far"} 0`,
		`weir_store_down{store="shared"} 1`,
		`weir_store_takes_total{store="shared"} 5`,
		`weir_store_failures_total{reason="timeout",store="shared"} 2`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("no %s", want)
		}
	}
	for _, not := range []string{`weir_quota_rules{gate="slots"}`, `weir_quota_buckets{gate="far"}`, `weir_gate_rejected_total{gate="api",reason="limit"}`} {
		if strings.Contains(text, not) {
			t.Errorf("there is %s", not)
		}
	}
}
