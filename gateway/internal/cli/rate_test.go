package cli

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/policy"
)

const someUpstream = "--upstream=http://127.0.0.1:1"

// parsed is the configuration that flags of weir run make.
func parsed(t *testing.T, o runOptions) (*config.Config, error) {
	t.Helper()
	o.Upstream = "http://127.0.0.1:1"
	return o.load()
}

func TestRunRate(t *testing.T) {
	one := func(rate string, burst float64, by ...string) *policy.QuotaSpec {
		return &policy.QuotaSpec{QuotaLimitSpec: policy.QuotaLimitSpec{Rate: rate, Burst: burst}, By: by}
	}
	tests := []struct {
		name     string
		rate     rateOptions
		identity policy.IdentitySpec
		want     *policy.QuotaSpec
		becomes  policy.IdentitySpec
	}{
		{"none", rateOptions{}, policy.IdentitySpec{}, nil, policy.IdentitySpec{}},
		{"one for all", rateOptions{Rates: []string{"10/s"}}, policy.IdentitySpec{}, one("10/s", 0), policy.IdentitySpec{}},
		{"burst", rateOptions{Rates: []string{"10/s"}, Burst: 20, BurstSet: true}, policy.IdentitySpec{}, one("10/s", 20), policy.IdentitySpec{}},
		{"by header", rateOptions{Rates: []string{"10/s"}, By: "header:X-User"}, policy.IdentitySpec{}, one("10/s", 0, "user"), policy.IdentitySpec{User: "header:X-User"}},
		{"the same said twice", rateOptions{Rates: []string{"1/s"}, By: "header:X"}, policy.IdentitySpec{User: "header:X"}, one("1/s", 0, "user"), policy.IdentitySpec{User: "header:X"}},
		{"by ip", rateOptions{Rates: []string{"10/s"}, By: "ip"}, policy.IdentitySpec{User: "header:X"}, one("10/s", 0, "address"), policy.IdentitySpec{User: "header:X", Client: "address"}},
		{"by tenant", rateOptions{Rates: []string{"10/s"}, By: "tenant"}, policy.IdentitySpec{Tenant: "header:T"}, one("10/s", 0, "tenant"), policy.IdentitySpec{Tenant: "header:T"}},
		{
			"several", rateOptions{Rates: []string{"10/s burst 20", "1000/h", "5000 a day"}, By: "ip"}, policy.IdentitySpec{},
			&policy.QuotaSpec{QuotaLimitSpec: policy.QuotaLimitSpec{Limits: []string{"10/s burst 20", "1000/h", "5000 a day"}}, By: []string{"address"}}, policy.IdentitySpec{Client: "address"},
		},
	}
	for _, tt := range tests {
		cfg, err := parsed(t, runOptions{Rate: tt.rate, Identity: tt.identity, Limit: 5, LimitSet: true})
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		order := []string{"upstream"}
		if tt.want != nil {
			order = []string{"quota", "upstream"} // tokens first, then a slot
		}
		if got := cfg.Gates["quota"].Quota; !reflect.DeepEqual(got, tt.want) || !reflect.DeepEqual(cfg.Routes[0].Gates, order) || cfg.Gates["upstream"].Limit.Limit != 5 {
			t.Errorf("%s: %+v through %v, want %+v", tt.name, got, cfg.Routes[0].Gates, tt.want)
		}
		if !reflect.DeepEqual(cfg.Identity, tt.becomes) {
			t.Errorf("%s: identity %+v, want %+v", tt.name, cfg.Identity, tt.becomes)
		}
		p, err := policy.Compile(cfg.Policy(), policy.Options{})
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		p.Close()
	}
}

// Whoever asks by address is told apart by it, also next to the gateway, whose own
// addresses are trusted.
func TestRunRateByAddress(t *testing.T) {
	cfg, err := parsed(t, runOptions{Rate: rateOptions{Rates: []string{"1/h"}, By: "ip"}})
	if err != nil {
		t.Fatal(err)
	}
	p, err := policy.Compile(cfg.Policy(), policy.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for i, tt := range []struct {
		peer, forwarded string
		in              bool
	}{
		{"127.0.0.1:1", "", true}, {"127.0.0.1:2", "", false}, {"127.0.0.2:1", "", true},
		{"192.0.2.1:1", "", true}, {"127.0.0.1:1", "192.0.2.1", false}, {"127.0.0.1:1", "192.0.2.2", true},
		{"[2001:db8::1]:1", "", true}, {"[2001:db8::2]:1", "", false}, {"[2001:db8:0:1::1]:1", "", true},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		if r.RemoteAddr = tt.peer; tt.forwarded != "" {
			r.Header.Set("X-Forwarded-For", tt.forwarded)
		}
		_, w := p.Match(r)
		permit, err := p.Gate("quota").TryAdmit(w)
		if permit.Done(0); (err == nil) != tt.in {
			t.Errorf("%d: %s for %q: %v", i, tt.peer, tt.forwarded, err)
		}
	}
}

func TestRunRateMistakes(t *testing.T) {
	f := func(want string, args ...string) {
		t.Helper()
		_, _, err := run(NewRootCommand("test"), "", append([]string{"run"}, args...)...)
		var exit *ExitError
		if !errors.As(err, &exit) || exit.Code != 2 || err.Error() != want {
			t.Errorf("run %v: %v, want %s", args, err, want)
		}
	}
	const up = someUpstream
	f(`--rate: "10" is not a limit; write for instance 10/s, 10/s burst 20, 1000/h, or 5000 a day Europe/Berlin`, up, "--rate=10")
	f(`--rate: 0 is not above 0; write a number above 0`, up, "--rate=0/s")
	f(`--rate: 10/day may mean two things; write 10/24h for tokens that come back all the time. Write 10 a day for all of them when a new day begins`, up, "--rate=10/day")
	f(`--rate "10/s burst .5" has a burst of 0.5, which lets nothing through; write at least 1`, up, "--rate=10/s burst .5")
	f(`--burst 0 is how many may come at once, from 1 to 1e+15; leave it out for what the rate gives`, up, "--rate=10/s", "--burst=0")
	f(`--burst NaN is how many may come at once, from 1 to 1e+15; leave it out for what the rate gives`, up, "--rate=10/s", "--burst=nan")
	f(`--burst 20 means nothing without a rate; write for instance --rate 10/s --burst 20`, up, "--burst=20")
	f(`--burst 20: which of the 2 rates is it for? Write it there, as in --rate "10/s burst 20"`, up, "--rate=10/s", "--rate=100/h", "--burst=20")
	f(`--burst 20: --rate "10/s burst 5" says a burst too; leave one of them out`, up, "--rate=10/s burst 5", "--burst=20")
	f(`--burst 20: all of --rate "10 a day" comes back at once; leave --burst out`, up, "--rate=10 a day", "--burst=20")
	f(`--by ip says whose a quota is, but there is no quota; write for instance --rate 10/s --by ip`, up, "--by=ip")
	f(`--by "X-User" is unknown; write header:NAME, as in header:X-User, or address, user or tenant`, up, "--rate=10/s", "--by=X-User")
	f(`--by: "" is not a header name; write letters, digits and dashes, such as header:X-Tenant`, up, "--rate=10/s", "--by=header:")
	f(`--by header:A and --user header:B name two users; write --by user, or leave --user out`, up, "--rate=10/s", "--by=header:A", "--user=header:B")
	f(`--by user: nothing says who the user is; write --by header:X-User, or --by address`, up, "--rate=10/s", "--by=user")
	f(`--by tenant: nothing says who the tenant is; write --tenant header:X-Tenant beside it`, up, "--rate=10/s", "--by=tenant")
	f(`--rate is given 9 times; at most 8 can hold together`, append([]string{up}, strings.Fields(strings.Repeat("--rate=1/s ", 9))...)...)
	f("--limit 0 admits nothing; it is how many requests may be in progress at a time, at least 1. Leave it out to let the gateway find it\n"+
		`--rate: "x" is not a limit; write for instance 10/s, 10/s burst 20, 1000/h, or 5000 a day Europe/Berlin`+"\n"+
		`--by "me" is unknown; write header:NAME, as in header:X-User, or address, user or tenant`,
		up, "--limit=0", "--rate=x", "--by=me")
	f("--rate, --burst and --by are for running without a file; write a gate with a quota in a.yaml", "a.yaml", "--rate=10/s")
}
