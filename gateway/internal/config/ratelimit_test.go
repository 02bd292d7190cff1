package config_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weir-go/weir/gateway/internal/config"
)

// The files of the rate limit service are read with the configuration, a folder as a whole, and
// every fault names its own file.
func TestRateLimitFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	parse := func(text string) (*config.Config, error) {
		return config.Parse(filepath.Join(dir, "weir.yaml"), []byte("listeners: [{address: \"127.0.0.1:8091\", serve: [ratelimit]}]\nroutes: []\n"+text))
	}
	write("one.yaml", "domain: a\ndescriptors:\n- {key: k, rate_limit: {unit: second, requests_per_unit: 5}}")
	write("more/b.yml", "domain: b\ndescriptors:\n\n- {key: k, rate_limit: {unit: second, requests_per_unit: 5}}")
	write("more/..hidden.yaml", "nonsense")
	write("more/notes.txt", "nonsense")
	cfg, err := parse("rate_limit_service: {files: [one.yaml, more], debt: [b]}")
	if err != nil {
		t.Fatal(err)
	}
	if g := cfg.Policy().Gates; len(g) != 2 || len(g["a"].Quota.Rules) != 1 || !cfg.IsDomain("b") || cfg.IsDomain("c") {
		t.Errorf("%+v", g)
	}
	if at := cfg.QuotaPlace("b", "rules[0]"); at != filepath.Join("more", "b.yml")+":4" {
		t.Errorf("the rule is at %q", at)
	}
	if files := cfg.RateLimitFiles(); !slices.Equal(files, []string{filepath.Join(dir, "one.yaml"), filepath.Join(dir, "more"), filepath.Join(dir, "more", "b.yml")}) {
		t.Errorf("%q", files)
	}
	write("one.yaml", "domain: a\ndescriptors:\n- {key: k, rate_limit: {unit: second, requests_per_unit: 6}}")
	next, err := parse("rate_limit_service: {files: [one.yaml, more], debt: [b]}")
	if err != nil {
		t.Fatal(err)
	}
	if changes := next.Changes(cfg); len(changes) != 1 || !strings.Contains(changes[0], "6/s (was 5/s)") {
		t.Errorf("%q", changes)
	}
	write("one.yaml", "domain: a\ndescriptors:\n- {key: k, shadow_mode: true, rate_limit: {name: n, unit: second, requests_per_unit: 6}}")
	modes, err := parse("rate_limit_service: {files: [one.yaml, more], debt: [b]}")
	if err != nil {
		t.Fatal(err)
	}
	if changes := modes.Changes(next); len(changes) != 1 || !strings.Contains(changes[0], "6/s, shadow_mode, name n (was 6/s)") {
		t.Errorf("%q", changes)
	}

	write("more/b.yml", "domain: b\ndescriptors:\n- {key: k, rate_limit: {unit: eon}}\n- {kye: x}")
	write("more/empty.yaml", "# nothing\n")
	_, err = parse("gates: {a: {limit: 1}}\nrate_limit_service: {files: [one.yaml, more, gone.yaml], debt: [c], store: shared}")
	if err == nil {
		t.Fatal("no fault is found")
	}
	for _, want := range []string{
		"weir.yaml:3:", "gates.a: the files of rate_limit_service have a domain of this name", "files[2]: cannot be read", "debt[0]: there is no domain \"c\"",
		"rate_limit_service.store: there is no store \"shared\"", "more/b.yml:3:", "\"eon\" is not a unit", "more/b.yml:4:", "kye: there is no such field; write key",
		"more/empty.yaml:1:1: the file says nothing; write domain: and descriptors:",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in\n%v", want, err)
		}
	}
	write("half.yaml", "domain: d\ndescriptors:\n- {key: k, rate_limit: {unlimited: true, unit: second}}")
	if _, err := parse("rate_limit_service: {files: [half.yaml]}"); err == nil || !strings.HasPrefix(err.Error(), "half.yaml:3:") || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v, want the one fault of the file", err)
	}
	write("weir.yaml", "listeners: []")
	if _, err := parse("rate_limit_service: {files: [.]}"); err == nil || !strings.Contains(err.Error(), "weir.yaml:1:1: domain: is missing") {
		t.Errorf("a folder with another file: %v", err)
	}
}

// A rate limit service without a limit would say OK to everybody, and nobody would notice. Without a domain that is a
// fault. Files that have no limit left are as they are in envoyproxy/ratelimit: there is a warning.
func TestRateLimitWithoutLimits(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"bare.yaml": "domain: a\n", "none.yaml": "domain: b\ndescriptors: [{key: k}]\n",
		"five.yaml": "domain: c\ndescriptors: [{key: k, rate_limit: {unit: second, requests_per_unit: 5}}]\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const noDomain = "weir.yaml:2:59: listeners[0].serve[1]: there is no domain, so every Envoy that asks would hear OK; write rate_limit_service: {files: [limits.yaml]}"
	const noLimit = "weir.yaml:3:22: warning: rate_limit_service.files have no limit, so every Envoy that asks hears OK"
	const notServed = "weir.yaml:3:22: warning: rate_limit_service.files limit nothing, because no listener serves ratelimit; write serve: [ratelimit] at one"
	for _, tt := range []struct{ serve, text, fault, warning string }{
		{"[ext_proc, ratelimit]", "", noDomain, ""},
		{"[ext_proc, ratelimit]", "rate_limit_service: {headers: true}\n", noDomain, ""},
		{"[ext_proc, ratelimit]", "gates: {api: {quota: {rate: 10/s}}}\n", noDomain, ""},
		{"[ext_proc]", "", "", ""},
		{"[ratelimit]", "gates: {api: {quota: {rules: [{descriptor: \"plan=*\", rate: 1/s}]}}}\n", "", ""},
		{"[ratelimit]", "rate_limit_service: {files: [five.yaml, bare.yaml]}\n", "", ""},
		{"[ratelimit]", "rate_limit_service: {files: [bare.yaml, none.yaml]}\n", "", noLimit},
		{"[ext_proc]", "rate_limit_service: {files: [bare.yaml]}\n", "", notServed},
		{"[ratelimit]", "rate_limit_service: {files: [gone.yaml]}\n", "weir.yaml:3:30: rate_limit_service.files[0]: cannot be read", ""},
		{"[ratelimit]", "rate_limit_service: {flies: [five.yaml]}\n", "weir.yaml:3:22: rate_limit_service.flies: there is no such field", ""},
		{"[ratelimit]", "gates: {api: {quota: {rules: [{descriptor: 7, rate: often}]}}}\n", "rate: \"often\" is not a limit", ""},
	} {
		cfg, err := config.Parse(filepath.Join(dir, "weir.yaml"), []byte("routes: [{match: [/]}]\nlisteners: [{address: \"127.0.0.1:8091\", serve: "+tt.serve+"}]\n"+tt.text))
		switch {
		case err == nil && tt.fault != "", err != nil && (tt.fault == "" || !strings.Contains(err.Error(), tt.fault)):
			t.Errorf("%s %s: %v, want %q", tt.serve, tt.text, err, tt.fault)
		case err != nil && tt.fault != noDomain && strings.Contains(err.Error(), "no domain"):
			t.Errorf("%s %s: a fault because of another\n%v", tt.serve, tt.text, err)
		case err != nil:
		case tt.warning != "" != strings.Contains(lines(cfg.Notes()), "rate_limit_service.files") || !strings.Contains(lines(cfg.Notes()), tt.warning):
			t.Errorf("%s %s: notes %s, want %q", tt.serve, tt.text, lines(cfg.Notes()), tt.warning)
		}
	}
}
