package config

import (
	"fmt"
	"strings"
	"testing"
)

// withEnv is a file with one target and one limit.
const withEnv = "upstreams: {app: {targets: [\"%s\"]}}\ngates: {api: {limit: {limit: %s}}}\nroutes: [{match: [/], gates: [api], upstream: app}]\n"

// TestEnvironment: a variable stands for a value, of whatever kind is wanted there.
func TestEnvironment(t *testing.T) {
	t.Setenv("WEIR_TEST_HOST", "10.1.2.3:3000")
	t.Setenv("WEIR_TEST_LIMIT", "24")
	t.Setenv("WEIR_TEST_EMPTY", "")
	t.Setenv("WEIR_TEST_YAML", "[a, {b: c}]: # *x")
	for _, tt := range []struct{ target, want, limit string }{
		{"http://${WEIR_TEST_HOST}", "http://10.1.2.3:3000", "\"${WEIR_TEST_LIMIT}\""},
		{"http://${WEIR_TEST_NONE:-127.0.0.1:3000}/${WEIR_TEST_LIMIT}", "http://127.0.0.1:3000/24", "'${WEIR_TEST_LIMIT}'"},
		{"http://${WEIR_TEST_EMPTY:-other}:1", "http://other:1", "'${WEIR_TEST_NONE:-24}'"},
		{"http://h/a$$b$$$$c", "", "24"},
	} {
		cfg, err := Parse("env.yaml", fmt.Appendf(nil, withEnv, tt.target, tt.limit))
		if tt.want == "" {
			if err == nil || !strings.Contains(err.Error(), `"http://h/a$b$$c"`) {
				t.Errorf("%s: %v, want a dollar for each two", tt.target, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", tt.target, err)
			continue
		}
		if got := cfg.Upstreams["app"].Targets[0]; got != tt.want || cfg.Gates["api"].Limit.Limit != 24 {
			t.Errorf("%s: %s and a limit of %d, want %s and 24", tt.target, got, cfg.Gates["api"].Limit.Limit, tt.want)
		}
	}
	cfg, err := Parse("env.yaml", []byte(Minimum+"      name: ${WEIR_TEST_YAML}\n      cost: ${WEIR_TEST_LIMIT}\n  gates: {a: {limit: \"${WEIR_TEST_LIMIT}\"}}\n  identity: {tenant: \"const:${WEIR_TEST_LIMIT}\", user: const:a$b}\n  log: {level: '${WEIR_TEST_NONE:-debug}'}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Routes[0].Name != "[a, {b: c}]: # *x" || cfg.Gates["a"].Limit.Limit != 24 || cfg.Identity.Tenant != "const:24" || cfg.Log.Level != "debug" {
		t.Errorf("%q, %d, %q, %q", cfg.Routes[0].Name, cfg.Gates["a"].Limit.Limit, cfg.Identity.Tenant, cfg.Log.Level)
	}
	if notes := strings.Join(Texts(cfg.Notes()), "\n"); !strings.Contains(notes, "identity.user: $b is not replaced by a variable; write ${b}, or $$ for a dollar") {
		t.Errorf("nothing is noted of a variable without braces:\n%s", notes)
	}
}

// TestEnvironmentFaults: what is wrong with a variable has its line, and does not hide other faults.
func TestEnvironmentFaults(t *testing.T) {
	t.Setenv("WEIR_TEST_LINES", "a\nb")
	t.Setenv("WEIR_TEST_LONG", strings.Repeat("x", 100_000))
	for value, want := range map[string]string{
		"${WEIR_TEST_NONE}":                     "the environment has no variable WEIR_TEST_NONE; set it, or write ${WEIR_TEST_NONE:-default}",
		"${WEIR_TEST_NONE:7}":                   "${WEIR_TEST_NONE:7} names no variable; write ${WEIR_TEST_NONE:-7}",
		"${WEIR_TEST_NONE:?oops}":               "names no variable; write ${WEIR_TEST_NONE:-oops}",
		"${env:X}":                              "${env:X} names no variable; write ${X}",
		"${}":                                   "${} names no variable; write ${NAME}, or ${NAME:-default}",
		"${WEIR_TEST_NONE":                      "a ${ has no }",
		"${A:-${B}}":                            "a variable stands inside another",
		"${WEIR_TEST_LINES}":                    "not plain text, such as the end of a line",
		strings.Repeat("${WEIR_TEST_LONG}", 11): "put more than 1048576 bytes into the file",
	} {
		_, err := Parse("env.yaml", fmt.Appendf(nil, withEnv+"nonsense: 1\n", "http://h", "'"+value+"'"))
		if err == nil || !strings.HasPrefix(err.Error(), "env.yaml:2:30: gates.api.limit.limit: ") || !strings.Contains(err.Error(), want) || strings.Count(err.Error(), "\n") != 1 {
			t.Errorf("%.40s: %.300v; want the fault %q and that of the last line", value, err, want)
		}
	}
	if _, err := Parse("env.yaml", []byte("${KEY}: 1\n"+strings.TrimPrefix(strings.ReplaceAll(Minimum, "\n  ", "\n"), "  "))); err == nil || !strings.Contains(err.Error(), "there is no such field") {
		t.Errorf("a variable in a key: %v", err)
	}
}

// TestSecretsStayHidden: no message repeats what came from a variable, or a piece of it.
func TestSecretsStayHidden(t *testing.T) {
	for _, secret := range []string{
		"correct-horse-battery", "http://admin:hunter2000@h", "http://h/?token=0123456789abcdef", "redis://:sesame-open@h:1", "ftp://sesame-open",
		strings.Repeat("longer-than-a-message-repeats ", 10), "quoted \" and \\ back", "127.0.0.1:secret-port", "${OTHER}", "-12345678",
		"sk-live-0a1b2c3d /", "Secret-Host.Example:8080/x", "sesam /", "geheimniſſ-ĸra /",
	} {
		t.Setenv("WEIR_TEST_SECRET", secret)
		file := `upstreams: {app: {targets: ["${WEIR_TEST_SECRET}", "http://h/${WEIR_TEST_SECRET}"], connect_timeout: "${WEIR_TEST_SECRET}"}}
listeners: [{address: "${WEIR_TEST_SECRET}"}]
identity: {tenant: "${WEIR_TEST_SECRET}", user: "header:${WEIR_TEST_SECRET}", trusted_proxies: ["${WEIR_TEST_SECRET}"]}
gates: {api: {limit: "${WEIR_TEST_SECRET}"}, q: {rate: "${WEIR_TEST_SECRET}", by: ["${WEIR_TEST_SECRET}"]}}
stores: {s: {redis: "${WEIR_TEST_SECRET}", prefix: "{${WEIR_TEST_SECRET}"}}
log: {level: "${WEIR_TEST_SECRET}"}
state: {file: "no/such/${WEIR_TEST_SECRET}"}
routes: [{match: ["${WEIR_TEST_SECRET}", "${WEIR_TEST_SECRET}"], gates: ["${WEIR_TEST_SECRET}"], upstream: "${WEIR_TEST_SECRET}"}]
`
		_, err := Parse("env.yaml", []byte(file))
		if err == nil || strings.Count(err.Error(), "\n") < 8 {
			t.Errorf("%q: few faults: %v", secret, err)
			continue
		}
		if repeats(err.Error(), secret) {
			t.Errorf("%q is repeated in\n%v", secret, err)
		}
	}
}

// repeats reports whether a text has eight bytes of a secret, or all of a shorter one, in whatever case.
func repeats(text, secret string) bool {
	if _, rest, ok := strings.Cut(secret, "://"); ok {
		secret = rest
	}
	size := min(8, len(secret))
	for i := range len(secret) - size + 1 {
		for j := range len(text) - size + 1 {
			if strings.EqualFold(text[j:j+size], secret[i:i+size]) {
				return true
			}
		}
	}
	return false
}

// TestManyFaultsOfALongVariable: a long value in a hundred faults takes no time to hide.
func TestManyFaultsOfALongVariable(t *testing.T) {
	t.Setenv("WEIR_TEST_LONG", strings.Repeat("longer than any ", 8000))
	var file strings.Builder
	file.WriteString("upstreams: {app: {targets: [\"http://h\"]}}\nroutes:\n")
	for range 100 {
		file.WriteString("  - {match: [/], upstream: app, cost: many}\n")
	}
	file.WriteString("log: {level: \"${WEIR_TEST_LONG}\"}\n")
	_, err := Parse("env.yaml", []byte(file.String()))
	if err == nil || leaks(err.Error(), "longer than any ") || !strings.Contains(err.Error(), "cost") {
		t.Errorf("%.300v", err)
	}
}

// TestShorthands: what people guess says the same as what is written out.
func TestShorthands(t *testing.T) {
	parse := func(gate string) string {
		t.Helper()
		cfg, err := Parse("short.yaml", []byte(Minimum+"      gates: [api]\n  identity: {user: header:X-User}\n  gates: {api: {"+gate+"}}\n"))
		if err != nil {
			t.Errorf("%s: %v", gate, err)
			return ""
		}
		g := cfg.Gates["api"]
		return fmt.Sprintf("%+v %+v %+v", g.Mode, g.Limit, g.Quota)
	}
	for short, long := range map[string]string{
		"limit: auto":                           "limit: {}",
		"limit: 24":                             "limit: {limit: 24}",
		"limit: {limit: 24, queue: off}":        "limit: {limit: 24, queue: {len: -1}}",
		"limit: {queue: 10}":                    "limit: {queue: {len: 10}}",
		"rate: 10/s":                            "quota: {rate: 10/s}",
		"rate: 10/s, burst: 20, by: [user]":     "quota: {rate: 10/s, burst: 20, by: [user]}",
		"quota: 10/s":                           "quota: {rate: 10/s}",
		"by: [user], mode: observe, rate: 10/s": "mode: observe, quota: {rate: 10/s, by: [user]}",
		"quota: {rate: 10/s, queue: off}":       "quota: {rate: 10/s, queue: {len: -1}}",
	} {
		if got, want := parse(short), parse(long); got != want {
			t.Errorf("%s is\n%s\nwant\n%s", short, got, want)
		}
	}
	for gate, want := range map[string]string{
		"limit: 0":                       "gates.api.limit.limit: is 0, too small; write at least 1",
		`limit: "24"`:                    `gates.api.limit: is the text "24"; write 24`,
		"limit: {limit: auto, min: 2}":   `gates.api.limit.limit: "auto" is not known; write a number or leave it out to have the limit found`,
		"limit: {limit: \"24\"}":         `gates.api.limit.limit: "24" is a text, because of the quotes; write 24`,
		"limit: auot":                    `gates.api.limit: is the text "auot"; write auto, or a number`,
		"rate: 10":                       `gates.api.quota.rate: "10" is a number, not a text; write a limit such as 10/s`,
		"rate: 10/s, quota: {rate: 1/s}": "gates.api.rate: there is no such field; write it below quota",
		"burst: 5, limit: auto":          "gates.api.burst: there is no such field; write it below quota",
		"limit: {queue: no}":             `gates.api.limit.queue: is the text "no"; write off`,
	} {
		_, err := Parse("short.yaml", []byte(Minimum+"      gates: [api]\n  gates: {api: {"+gate+"}}\n"))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %s", gate, err, want)
		}
	}
}
