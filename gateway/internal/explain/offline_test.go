package explain

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-go/weir/gateway/internal/config"
)

// What a file says is judged with the rules that were set at run time, where those are in
// a file; otherwise the answer says that it does not know them, and where to ask.
func TestOfflineWithRules(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	kept := write("q.json", `{"weir_quotas": 1, "rules": [
{"gate": "api", "user": "bob", "rate": "3/h", "set_at": "2026-01-02T03:04:05Z", "set_by": "me"},
{"gate": "api", "user": "*", "rate": "4/h"},
{"gate": "gone", "user": "bob", "rate": "9/h"}]}`)
	broken := write("broken.json", `{"weir_quotas": 1, "rules": [{"gate": "api", "user": "bob", "rte": "3/h"}]}`)
	const head = `upstreams: {app: {targets: ["http://127.0.0.1:3000"]}}
gates:
  api:
    quota: {rate: 10/s, burst: 20, by: [user]}
routes: [{match: [/], gates: [api], upstream: app}]
stores: {shared: {redis: "redis://127.0.0.1:1/0"}}
`
	f := func(extra, user, limits, from string, notes ...string) {
		t.Helper()
		cfg, err := config.Parse("weir.yaml", []byte(head+extra+"\n"))
		if err != nil {
			t.Fatal(err)
		}
		a, err := Offline(cfg, Ask{User: user})
		if err != nil {
			t.Fatal(err)
		}
		g := a.Gates[0]
		if strings.Join(g.Limits, "; ") != limits || g.Rules[0].From != from {
			t.Errorf("%s: %+v, want %s from %s", extra, g, limits, from)
		}
		for _, note := range notes {
			if !strings.Contains(strings.Join(a.Notes, "\n"), note) {
				t.Errorf("%s: %q, want %q", extra, a.Notes, note)
			}
		}
	}
	const ofFile = "weir.yaml:4"
	f("", "bob", "10/s, burst 20", ofFile, "by the configuration file alone, as if", "--admin 127.0.0.1:9090 in place of --config")
	f("quotas: {file: "+kept+"}", "bob", "3/h, burst 3", "set 2026-01-02T03:04:05Z by me", "set at run time in "+kept+" (3), 1 of which do not fit")
	f("quotas: {file: "+kept+"}", "carol", "4/h, burst 4", "set - by -, in the place of "+ofFile)
	f("quotas: {file: "+kept+"x}\nadmin: {socket: /run/s}", "bob", "10/s, burst 20", ofFile, "(0)", "--admin unix:/run/s in")
	f("quotas: {store: shared}\nadmin: {address: off}", "bob", "10/s, burst 20", ofFile, "without rules that were set at run time: they are in the store shared, which is not asked", "no admin listener")
	f("quotas: {file: "+broken+", start_broken: true}", "bob", "10/s, burst 20", ofFile, "without rules that were set at run time: "+broken+":1:")
	cfg, err := config.Parse("weir.yaml", []byte(head+"quotas: {file: "+broken+"}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Offline(cfg, Ask{}); err == nil || !strings.Contains(err.Error(), "no gateway would start with them: "+broken+":1:") {
		t.Errorf("%v", err)
	}
}
