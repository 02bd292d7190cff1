package cli

import (
	"encoding/json"
	"strings"
	"testing"
)

// A quota has a table of its own, for it has no slots, and so have stores.
func TestStatusOfQuotas(t *testing.T) {
	var l look
	err := json.Unmarshal([]byte(`{"ready": true, "gates": [
		{"name": "slots", "kind": "limit", "mode": "enforce", "limit": 20},
		{"name": "near", "kind": "quota", "mode": "enforce", "admitted": 7, "rejected": {"quota": 3, "canceled": 1}, "quota": {"rules": 2, "buckets": {"known": 5, "max": 100, "overflowed": 4}, "store_errors": 0,
			"refused": [{"bucket": "near/user=alice", "times": 5}, {"bucket": "near/user=bob", "times": 4}, {"bucket": "near/user=carol", "times": 2}, {"bucket": "other", "times": 7}]}},
		{"name": "far", "kind": "quota", "mode": "observe", "quota": {"rules": 1, "store_errors": 6, "unsettled": 1}}],
		"stores": [{"name": "shared", "down": true, "why": "no answer", "takes": 12, "failed": {"timeout": 2, "down": 3}, "trips": 1}]}`), &l)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := l.print(&b, 2); err != nil {
		t.Fatal(err)
	}
	var rows []string
	for line := range strings.Lines(b.String()) {
		rows = append(rows, strings.Join(strings.Fields(line), " "))
	}
	got := strings.Join(rows, "\n")
	for _, want := range []string{
		"slots enforce 20 0 0 0 0 0 - - -",
		"QUOTA MODE RULES BUCKETS AT MOST OVERFLOWED WAITING ADMITTED REFUSED LEFT STORE ERRORS UNSETTLED",
		"near enforce 2 5 100 4 0 7 3 1 0 0",
		"far observe 1 - - - 0 0 0 0 6 1",
		"shared down 12 5 1 no answer",
		"BUCKET OF REFUSED\nuser=alice near 5\nuser=bob near 4\n(other) near 9",
	} {
		if !strings.Contains(got, "\n"+want) {
			t.Errorf("no row %q", want)
		}
	}
	if strings.Count(got, "\nnear") != 1 {
		t.Error("a quota is among the limits too")
	}
	if t.Failed() {
		t.Log(b.String())
	}
}
