package config

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestChanges(t *testing.T) {
	parse := func(text string) *Config {
		t.Helper()
		c, err := Parse("weir.yaml", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	const base = `upstreams: {app: {targets: [http://127.0.0.1:3000]}}
gates: {api: {limit: {limit: 20}}, slow: {limit: {limit: 3}}}
stores: {shared: {redis: "redis://127.0.0.1:6379/0"}}
routes:
  - {name: slow, match: [/reports/], upstream: app, gates: [slow]}
  - {match: [/], upstream: app, gates: [api]}
`
	for name, tt := range map[string]struct {
		replace []string
		want    []string
	}{
		"nothing":   {nil, nil},
		"a comment": {[]string{"upstreams:", "# new\nupstreams:"}, nil},
		"a number":  {[]string{"limit: 20", "limit: 24"}, []string{"gates.api.limit.limit: 24 (was 20)"}},
		"a setting more and one less": {
			[]string{"{limit: 20}", "{limit: 20, queue: {max_wait: 1s}}", "name: slow, ", ""},
			[]string{"gates.api.limit.queue.max_wait: 1s (was not set)", "routes[/reports/]: new", "routes[slow]: gone"},
		},
		"a gate": {
			[]string{"slow: {limit: {limit: 3}}", "slow: {limit: {}}, new: {limit: {limit: 9}}"},
			[]string{"gates.new: new", "gates.slow.limit.limit: not set (was 3)"},
		},
		"a list":     {[]string{"[http://127.0.0.1:3000]", "[http://127.0.0.1:3000, http://127.0.0.1:3001]"}, []string{"upstreams.app.targets: [http://127.0.0.1:3000, http://127.0.0.1:3001] (was [http://127.0.0.1:3000])"}},
		"the order":  {[]string{"routes:\n", "routes:\n  - {name: first, match: [/a], upstream: app, gates: [api]}\n"}, []string{"routes[first]: new"}},
		"a log":      {[]string{"routes:", "log: {level: debug}\nroutes:"}, []string{"log.level: debug (was info)"}},
		"a database": {[]string{"127.0.0.1:6379/0", "127.0.0.1:6379/1"}, []string{"stores.shared.redis: redis://127.0.0.1:6379/1 (was redis://127.0.0.1:6379/0)"}},
	} {
		now := parse(strings.NewReplacer(tt.replace...).Replace(base))
		if got := now.Changes(parse(base)); !slices.Equal(got, tt.want) {
			t.Errorf("%s:\n%s\nwant\n%s", name, strings.Join(got, "\n"), strings.Join(tt.want, "\n"))
		}
	}
}

// Passwords are not shown, long values are cut, and so is a long list.
func TestChangesAreBounded(t *testing.T) {
	a, b := &Config{Upstreams: map[string]Upstream{}}, &Config{Upstreams: map[string]Upstream{}}
	b.Stores = map[string]Store{"s": {}}
	a.Stores = map[string]Store{"s": {Redis: "redis://u:secret@h/" + strings.Repeat("x", 200)}}
	for i := range 2 * mostChanges {
		b.Upstreams[fmt.Sprint(i)] = Upstream{}
	}
	list := b.Changes(a)
	if len(list) != mostChanges+1 || list[mostChanges] != fmt.Sprintf("and %d more", mostChanges+1) {
		t.Errorf("%d lines, the last %q", len(list), list[len(list)-1])
	}
	text := strings.Join(list, "\n")
	if strings.Contains(text, "secret") || strings.Contains(text, strings.Repeat("x", 200)) || !strings.Contains(text, "stores.s.redis:") {
		t.Error(text)
	}
}

// What came from a variable is not shown, neither as it was nor as it is now, where it names an element or is cut.
func TestChangesHideVariables(t *testing.T) {
	const file = `upstreams: {app: {targets: ["http://h/${WEIR_TEST_SECRET}"]}}
identity: {user: "const:${WEIR_TEST_SECRET}"}
routes:
  - {name: "${WEIR_TEST_SECRET}", match: [/], upstream: app}
  - {match: ["/%s${WEIR_TEST_SECRET}"], upstream: app}
`
	parse := func(secret string, pad int) *Config {
		t.Helper()
		t.Setenv("WEIR_TEST_SECRET", secret)
		c, err := Parse("weir.yaml", fmt.Appendf(nil, file, strings.Repeat("x", pad)))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	for secret, other := range map[string]string{"open-sesame-now": "later", "open": "shut", "longer-than-a-line-" + strings.Repeat("0123456789", 10): "nothing-like-it"} {
		for _, pad := range []int{1, longest - 8} {
			list := parse(secret, pad).Changes(parse(other, pad))
			text := strings.Join(list, "\n")
			if len(list) < 4 || repeats(text, secret) || repeats(text, other) {
				t.Errorf("%q after %q:\n%s", secret, other, text)
			}
			if want := "identity.user: const:${WEIR_TEST_SECRET} (was const:${WEIR_TEST_SECRET})"; !slices.Contains(list, want) {
				t.Errorf("%q after %q:\n%s\nwithout %s", secret, other, text, want)
			}
		}
	}
}
