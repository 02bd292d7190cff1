package config_test

import (
	"fmt"

	"github.com/weir-go/weir/gateway/internal/config"
)

// A file with several mistakes gets all of them back at once, each with its
// place and what to write instead.
func ExampleParse() {
	_, err := config.Parse("weir.yaml", []byte(`
upstreams:
  app:
    targets: [127.0.0.1:3000]
gates:
  api:
    limit: {controller: aimd, min: 50, max: 10, window: 1}
routes:
  - match: [/]
    gates: [apo]
    upstreem: app
`))
	fmt.Println(err)
	// Output:
	// weir.yaml:4:15: upstreams.app.targets[0]: "127.0.0.1:3000" is not an http, https, h2c or unix URL; write http://127.0.0.1:3000
	// weir.yaml:7:36: gates.api.limit.min: 50 is above max (10); write a min that is not above max, or a higher max
	// weir.yaml:7:57: gates.api.limit.window: 1 has no unit; write 1ms, 1s or 1m
	// weir.yaml:10:13: routes[0].gates[0]: there is no gate "apo"; did you mean api?
	// weir.yaml:11:5: routes[0].upstreem: there is no such field; write upstream
}

// Without a file, one upstream is guarded with everything at its default.
func ExampleForUpstream() {
	cfg, err := config.ForUpstream("http://127.0.0.1:3000", "", 32)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(cfg.Listeners[0].Address, cfg.Routes[0].Match, cfg.Gates["upstream"].Limit.Limit)
	// Output: 127.0.0.1:8080 [/] 32
}
