package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/weirredis"
)

// withStores is a file with these stores and a quota in one of them.
func withStores(stores, store string) []byte {
	return []byte("upstreams: {app: {targets: [http://127.0.0.1:3000]}}\ngates: {api: {quota: {rate: 10/s, store: " + store + "}}}\n" +
		"routes: [{match: [/], gates: [api], upstream: app}]\nstores:\n" + stores)
}

// A store's settings become those of its client; what is left out has its default, and
// passwords come from where they are kept.
func TestStoreConnection(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "secret"), []byte("pass word\r\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("WEIR_TEST_SENTINEL", "other")
	cfg, err := Parse(filepath.Join(dir, "weir.yaml"), withStores(`
  shared: {redis: "redis://gate@h:1?addr=h:2", password_file: secret, timeout: 20ms, lease: {tokens: 7},
           sentinel: {master: main, username: watch, password_env: WEIR_TEST_SENTINEL}}
  bare: {redis: "redis://127.0.0.1"}
`, "shared"))
	if err != nil {
		t.Fatal(err)
	}
	s := cfg.Stores["shared"]
	c, err := s.Connection()
	if err != nil {
		t.Fatal(err)
	}
	if c.Password != "pass word" || c.Sentinel.Password != "other" || c.Sentinel.Master != "main" || c.Sentinel.Username != "watch" ||
		c.Deadline != 20*time.Millisecond || c.Lease.Tokens != 7 || c.Lease.For != time.Second || c.Prefix != "weir:" || c.MaxInFlight != 512 || c.DialTimeout != time.Second {
		t.Errorf("%+v", c)
	}
	if c.PasswordFunc == nil || c.Sentinel.PasswordFunc != nil {
		t.Error("a file is not read again, or a variable is")
	} else if err := os.WriteFile(filepath.Join(dir, "secret"), []byte("changed\n"), 0o600); err != nil {
		t.Fatal(err)
	} else if p, err := c.PasswordFunc(); p != "changed" || err != nil {
		t.Errorf("%q, %v: not what the file has now", p, err)
	}
	bare := cfg.Stores["bare"]
	c, err = bare.Connection()
	if err != nil || c.Password != "" || c.Lease.Tokens != 0 || c.TLS != nil {
		t.Errorf("%+v, %v", c, err)
	}
	if c.Prefix != weirredis.DefaultPrefix || c.Deadline != weirredis.DefaultDeadline || c.DialTimeout != weirredis.DefaultDialTimeout ||
		c.MaxInFlight != weirredis.DefaultMaxInFlight || c.Lease.For != weirredis.DefaultLeaseFor || c.Lease.MaxKeys != weirredis.DefaultLeaseMaxKeys {
		t.Errorf("%+v: the file has other defaults than weirredis", c)
	}
	bare.PasswordEnv = "WEIR_TEST_UNSET"
	if _, err := bare.Connection(); err == nil || !strings.Contains(err.Error(), "WEIR_TEST_UNSET") {
		t.Errorf("%v, want that the variable is missing", err)
	}
}

// Everything that is wrong with a store is said at once, and no password is repeated.
func TestStoreFaults(t *testing.T) {
	_, err := Parse("weir.yaml", withStores(`
  shared: {redis: "redis://gate:hunter2@h:1"}
  query: {redis: "redis://h:1?password=hunter2"}
  http: {redis: "http://h:1"}
  broken: {redis: "redis://:hunter2@h:x y"}
  nowhere: {redis: "redis:///0"}
  socket: {redis: "unix://"}
  both: {redis: "redis://h", password_file: a, password_env: B}
  gone: {redis: "redis://h", password_file: no/such/file}
  braces: {redis: "redis://h", prefix: "{a}"}
  plain: {redis: "redis://h", tls: {ca: no/such/ca.pem}}
  half: {redis: "rediss://h", tls: {cert: no/such/me.crt}}
  slow: {redis: "redis://h", timeout: 1h, max_in_flight: 0, lease: {tokens: -1}}
  none: {}
`, "shard"))
	for _, want := range []string{
		`weir.yaml:2:42: gates.api.quota.store: there is no store "shard"; did you mean shared?`,
		"weir.yaml:6:19: stores.shared.redis: carries a password, and a configuration is read by many; leave it out and write password_file",
		"stores.query.redis: carries a password",
		`stores.http.redis: "http" is not a scheme of a store; write for instance redis://`,
		"stores.broken.redis: is not a URL; write",
		"stores.nowhere.redis: names no server; write",
		"stores.socket.redis: names no server; write",
		"stores.both.password_file: there is a password_env too; leave one",
		"stores.gone.password_file: there is no file",
		`stores.braces.prefix: "{a}" is not a prefix`,
		"stores.plain.tls: means nothing without TLS, and the URL does not ask for it; write redis: rediss:",
		"stores.half.tls: has one of cert and key without the other",
		"stores.slow.timeout: is 1h0m0s, too large; write at most 10s",
		"stores.slow.max_in_flight: is 0, too small",
		"stores.slow.lease.tokens: is -1, too small",
		"stores.none.redis: is missing; add redis: redis://",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no %q", want)
		}
	}
	if err != nil && strings.Contains(err.Error(), "hunter2") {
		t.Error("a password is repeated")
	}
	if t.Failed() {
		t.Log(err)
	}
}

// A quota's faults stand at their lines, with what to write.
func TestQuotaFaultLines(t *testing.T) {
	_, err := Parse("weir.yaml", []byte(`
upstreams: {app: {targets: [http://127.0.0.1:3000]}}
gates:
  api:
    quota:
      rate: 10/day
      by: [usr]
      rules:
        - {user: alice}
        - user: bob
          limits: [5/s, x/s]
  tenants:
    quota: {rate: 10, by: tenant}
routes: [{match: [/], gates: [api, tenants], upstream: app}]
`))
	for _, want := range []string{
		"weir.yaml:6:13: gates.api.quota.rate: 10/day may mean two things; write 10/24h for tokens that come back all the time. Write 10 a day",
		`weir.yaml:7:12: gates.api.quota.by[0]: "usr" is not a part of an identity; did you mean user?`,
		"weir.yaml:9:11: gates.api.quota.rules[0]: gives no limit; write rate: 10/s, exempt: true or blocked: true",
		`weir.yaml:11:25: gates.api.quota.rules[1].limits[1]: "x" is not a number`,
		`weir.yaml:13:19: gates.tenants.quota.rate: "10" is a number, not a text; write a limit such as 10/s`,
		"weir.yaml:13:27: gates.tenants.quota.by: is the text \"tenant\"; write a list: [tenant]",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no %q", want)
		}
	}
	if t.Failed() {
		t.Log(err)
	}
}
