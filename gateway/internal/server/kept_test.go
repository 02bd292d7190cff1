package server

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-go/weir/gateway/internal/config"
)

// A signal that reads Kafka lives on over a reload that leaves its settings alone, also one that changes what clients
// of the cluster see. Another reload replaces it.
func TestLagsOverReloads(t *testing.T) {
	open := func(group, port string, prev lags) lags {
		t.Helper()
		cfg, err := config.Parse(filepath.Join(t.TempDir(), "weir.yaml"), []byte(strings.NewReplacer("GROUP", group, "PORT", port).Replace(`
upstreams: {app: {targets: [http://127.0.0.1:3000]}}
kafka: {main: {bootstrap: ["127.0.0.1:1"], listen: {address: "127.0.0.1:PORT"}, nodes: {ports: 9100-9110, advertise: localhost}, quotas: {max_throttle: 5s}}}
signals:
  kept: {read: kafka_lag, cluster: main, group: g, topics: [a]}
  changed: {read: kafka_lag, cluster: main, group: GROUP, topics: [a]}
gates:
  one: {limit: {controller: lag, lag: {signal: kept}}}
  two: {limit: {controller: lag, lag: {signal: changed}}}
routes: [{match: [/], gates: [one, two], upstream: app}]
`)))
		if err != nil {
			t.Fatal(err)
		}
		all, err := openLags(cfg, prev)
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	first := open("g1", "19092", nil)
	second := open("g2", "29092", first)
	if second["kept"] != first["kept"] || second["changed"] == first["changed"] {
		t.Errorf("kept %v, changed %v", second["kept"] == first["kept"], second["changed"] != first["changed"])
	}
	if got := lagSignals(second); len(got) != 2 || got["kept"].Name() != "kept" {
		t.Errorf("the policy gets %v", got)
	}
	first.closeBut(second)
	first.closeBut(nil) // the end of the server, before the reload's delay is over
	second.closeBut(nil)
}
