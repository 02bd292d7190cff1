package config_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/policy"
)

// TestBounds feeds the parser files that are larger, deeper or more repetitive
// than any configuration, and expects one fault that says so.
func TestBounds(t *testing.T) {
	var targets, upstreams strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&targets, "http://h%d,", i)
	}
	for i := range 2000 {
		fmt.Fprintf(&upstreams, "  u%d: *u\n", i)
	}
	for _, tc := range []struct {
		name, text, want string
	}{
		{"too large", strings.Repeat("# 0123456789\n", 100_000), "larger than"},
		{"too deep", "routes: " + strings.Repeat("[", 5000) + strings.Repeat("]", 5000), "levels deep"},
		{"deeper than the library goes", "routes: " + strings.Repeat("[", 50_000) + strings.Repeat("]", 50_000), "max depth"},
		{"deep by indent", func() string {
			var b strings.Builder
			for i := range 1000 {
				b.WriteString(strings.Repeat(" ", i) + "a:\n")
			}
			return b.String()
		}(), "levels deep"},
		{"too many values", "upstreams:\n  u: &u {targets: [" + targets.String() + "]}\n" + upstreams.String(), "more than"},
		{"too many keys", "upstreams:\n" + strings.Repeat("  u: {}\n", 60_000), "more than"},
		{"an alias inside itself", "routes: &r [*r]\n", "is a list"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			start := time.Now()
			_, err := config.Parse("big.yaml", []byte(tc.text))
			var faults *config.Faults
			if !errors.As(err, &faults) || !slices.ContainsFunc(faults.List, func(f config.Fault) bool {
				return strings.Contains(f.Problem, tc.want)
			}) {
				t.Errorf("error %.300v, want one that says %q", err, tc.want)
			}
			if n := len(fmt.Sprint(err)); n > 100_000 {
				t.Errorf("the error is %d bytes long", n)
			}
			if took := time.Since(start); took > 20*time.Second {
				t.Errorf("took %v", took)
			}
		})
	}
}

// TestManyFaults prints a bounded number of faults, and says how many are left.
func TestManyFaults(t *testing.T) {
	var b strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&b, "x%d: 1\n", i)
	}
	_, err := config.Parse("many.yaml", []byte(b.String()))
	var faults *config.Faults
	if !errors.As(err, &faults) || len(faults.List) != 1002 { // and two that are missing
		t.Fatalf("got %d faults, want 1002", len(faults.List))
	}
	if text := err.Error(); !strings.HasSuffix(text, "and 802 more faults; mend these first") {
		t.Errorf("the end of the text is %q", text[len(text)-100:])
	}
}

func TestForUpstream(t *testing.T) {
	cfg, err := config.ForUpstream("http://127.0.0.1:3000", "", 7)
	if err != nil {
		t.Fatal(err)
	}
	if l := cfg.Gates["upstream"].Limit; l == nil || l.Controller != "fixed" || l.Limit != 7 {
		t.Errorf("gate %+v, want a fixed limit of 7", l)
	}
	if cfg.Listeners[0].Address != config.DefaultListen || cfg.Routes[0].Upstream != "upstream" || cfg.Routes[0].Match[0] != "/" {
		t.Errorf("configuration %+v", cfg)
	}
	cfg, err = config.ForUpstream("http://127.0.0.1:3000", "127.0.0.1:0", 0)
	if err != nil {
		t.Fatal(err)
	}
	if l := cfg.Gates["upstream"].Limit; l == nil || !reflect.DeepEqual(*l, policy.LimitSpec{}) {
		t.Errorf("gate %+v, want a limit with nothing set", l)
	}
	for _, tc := range []struct {
		upstream, listen string
		limit            int64
		want             string
	}{
		{"127.0.0.1:3000", "", 0, "http://127.0.0.1:3000"},
		{"localhost:3000", "", 0, "write for instance http://"},
		{"", "", 0, "is empty"},
		{"http://h", "8080", 0, "127.0.0.1:8080"},
		{"http://h", "", -1, "at least 1"},
		{"http://secret:word@h", "", 0, "user name"},
	} {
		_, err := config.ForUpstream(tc.upstream, tc.listen, tc.limit)
		if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "word") {
			t.Errorf("ForUpstream(%q, %q, %d): %v, want %q", tc.upstream, tc.listen, tc.limit, err, tc.want)
		}
	}
}

// TestForUpstreamIsAFile holds the start without a file against the same thing
// written as one, so that the two cannot drift apart.
func TestForUpstreamIsAFile(t *testing.T) {
	got, err := config.ForUpstream("http://127.0.0.1:3000", "", 0)
	if err != nil {
		t.Fatal(err)
	}
	want, err := config.Parse("same.yaml", []byte(`
upstreams: {upstream: {targets: [http://127.0.0.1:3000]}}
gates: {upstream: {limit: {}}}
routes: [{match: [/], gates: [upstream], upstream: upstream}]
`))
	if err != nil {
		t.Fatal(err)
	}
	if g, w := asJSON(t, got), asJSON(t, want); g != w {
		t.Errorf("without a file:\n%s\nas a file:\n%s", g, w)
	}
}

// TestTLS loads a certificate that stands beside the file, and a key that is not
// its own.
func TestTLS(t *testing.T) {
	dir := t.TempDir()
	certificate(t, dir, "a")
	certificate(t, dir, "b")
	file := filepath.Join(dir, "weir.yaml")
	text := config.Minimum + "  listeners: [{address: \"127.0.0.1:0\", tls: {cert: a.crt, key: %s}}]\n"
	if err := os.WriteFile(file, fmt.Appendf(nil, text, "a.key"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	if tls := cfg.Listeners[0].TLS; tls.Cert != filepath.Join(dir, "a.crt") || tls.Key != filepath.Join(dir, "a.key") {
		t.Errorf("files %+v, want them beside the configuration", tls)
	}
	_, err = config.Parse(file, fmt.Appendf(nil, text, "b.key"))
	if err == nil || !strings.Contains(err.Error(), "listeners[0].tls: certificate and key cannot be used") {
		t.Errorf("another's key: %v", err)
	}
}

func certificate(t *testing.T, dir, name string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{
		name + ".crt": {Type: "CERTIFICATE", Bytes: der},
		name + ".key": {Type: "PRIVATE KEY", Bytes: secret},
	} {
		if err := os.WriteFile(filepath.Join(dir, file), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestLoadWithoutFile(t *testing.T) {
	_, err := config.Load(filepath.Join(t.TempDir(), "none.yaml"))
	if err == nil || !strings.Contains(err.Error(), "weir init") {
		t.Errorf("no file: %v, want a hint at weir init", err)
	}
	if _, err := config.Load(t.TempDir()); err == nil {
		t.Error("a directory: no error")
	}
}

func TestNotes(t *testing.T) {
	cfg, err := config.Parse("notes.yaml", []byte(`
upstreams:
  app: {targets: [http://a], limit: {limit: 3}}
  spare: {targets: [http://b]}
  third: {targets: [http://c]}
identity: {priorities: {system: critical}, user: "path:x", client: "path:x"}
gates: {busy: {limit: {limit: 1}}, each: {limit: {limit: 1}, each: {by: client}}, theirs: {limit: {limit: 1}, each: {}}, forgotten: {limit: {limit: 1, signals: [cpu]}}, unused: {limit: {}}, early: {shed: {load_of: unused}}, late: {shed: {load_of: unused, thresholds: {critical: 5}}}, shed: {shed: {signals: [heap]}}}
signals: {cpu: {threshold: 0.5}, memory: {threshold: 0.5}, heap: {threshold: 0.5}}
routes:
  - {match: [/, "v1/", "GET example.org/{x}", "/v4/{$}"], upstream: app}
  - {match: ["/v2/*", "^/v3/.+$"], upstream: app}
  - {match: [/v5], gates: [forgotten, shed], upstream: app}
  - {match: [/v6], gates: [busy], upstream: third}
  - {match: [/v7], gates: [busy], upstream: app}
admin: {address: ":9090"}
`))
	if err != nil {
		t.Fatal(err)
	}
	notes := strings.Join(cfg.Notes(), "\n")
	for _, want := range []string{"no route uses the gate unused", "the gate early sheds by the load of unused", "upstream spare", "identity.priority names no header", "routes[2] (/v5) ends with the gate shed, in which nothing waits", "no gate goes by the signal memory", "admin.address :9090", "routes[4] only tries the gate busy, at which the work of routes[3] waits", "identity.user comes from the path", "the gate each has a limit for each name in the path",
		"routes[0] (v1/) matches requests to the host v1 only", "routes[1] (/v2/*) has a sign", "routes[1] (^/v3/.+$) has a sign"} {
		if !strings.Contains(notes, want) {
			t.Errorf("the notes lack %q:\n%s", want, notes)
		}
	}
	if strings.Contains(notes, "example.org") || strings.Contains(notes, "v4") {
		t.Errorf("a host with a dot and the end of a path are patterns as meant:\n%s", notes)
	}
	if strings.Contains(notes, "the gate theirs has") {
		t.Errorf("no client chooses its tenant:\n%s", notes)
	}
	if strings.Contains(notes, "the gate late sheds") {
		t.Errorf("thresholds above 1 are as meant:\n%s", notes)
	}
	if strings.Contains(notes, "signal cpu") || strings.Contains(notes, "signal heap") {
		t.Errorf("gates go by the signals cpu and heap:\n%s", notes)
	}
	if strings.Contains(notes, "passes no gate") {
		t.Errorf("the upstream has a limit:\n%s", notes)
	}
	cfg, err = config.Parse("starter.yaml", config.Starter)
	if err != nil {
		t.Fatal(err)
	}
	if notes := cfg.Notes(); len(notes) > 0 {
		t.Errorf("notes on the starter: %v", notes)
	}
}
