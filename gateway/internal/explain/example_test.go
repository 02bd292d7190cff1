package explain_test

import (
	"fmt"
	"os"

	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/gateway/internal/explain"
)

func ExampleOffline() {
	cfg, err := config.Parse("weir.yaml", []byte(`
upstreams: {app: {targets: ["http://127.0.0.1:3000"]}}
gates: {api: {quota: {rate: 10/s, burst: 20, by: [user]}}}
routes: [{match: [/], gates: [api], upstream: app}]
`))
	if err != nil {
		fmt.Println(err)
		return
	}
	a, err := explain.Offline(cfg, explain.Ask{Path: "/cart", User: "alice", From: "192.0.2.7"})
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := a.Print(os.Stdout, func(name string) string { return name }); err != nil {
		fmt.Println(err)
	}
	// Output:
	// GET /cart
	// route     / to app
	// user      alice
	// client    -
	// tenant    -
	// priority  normal
	// cost      1
	// headers   not believed: the address is not trusted
	//
	// GATE  KIND   MODE     RULE    BUCKET          LIMITS          SAYS    WHY
	// api   quota  enforce  user=*  api/user=alice  10/s, burst 20  passes  20 of 20 left
	//
	// GATE  RULE THAT MATCHES  GIVES           FROM         COUNTS
	// api   user=*             10/s, burst 20  weir.yaml:3  yes: no other matches
	//
	// Goes to the upstream.
	// Judged by the configuration file alone, as if just started: every bucket is full.
	// For what is left now ask the gateway: --admin 127.0.0.1:8090 in place of --config.
}
