package config

import (
	"slices"
	"strings"
	"testing"
)

func TestQuotaNotes(t *testing.T) {
	cfg, err := Parse("weir.yaml", []byte(`
upstreams: {app: {targets: [http://127.0.0.1:3000]}}
identity: {tenant: path:t, user: header:X-User}
stores: {shared: {redis: "redis://127.0.0.1"}, spare: {redis: "redis://127.0.0.1"}}
gates:
  slots: {limit: {limit: 20, queue: {len: -1}}}
  invented: {quota: {rate: 10/s, by: [tenant]}}
  nothing: {quota: {rules: [{client: web, rate: 1/s}], store: shared}}
  waits: {quota: {rate: 10/s, queue: {len: 5}}}
  fine: {quota: {rate: 10/s, by: [user], rules: [{tenant: acme, exempt: true}]}}
routes:
  - {match: ["/a/{t}"], gates: [invented, nothing, fine, slots, waits], upstream: app}
  - {match: ["/b/{t}"], gates: [waits, slots], upstream: app}
  - {match: ["/c/{t}"], gates: [fine, waits], upstream: app}
`))
	if err != nil {
		t.Fatal(err)
	}
	notes := cfg.Notes()
	for _, want := range []string{
		"the gate invented gives each tenant in the path",
		"the gate nothing looks at the client, but identity.client says nothing",
		"routes[0] asks the quota waits after the limit slots",
		"routes[1] only tries the quota waits",
		"no gate uses the store spare",
	} {
		at := slices.IndexFunc(notes, func(n string) bool { return strings.HasPrefix(n, want) })
		if at < 0 {
			t.Errorf("no %q", want)
			continue
		}
		notes = slices.Delete(notes, at, at+1)
	}
	if len(notes) > 0 {
		t.Errorf("also %q", notes)
	}
}
