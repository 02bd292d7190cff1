package server

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-go/weir/gateway/internal/config"
)

// A signal that reads Kafka lives on over a reload that leaves its settings alone, and is replaced by
// one that does not.
func TestLagsOverReloads(t *testing.T) {
	open := func(group string, prev lags) lags {
		t.Helper()
		cfg, err := config.Parse(filepath.Join(t.TempDir(), "weir.yaml"), []byte(strings.ReplaceAll(`
upstreams: {app: {targets: [http://127.0.0.1:3000]}}
kafka: {main: {bootstrap: ["127.0.0.1:1"]}}
signals:
  kept: {read: kafka_lag, cluster: main, group: g, topics: [a]}
  changed: {read: kafka_lag, cluster: main, group: GROUP, topics: [a]}
gates:
  one: {limit: {controller: lag, lag: {signal: kept}}}
  two: {limit: {controller: lag, lag: {signal: changed}}}
routes: [{match: [/], gates: [one, two], upstream: app}]
`, "GROUP", group)))
		if err != nil {
			t.Fatal(err)
		}
		all, err := openLags(cfg, prev)
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	first := open("g1", nil)
	second := open("g2", first)
	if second["kept"] != first["kept"] || second["changed"] == first["changed"] {
		t.Errorf("kept %v, changed %v", second["kept"] == first["kept"], second["changed"] != first["changed"])
	}
	if got := second.signals(); len(got) != 2 || got["kept"].Name() != "kept" {
		t.Errorf("the policy gets %v", got)
	}
	first.closeBut(second)
	first.closeBut(nil) // the end of the server, before the reload's delay is over
	second.closeBut(nil)
}
