package demo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/gateway/internal/loadgen"
	"github.com/weir-go/weir/gateway/internal/server"
	"github.com/weir-go/weir/policy"
)

// lane is one side of the demo: load, gateway, upstream.
type lane struct {
	upstream *upstream
	gateway  *server.Server
	cancel   context.CancelFunc
	ended    chan struct{} // closed when the gateway has ended
	err      error         // why; set before that

	meter     *loadgen.Meter
	closeIdle func()
}

// gateName is the gate that config.ForUpstream puts before its upstream.
const gateName = "upstream"

// startLanes starts both sides. The second has its gate off and, having no
// slots, gives the upstream's connection up with its client, as any plain proxy
// does. All else is the same.
func startLanes(o *Options) (with, without *lane, err error) {
	with, err = startLane(o, func(c *config.Config) {
		c.Admin.Address = prefer(o.Admin, DefaultAdmin)
	}, prefer(o.Listen, DefaultListen))
	if err != nil {
		return nil, nil, err
	}
	without, err = startLane(o, func(c *config.Config) {
		c.Admin.Address = config.Off
		gate := c.Gates[gateName]
		gate.Mode = policy.Off
		c.Gates[gateName] = gate
		plain := c.Upstreams[gateName]
		plain.OnAbandon = config.Release
		c.Upstreams[gateName] = plain
	}, "127.0.0.1:0")
	if err != nil {
		with.stop()
		return nil, nil, err
	}
	return with, without, nil
}

func startLane(o *Options, change func(*config.Config), listen string) (*lane, error) {
	up, err := startUpstream(o.Capacity, 1)
	if err != nil {
		return nil, fmt.Errorf("the demo's upstream: %w", err)
	}
	l := &lane{upstream: up, ended: make(chan struct{})}
	cfg, err := configure(o, up.url(), listen)
	if err == nil {
		change(cfg)
		l.gateway, err = server.New(cfg, server.Options{Logger: o.Logger})
	}
	if err != nil {
		return nil, errors.Join(err, up.close())
	}
	ctx, cancel := context.WithCancel(context.Background())
	l.cancel = cancel
	go func() {
		defer close(l.ended)
		l.err = l.gateway.Run(ctx)
	}()
	return l, nil
}

// configure returns the gateway's defaults for one upstream, with what its user
// would have told it: how long clients wait, and so how long they may be kept in
// the wait room. The limit it finds by itself.
func configure(o *Options, upstream, listen string) (*config.Config, error) {
	cfg, err := config.ForUpstream(upstream, listen, 0)
	if err != nil {
		return nil, err
	}
	gate := cfg.Gates[gateName]
	gate.Limit.Queue = policy.QueueSpec{
		Len:     max(1, int(o.Capacity*patience.Seconds()/4)), // what fits into a quarter of their patience
		MaxWait: policy.Duration(patience / 4),
	}
	cfg.Gates[gateName] = gate
	cfg.Routes[0].Timeout = policy.Duration(patience)
	cfg.Shutdown = config.Shutdown{Grace: policy.Duration(time.Second)}
	return cfg, nil
}

// prefer returns the address the user asked for; without one, the usual address
// if it is free and any free port if not.
func prefer(asked, usual string) string {
	if asked != "" {
		return asked
	}
	ln, err := net.Listen("tcp", usual)
	if err != nil {
		return "127.0.0.1:0"
	}
	_ = ln.Close() // nothing was accepted, nothing can be lost
	return usual
}

func (l *lane) url() string { return "http://" + l.gateway.Addr().String() }

// load starts this side's load.
func (l *lane) load(ctx context.Context, o *Options) error {
	send, closeIdle, err := loadgen.GET(l.url() + "/")
	if err != nil {
		return err
	}
	var phases []loadgen.Phase
	for _, x := range steps {
		phases = append(phases, loadgen.Phase{Rate: x * o.Capacity, For: o.step()})
	}
	l.closeIdle = closeIdle
	l.meter, err = loadgen.Load{Phases: phases, Patience: patience, Seed: 1, Send: send}.Start(ctx)
	return err
}

// limit is the limit in force at the gate.
func (l *lane) limit() int64 { return l.gateway.Policy().Gate(gateName).Snapshot().Limit }

// stop ends the side, at the latest after the gateway's grace period.
func (l *lane) stop() {
	if l.closeIdle != nil {
		l.closeIdle()
	}
	l.cancel()
	<-l.ended
	_ = l.upstream.close() // it is the end of the demo either way
}
