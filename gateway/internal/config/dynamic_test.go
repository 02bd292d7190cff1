package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-go/weir/gateway/internal/config"
)

const withQuota = `upstreams: {app: {targets: [http://127.0.0.1:3000]}}
routes: [{match: [/], gates: [api], upstream: app}]
stores: {shared: {redis: "redis://127.0.0.1:6379"}}
gates:
  api:
    quota:
      rate: 10/s
      rules:
        - user: alice
          rate: 5/s
        - {user: bob, blocked: true}
`

// Files are looked up where the configuration is, and what is wrong is told with what
// to write.
func TestDynamicQuotas(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "token"), []byte("0123456789abcdef"), 0o600); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, "weir.yaml")
	c, err := config.Parse(name, []byte(withQuota+"quotas: {file: q.json}\nadmin: {socket: s, token_file: token}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if c.Quotas.File != filepath.Join(dir, "q.json") || c.Admin.Socket != filepath.Join(dir, "s") || c.Admin.TokenFile != filepath.Join(dir, "token") {
		t.Errorf("%+v %+v", c.Quotas, c.Admin)
	}
	f := func(text, part string) {
		t.Helper()
		_, err := config.Parse(name, []byte(withQuota+text+"\n"))
		if err == nil || !strings.Contains(err.Error(), "weir.yaml:12:") || !strings.Contains(err.Error(), part) {
			t.Errorf("%s: %v, want %q", text, err, part)
		}
	}
	f("quotas: {start_broken: true}", "no rules are kept")
	f("quotas: {store: shraed}", "write shared")
	f("quotas: {store: shared, file: q.json}", "leave one of them out")
	f("admin: {token_file: nothing}", "there is no file")
	if err := os.WriteFile(filepath.Join(dir, "short"), []byte("0123456789abcde"), 0o600); err != nil {
		t.Fatal(err)
	}
	f("admin: {token_file: short}", "holds 15 bytes, and nobody may write with fewer than 16; make it by openssl rand -hex 32")
	f("admin: {socket: "+strings.Repeat("s", 100)+"}", "too long for a socket")
	f("admin: {address: off, socket: s}", "the admin listener is off")
}

func TestQuotaPlace(t *testing.T) {
	c, err := config.Parse("/etc/weir.yaml", []byte(withQuota))
	if err != nil {
		t.Fatal(err)
	}
	for field, want := range map[string]string{"rate": "weir.yaml:7", "rules[0]": "weir.yaml:9", "rules[1]": "weir.yaml:11", "rules[2]": ""} {
		if got := c.QuotaPlace("api", field); got != want {
			t.Errorf("%s: %q, want %q", field, got, want)
		}
	}
}

// What a reload has against a field is told with its line.
func TestAt(t *testing.T) {
	c, err := config.Parse("/etc/weir.yaml", []byte(withQuota+"quotas:\n  file: q.json\nadmin: {socket: s}\n"))
	if err != nil {
		t.Fatal(err)
	}
	for field, want := range map[string]string{"quotas.file": "weir.yaml:13: quotas.file", "admin.socket": "weir.yaml:14: admin.socket", "quotas.store": "quotas.store"} {
		if got := c.At(field); got != want {
			t.Errorf("%s: %q, want %q", field, got, want)
		}
	}
}
