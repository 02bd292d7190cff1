package live

import (
	"context"
	"fmt"
	"strings"

	"github.com/weir-go/weir/bench/internal/rig"
	"github.com/weir-go/weir/internal/testbed/cores"
)

// The guards that have an Envoy in them: it asks the gateway, or its own filter finds a limit.
const (
	guardAsked = "weir behind Envoy"
	guardEnvoy = "Envoy"
)

// startEnvoy starts an Envoy before upstream, on the core under test. It asks the gateway at an address, or has its own
// filter where that is empty.
func (r *runner) startEnvoy(ctx context.Context, addr, upstream, gateway string) (*process, error) {
	var e rig.Envoy
	e.Cluster("service", strings.TrimPrefix(upstream, "http://"), false)
	filter := rig.EnvoyConcurrency
	if gateway != "" {
		e.Cluster("weir", gateway, true)
		filter = rig.EnvoyAsks("weir")
	}
	e.Listen("clients", addr, filter)
	p := &process{name: "envoy", addr: addr}
	err := cores.Pinned(r.test, func() (err error) {
		p.Process, err = e.Start(ctx, r.plan.Envoy, addr)
		return err
	})
	if err != nil {
		return nil, err
	}
	return p, nil
}

// startAsked starts an Envoy and a gateway that it asks, which has the configuration for its address. Both are on the
// core under test.
func (r *runner) startAsked(ctx context.Context, addr, admin, upstream string, config func(listen string) string) (*process, error) {
	listen, err := rig.Ports.Addr()
	if err != nil {
		return nil, err
	}
	gateway, err := startWeir(ctx, r.test, r.plan.Weir, listen, admin, config(listen))
	if err != nil {
		return nil, err
	}
	p, err := r.startEnvoy(ctx, addr, upstream, listen)
	if err != nil {
		gateway.stop()
		return nil, err
	}
	p.beside, p.limits = gateway, gateway.limits
	return p, nil
}

// askedConfig does for an Envoy what `weir run --upstream URL` does by itself.
func askedConfig(listen, admin string) string {
	return fmt.Sprintf(`listeners: [{address: "%s", serve: [ext_proc]}]
admin: {address: "%s"}
gates: {all: {limit: {}}}
routes: [{match: [/], gates: [all]}]
`, listen, admin)
}
