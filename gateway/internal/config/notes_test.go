package config

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestQueueOfZeroNote: who writes a queue of 0 places, or a wait of 0, means no queue, and gets the default.
func TestQueueOfZeroNote(t *testing.T) {
	cfg, err := Parse("weir.yaml", []byte(`
upstreams: {app: {targets: [http://127.0.0.1:3000], limit: {limit: 9, queue: {len: 0}}}}
identity: {user: header:X-User}
gates:
  zero: {limit: {limit: 20, queue: {len: 0}}}
  none: {limit: {limit: 20, queue: {len: -1}}}
  some: {limit: {limit: 20, queue: {max_wait: 1s}}}
  soon: {limit: {limit: 20, queue: {max_wait: 0s}}}
  quota: {quota: {rate: 10/s, by: [user], queue: {len: 0}}}
  late: {quota: {rate: 10/s, by: [user], queue: {len: 9, max_wait: 0}}}
  ever: {quota: {rate: 10/s, by: [user], queue: {len: 9, max_wait: -1}}}
routes: [{match: [/], gates: [quota, late, ever, some, soon, none, zero], upstream: app}]
`))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"gates.zero.limit.queue.len: 0 is the default, 1024; for no queue write queue: off",
		"upstreams.app.limit.queue.len: 0 is the default, 1024; for no queue write queue: off",
		"gates.soon.limit.queue.max_wait: 0 is the default, 2s; for no queue write queue: off",
		"gates.late.quota.queue.max_wait: 0 is the default, 2s; for no queue leave queue out",
	} {
		if !slices.Contains(Texts(cfg.Notes()), want) {
			t.Errorf("notes %q, without %q", Texts(cfg.Notes()), want)
		}
	}
	if n := strings.Count(strings.Join(Texts(cfg.Notes()), "\n"), "0 is the default"); n != 4 {
		t.Errorf("%d notes on the queue, want 4: %q", n, Texts(cfg.Notes()))
	}
}

func TestQuotaNotes(t *testing.T) {
	cfg, err := Parse("weir.yaml", []byte(`
upstreams: {app: {targets: [http://127.0.0.1:3000]}, limited: {targets: [http://127.0.0.1:3001], limit: {limit: 9}}}
identity: {tenant: path:t, user: header:X-User}
stores: {shared: {redis: "redis://127.0.0.1"}, spare: {redis: "redis://127.0.0.1"}}
gates:
  slots: {limit: {limit: 20, queue: {len: -1}}}
  invented: {quota: {rate: 10/s, by: [tenant]}}
  nothing: {quota: {rules: [{client: web, rate: 1/s}], store: shared}}
  apart: {limit: {limit: 20, count: requests}}
  waits: {quota: {rate: 10/s, queue: {len: 5}}}
  dear: {quota: {limits: [10/s, 1000/h]}}
  counts: {quota: {rate: 10/s, count: requests}}
  owing: {quota: {rate: 10/s, debt: true}}
  some: {quota: {rate: 10/s, by: [user], rules: [{user: acme, rate: 20/s}]}}
  small: {quota: {rate: 100/s, burst: 20}}
  own: {quota: {rate: 100/s, burst: 20, by: [client, user]}}
  queues: {quota: {rate: 100/s, burst: 20, queue: {len: 5}}}
  fine: {quota: {rate: 10/s, by: [user], rules: [{tenant: acme, exempt: true}]}}
routes:
  - {match: ["/a/{t}"], gates: [invented, nothing, fine, slots, waits], upstream: app}
  - {match: ["/b/{t}"], gates: [waits, slots], upstream: app}
  - {match: ["/c/{t}"], gates: [fine, waits], upstream: app}
  - {match: ["/d/{t}"], gates: [dear, owing, counts], cost: 11, upstream: app}
  - {match: ["/e/{t}"], gates: [dear, owing, some], cost: 10, upstream: app}
  - {match: ["/f/{t}"], gates: [some], cost: 11, upstream: app}
  - {match: ["/g/{t}"], gates: [small, own, queues], upstream: app}
  - {match: ["/l/{t}"], gates: [some, slots], cost_from: "header:X-Cost", upstream: app}
  - {match: ["/h/{t}"], gates: [owing], cost: 5, upstream: limited}
  - {match: ["/i/{t}"], gates: [counts, slots], cost: 5, upstream: app}
  - {match: ["/j/{t}"], gates: [owing, apart], cost: 5, upstream: app}
  - {match: ["/k/{t}"], gates: [owing, slots], upstream: app}
  - {match: ["/m/{t}"], gates: [queues], upstream: limited}
`))
	if err != nil {
		t.Fatal(err)
	}
	notes := Texts(cfg.Notes())
	for _, want := range []string{
		"the gate invented gives each tenant in the path",
		"the gate nothing counts by the client, but identity.client names no source",
		"routes[0] asks the quota waits after the limit slots",
		"routes[1] only tries the quota waits",
		"routes[3] costs 11, more than the quota dear ever holds",
		"no gate uses the store spare",
		"the gate own counts by the client",
		"the quota small is shared by all clients, and holds 20, less than the 100 that come back in a second",
		"routes[7] takes as many slots of the limit of gate slots as tokens of the quota some. If that is not meant, give one of them count: requests",
		"routes[8] takes as many slots of the limit of upstream limited as tokens of the quota owing",
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

// TestWarnings: what is allowed and probably wrong is said at its line, with what to write.
func TestWarnings(t *testing.T) {
	const head = "upstreams: {app: {targets: [http://127.0.0.1:3000]}}\n"
	const tail = "\nroutes: [{match: [/], gates: [api], upstream: app}]\n"
	dir, closed := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(closed, "log"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "read-only"), nil, 0o400), os.Chmod(closed, 0o555)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Chmod(closed, 0o700) }) // else nobody but root can remove it
	for text, want := range map[string]string{
		head + "gates: {api: {quota: {rate: 10/s, by: [user]}}}" + tail:                                                                                                                          "warn.yaml:2:15: warning: the gate api counts by the user, but identity.user names no source",
		head + "gates: {api: {each: {by: user}, limit: 5}}" + tail:                                                                                                                               "warn.yaml:2:15: warning: the gate api has a limit for each user, but identity.user names no source",
		head + "gates: {api: {each: {}, limit: 5}}" + tail:                                                                                                                                       "warn.yaml:2:15: warning: the gate api has a limit for each tenant, but identity.tenant names no source",
		head + "gates: {api: {each: {by: client}, limit: 5}}" + tail:                                                                                                                             "warn.yaml:2:15: warning: the gate api has a limit for each client",
		head + "identity: {trusted_proxies: [10.0.0.0/8, 0.0.0.0/0]}\ngates: {api: {limit: auto}}" + tail:                                                                                        "warn.yaml:2:42: warning: identity.trusted_proxies has 0.0.0.0/0, so any client",
		head + "identity: {user: header:X-User, trusted_proxies: []}\ngates: {api: {limit: auto}}" + tail:                                                                                        "warn.yaml:2:18: warning: identity.user is read from a header, but trusted_proxies and trusted_certs name nobody who is believed; name the networks of your own proxies",
		head + "identity: {user: address, trusted_proxies: []}\ngates: {api: {limit: auto}}" + tail:                                                                                              "",
		head + "identity: {client: header:X-Api-Key}\ngates: {api: {limit: auto}}" + tail:                                                                                                        "warn.yaml:2:20: warning: identity.client: the value of X-Api-Key is a password, a key or a token. An upstream that checks it refuses strangers",
		head + "identity: {tenant: header:ocp-apim-subscription-key}\ngates: {api: {limit: auto}}" + tail:                                                                                        "the value of ocp-apim-subscription-key is a password, a key or a token",
		head + "identity: {user: header:X-User-Key}\ngates: {api: {limit: auto}}" + tail:                                                                                                         "",
		head + "identity: {user: header:X-Forwarded-For}\ngates: {api: {limit: auto}}" + tail:                                                                                                    "warn.yaml:2:18: warning: identity.user: the client writes the beginning of X-Forwarded-For, and each value is another user; write address",
		head + "identity: {client: header:forwarded}\ngates: {api: {limit: auto}}" + tail:                                                                                                        "identity.client: the client writes the beginning of forwarded",
		head + "identity: {user: header:X-Real-IP}\ngates: {api: {limit: auto}}" + tail:                                                                                                          "",
		head + "identity: {trusted_proxies: ['::/0']}\ngates: {api: {limit: auto}}" + tail:                                                                                                       "identity.trusted_proxies has ::/0, so any client",
		head + "listeners: [{address: ':1', connections: {exempt: [0.0.0.0/0]}}]\ngates: {api: {limit: 1}}" + tail:                                                                               "warn.yaml:2:52: warning: listeners[0].connections.exempt has 0.0.0.0/0",
		head + "listeners: [{address: ':3000'}]\ngates: {api: {limit: 1}}" + tail:                                                                                                                "warn.yaml:1:29: warning: upstreams.app.targets[0] is this gateway itself, by listeners[0]; write the address of the server behind it",
		head + "listeners: [{address: '127.0.0.1:3000'}]\ngates: {api: {limit: 1}}" + tail:                                                                                                       "is this gateway itself, by listeners[0]",
		head + "listeners: [{address: 'localhost:3000'}]\ngates: {api: {limit: 1}}" + tail:                                                                                                       "is this gateway itself, by listeners[0]",
		head + "listeners: [{address: '10.0.0.1:3000'}]\ngates: {api: {limit: 1}}" + tail:                                                                                                        "",
		head + "gates: {api: {quota: {rate: 1/h, by: [address], rules: [{user: '2001:db8::1', blocked: true}]}}}" + tail:                                                                         "warn.yaml:2:64: warning: gates.api.quota.rules[0].user is about the user 2001:db8::1, and nobody has that name: a client of IPv6 is named by its /64; write 2001:db8::/64",
		head + "identity: {client: peer}\ngates: {api: {quota: {rate: 1/h, by: [client], rules: [{client: '::1', blocked: true}]}}}" + tail:                                                      "gates.api.quota.rules[0].client is about the client ::1",
		head + "identity: {user: address}\ngates: {api: {limit: {limit: 1, queue: {weights: {users: {'2001:db8::1': 2}}}}}}" + tail:                                                              `gates.api.limit.queue.weights.users["2001:db8::1"] is about the user 2001:db8::1`,
		head + "identity: {client: address}\ngates: {api: {limit: 1, each: {by: client, overrides: {'::1': {limit: 2}}}}}" + tail:                                                                `gates.api.each.overrides["::1"] is about the client ::1`,
		head + "gates: {api: {quota: {rate: 1/h, by: [user], rules: [{user: '::ffff:10.0.0.1', blocked: true}]}}}" + tail:                                                                        "nobody has that name: a client of IPv4 is named by its address of IPv4; write 10.0.0.1",
		head + "gates: {api: {quota: {rate: 1/h, by: [user], rules: [{user: '[2001:db8::1]', blocked: true}]}}}" + tail:                                                                          "is about the user [2001:db8::1], and nobody has that name: a client of IPv6 is named by its /64; write 2001:db8::/64",
		head + "gates: {api: {quota: {rate: 1/h, by: [user], rules: [{user: '2001:db8::1/128', blocked: true}]}}}" + tail:                                                                        "named by its /64; write 2001:db8::/64",
		head + "gates: {api: {quota: {rate: 1/h, by: [user], rules: [{user: '2001:db8:0::/64', blocked: true}]}}}" + tail:                                                                        "named by its /64; write 2001:db8::/64",
		head + "gates: {api: {quota: {rate: 1/h, by: [user], rules: [{user: '10.0.0.1/32', blocked: true}]}}}" + tail:                                                                            "a client of IPv4 is named by its address of IPv4; write 10.0.0.1",
		head + "gates: {api: {quota: {rate: 1/h, by: [user], rules: [{user: '2001:db8::/48', blocked: true}]}}}" + tail:                                                                          "nobody has that name: each client of the network has its own; only a rule of a quota is for a network, by address: 2001:db8::/48",
		head + "gates: {api: {limit: {limit: 1, queue: {weights: {users: {'10.0.0.0/8': 2}}}}}}" + tail:                                                                                          "nobody has that name: each client of the network has its own",
		head + "identity: {user: address}\ngates: {api: {quota: {rate: 1/h, by: [user], rules: [{user: '2001:db8::/64', blocked: true}, {user: '[a]', blocked: true}]}}}" + tail:                 "",
		head + "identity: {tenant: address}\ngates: {api: {quota: {rate: 1/h, by: [tenant], rules: [{tenant: '::1', blocked: true}]}}}" + tail:                                                   "gates.api.quota.rules[0].tenant is about the tenant ::1",
		head + "identity: {tenant: address}\ngates: {api: {limit: {limit: 1, queue: {weights: {tenants: {'::1': 2}}}}}}" + tail:                                                                  `gates.api.limit.queue.weights.tenants["::1"] is about the tenant ::1`,
		head + "identity: {tenant: peer}\ngates: {api: {limit: 1, each: {overrides: {'::1': {limit: 2}}}}}" + tail:                                                                               `gates.api.each.overrides["::1"] is about the tenant ::1`,
		head + "identity: {tenant: header:X-T}\ngates: {api: {limit: 1, each: {overrides: {'::1': {limit: 2}}}}}" + tail:                                                                         "",
		head + "identity: {client: address}\ngates: {api: {limit: 1, each: {by: client, overrides: {'::/64': {limit: 2}, 10.0.0.1: {limit: 2}}}}}" + tail:                                        "",
		head + "admin: 127.0.0.1:3000\ngates: {api: {limit: 1}}" + tail:                                                                                                                          "is this gateway itself, by admin",
		head + "admin: {socket: no/such/s.sock}\ngates: {api: {limit: 1}}" + tail:                                                                                                                "warn.yaml:2:17: warning: admin.socket: there is no directory",
		head + "runtime_quotas: no/such/q.json\ngates: {api: {limit: 1}}" + tail:                                                                                                                 "warn.yaml:2:17: warning: runtime_quotas.file: there is no directory",
		head + "admin: {socket: " + dir + "/s.sock}\ngates: {api: {limit: 1}}" + tail:                                                                                                            "",
		head + "state: {file: " + closed + "/s.json}\ngates: {api: {limit: 1}}" + tail:                                                                                                           "warn.yaml:2:15: warning: state.file: nobody may write to the directory \"" + closed + "\"; allow the gateway's user to, or name another",
		head + "state: {file: " + dir + "/read-only}\ngates: {api: {limit: 1}}" + tail:                                                                                                           "", // it is replaced
		head + "access_log: {to: " + closed + "/a.log}\ngates: {api: {limit: 1}}" + tail:                                                                                                         "warn.yaml:2:18: warning: access_log.to: nobody may write to the directory",
		head + "access_log: {to: " + closed + "/log}\ngates: {api: {limit: 1}}" + tail:                                                                                                           "",
		head + "access_log: {to: " + dir + "/read-only}\ngates: {api: {limit: 1}}" + tail:                                                                                                        "access_log.to: nobody may write to \"" + dir + "/read-only\"; allow the gateway's user to",
		head + "runtime_quotas: {file: " + dir + "/read-only}\ngates: {api: {limit: 1}}" + tail:                                                                                                  "runtime_quotas.file: nobody may write to \"" + dir + "/read-only\"",
		"upstreams: {app: {targets: ['unix:/no/such/app.sock']}}\ngates: {api: {limit: 1}}" + tail:                                                                                               "warn.yaml:1:29: warning: upstreams.app.targets[0]: there is no directory \"/no/such\" here",
		head + "gates: {api: {limit: 1}}\nroutes: [{match: ['*.example.com/'], gates: [api], upstream: app}]\n":                                                                                  "routes[0] (*.example.com/) has * in the host, which matches only itself; write a pattern for each host",
		head + "gates: {api: {limit: 1}}\nroutes: [{match: ['/u/:id'], gates: [api], upstream: app}]\n":                                                                                          `warn.yaml:3:19: warning: routes[0] (/u/:id) is written as for another router, and matches only this very text; write "/u/{id}"`,
		head + "gates: {api: {quota: {rate: 1/s, rules: [{user: '*', exempt: true}]}}}" + tail:                                                                                                   "warn.yaml:2:62: warning: gates.api.quota.rules[0] exempts every user from the limit of the quota; name whom you mean, or leave the rule out",
		head + "gates: {api: {quota: {rate: 1/s, rules: [{user: a, rate: 9/s}, {address: 0.0.0.0/0, exempt: true}]}}}" + tail:                                                                    "gates.api.quota.rules[1] exempts every address of IPv4",
		head + "gates: {api: {quota: {rate: 1/s, rules: [{address: 10.0.0.0/8, exempt: true}, {user: a, client: '*', exempt: true}]}}}\nidentity: {user: header:X-User, client: address}" + tail: "",
		head + "gates: {api: {quota: {rate: 1/s, by: [user], rules: [{address: 0.0.0.0/0, exempt: true}]}}}\nidentity: {user: header:X-User, client: address}" + tail:                            "",
		head + "gates: {api: {quota: {rate: 1/s, rules: [{user: '*', rate: 2/s}]}}}\nidentity: {user: header:X-User}" + tail:                                                                     "",
		head + "gates: {api: {limit: 1}}\nroutes: [{match: [/], gates: [api], upstream: app, exempt: true}]\n":                                                                                   "warn.yaml:3:60: warning: every route that passes a gate is exempt, so these gates limit nobody; leave exempt out where they are to hold",
		head + "gates: {api: {limit: 1}}\nroutes: [{match: [/], gates: [api], upstream: app}, {match: [/up], gates: [api], upstream: app, exempt: true}]\n":                                      "",
		head + "listeners: [{address: '127.0.0.1:1'}, {address: '127.0.0.1:2', serve: [ratelimit]}]\ngates: {api: {quota: {rate: 1/s, rules: [{descriptor: 'a=*', rate: 2/s}]}}}\nroutes: [{match: [/], gates: [api], upstream: app, exempt: true}]\n":                                                                               "",
		head + "listeners: [{address: '127.0.0.1:1'}]\ngates: {api: {quota: {rate: 10485760/s}}}\nkafka: {k: {bootstrap: ['10.0.0.1:9092'], listen: {address: '127.0.0.1:9092'}, nodes: {ports: 9100-9199, advertise: k.example.org}, quotas: {produce: api}}}\nroutes: [{match: [/], gates: [api], upstream: app, exempt: true}]\n": "",
		head + "gates: {api: {limit: {controller: aimd, threshold: 1000h}}}" + tail:                                                                                         "warn.yaml:2:52: warning: gates.api.limit.threshold is 1000h0m0s: hardly any answer takes so long",
		"upstreams: {app: {targets: [http://127.0.0.1:3000], limit: {controller: aimd, threshold: 25h}}}\ngates: {api: {limit: {controller: aimd, threshold: 24h}}}" + tail: "warn.yaml:1:90: warning: upstreams.app.limit.threshold is 25h0m0s",
		head + "gates: {api: {limit: {controller: aimd, threshold: 24h}}}" + tail:                                                                                           "",
	} {
		cfg, err := Parse("warn.yaml", []byte(text))
		if err != nil {
			t.Errorf("%v\nin %s", err, text)
			continue
		}
		var got strings.Builder
		for _, n := range cfg.Notes() {
			got.WriteString(n.Error() + "\n")
		}
		if !strings.Contains(got.String(), want) || want == "" && got.Len() > 0 {
			t.Errorf("%swarns\n%swant\n%s", text, got.String(), want)
		}
	}
}

// TestEnvoyNotes: what the requests of an Envoy cannot have is said where a listener serves them.
func TestEnvoyNotes(t *testing.T) {
	const tail = "routes: [{match: [/], gates: [api], upstream: app}]"
	for text, want := range map[string]string{
		"gates: {api: {limit: {queue: {max_wait: 60s}}}}\n" + tail:                                                   "warn.yaml:3:9: note: the gate api lets work wait for 1m0s; set max_message_timeout of Envoy's ext_proc filter to 1m1s",
		"gates: {api: {limit: 5}}\nidentity: {tenant: 'header:X-Envoy-Tenant'}\n" + tail:                             "warn.yaml:4:20: warning: identity.tenant: Envoy lets nobody change X-Envoy-Tenant, so it stays on requests of strangers",
		"gates: {api: {quota: {rate: 5/s, queue: {len: 5, max_wait: -1}}}}\n" + tail:                                 "warn.yaml:3:9: note: the gate api lets work wait without a bound, and requests of an Envoy for 30s",
		"gates: {api: {quota: 5/s}}\nroutes: [{match: [/], gates: [api], settle_event: usage.total, upstream: app}]": "warn.yaml:4:51: warning: routes[0] (/): settle_event reads nothing for an Envoy",
	} {
		for serve, hears := range map[string]bool{"ext_proc": true, "http": false} {
			cfg, err := Parse("warn.yaml", []byte("listeners: [{address: '127.0.0.1:1', serve: ["+serve+"]}]\n"+
				"upstreams: {app: {targets: [http://127.0.0.1:3000]}}\n"+text+"\n"))
			if err != nil {
				t.Errorf("%v\nin %s", err, text)
				continue
			}
			var got strings.Builder
			for _, n := range cfg.Notes() {
				got.WriteString(n.Error() + "\n")
			}
			if strings.Contains(got.String(), want) != hears {
				t.Errorf("%s, serve %s: warns\n%swant %q: %v", text, serve, got.String(), want, hears)
			}
		}
	}
}

// TestTracingNotes: a likely wrong port, and settings without an endpoint.
func TestTracingNotes(t *testing.T) {
	for tracing, want := range map[string]string{"endpoint: http://127.0.0.1:4317": "usually 4318", "sample: 0.1": "names no endpoint"} {
		cfg, err := Parse("weir.yaml", []byte("tracing: {"+tracing+"}\n"+
			"upstreams: {app: {targets: [http://127.0.0.1:3000]}}\nroutes: [{match: [/], upstream: app}]\n"))
		if err != nil {
			t.Fatal(err)
		}
		if notes := strings.Join(Texts(cfg.Notes()), "\n"); !strings.Contains(notes, want) {
			t.Errorf("%s: notes %q, want %q", tracing, notes, want)
		}
	}
}

// TestConnectionsNote: a bound on connections alone makes a queue that nobody sees.
func TestConnectionsNote(t *testing.T) {
	cfg, err := Parse("weir.yaml", []byte("upstreams:\n  a: {targets: [http://127.0.0.1:1], max_connections: 8}\n"+
		"  b: {targets: [http://127.0.0.1:2], max_connections: 8, limit: {limit: 8}}\n"+
		"routes: [{match: [/a], upstream: a}, {match: [/b], upstream: b}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	notes := strings.Join(Texts(cfg.Notes()), "\n")
	if !strings.Contains(notes, "upstreams.a has max_connections and no limit") || strings.Contains(notes, "upstreams.b has") {
		t.Errorf("notes %q; want one about a and none about b", notes)
	}
}
