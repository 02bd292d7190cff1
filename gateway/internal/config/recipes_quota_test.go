package config_test

import (
	"net/http/httptest"
	"testing"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/policy"
)

// ask sends a request through the gates of its route, and settles it as the answer says.
func ask(t *testing.T, p *policy.Policy, method, path string, headers ...string) *weir.Rejection {
	t.Helper()
	r := httptest.NewRequest(method, path, nil)
	r.RemoteAddr = "127.0.0.1:1"
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	rt, w := p.Match(r)
	permit, err := rt.Gate().(weir.TryAdmitter).TryAdmit(w)
	if err != nil {
		return weir.AsRejection(err)
	}
	permit.Done(weir.OK)
	return nil
}

// The file with quotas in the guide does what the guide says.
func TestQuotaRecipe(t *testing.T) {
	k := cook(t, recipe(t, "gateway.md", "  client: peer                      # rules may look at addresses then"))
	k.now = 30 * time.Hour // in the morning
	count := func(n int, headers ...string) (in int, last *weir.Rejection) {
		for range n {
			if r := ask(t, k.Policy, "GET", "/", headers...); r != nil {
				last = r
			} else {
				in++
			}
		}
		return in, last
	}
	for _, test := range []struct {
		headers []string
		want    int
		rule    string
		reason  weir.Reason
	}{
		{[]string{"X-User", "alice"}, 20, "user=*", weir.ReasonQuota},
		{[]string{"X-User", "bob"}, 20, "user=*", weir.ReasonQuota},
		{[]string{"X-User", "acme"}, 100, "partner", weir.ReasonQuota},
		{[]string{"X-User", "mallory"}, 0, "user=mallory", weir.ReasonBlocked},
	} {
		in, last := count(150, test.headers...)
		if in != test.want || last == nil || last.Rule != test.rule || last.Reason != test.reason || last.Gate != "contract" {
			t.Errorf("%v: %d got in, then %v; want %d, then %v by %s", test.headers, in, last, test.want, test.reason, test.rule)
		}
	}
	if in, _ := count(150, "X-User", "carol", "X-Forwarded-For", "10.9.1.2"); in != 150 {
		t.Errorf("%d of the exempt network got in, want all 150", in)
	}
	k.pass(time.Second)
	if in, _ := count(150, "X-User", "alice"); in != 10 {
		t.Errorf("%d got in after a second, want 10", in)
	}
}

// Imports cost what a trusted peer says, may go into debt, and come back when it is paid.
func TestQuotaDebtRecipe(t *testing.T) {
	k := cook(t, recipe(t, "gateway.md", "  client: peer                      # rules may look at addresses then"))
	post := func(user, cost string) *weir.Rejection {
		return ask(t, k.Policy, "POST", "/v1/imports", "X-User", user, "X-Cost", cost)
	}
	if r := post("acme", "560"); r != nil {
		t.Fatal(r)
	}
	if r := post("acme", "1"); r == nil || r.RetryAfter != 12*time.Second || r.Rule != "user=*" {
		t.Errorf("%v, want a wait of 12s", r)
	}
	if r := post("other", "1"); r != nil {
		t.Errorf("another user: %v", r)
	}
	k.pass(12*time.Second - time.Millisecond)
	if r := post("acme", "1"); r == nil || r.RetryAfter != time.Millisecond {
		t.Errorf("%v, want a wait of 1ms", r)
	}
	k.pass(time.Millisecond)
	if r := post("acme", "1"); r != nil {
		t.Error(r)
	}
}
