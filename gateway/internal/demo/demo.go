// Package demo shows what admission control is for, on one machine and within half a minute. It has
// a small upstream of known capacity, the gateway in front of it, and an open-loop load that rises
// to three times that capacity. The same load goes through the same gateway to a second upstream of
// the same kind. There the gate is off, so the only difference is the gate.
//
// Its figures are honest. Every request counts from the moment it was due. Each second's account is
// closed before it is shown. A second in which the generator was late counts for neither side. If
// the machine is too busy for some seconds, the demo ends with the same load in virtual time.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"time"

	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/gateway/internal/server"
	"github.com/weir-go/weir/internal/loadgen"
	"github.com/weir-go/weir/policy"
)

// Bounds and defaults of the load.
const (
	DefaultCapacity = 320 // requests a second
	MinCapacity     = 40
	MaxCapacity     = 1000
	DefaultDuration = 25 * time.Second
	MinDuration     = 5 * time.Second
	MaxDuration     = 5 * time.Minute

	DefaultListen = "127.0.0.1:8080"
	DefaultAdmin  = "127.0.0.1:8090"
)

// patience is when a client leaves, and so when an answer stops being useful.
const patience = 500 * time.Millisecond

// closeAfter is how long after its last client's patience the account of a second closes.
const closeAfter = 20 * time.Millisecond

// Options are the settings of a demo.
type Options struct {
	// Capacity of the upstream in requests a second. Default DefaultCapacity.
	Capacity float64
	// Duration of the load, rounded down to whole seconds for each of its five
	// steps. Default DefaultDuration.
	Duration time.Duration
	// Once ends the demo with its load, instead of keeping the gateway running.
	Once bool
	// Listen and Admin are the gateway's addresses. Empty means the defaults,
	// or any free port where those are taken.
	Listen, Admin string
	// Out is where the demo talks to its user.
	Out io.Writer
	// Terminal says that Out can be redrawn in place.
	Terminal bool
	// Color says that the picture may have colours.
	Color bool
	// Logger is where the gateways log. Default: nowhere.
	Logger *slog.Logger
}

func (o *Options) setDefaults() error {
	if o.Capacity == 0 {
		o.Capacity = DefaultCapacity
	}
	if o.Duration == 0 {
		o.Duration = DefaultDuration
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	var errs []error
	if !(o.Capacity >= MinCapacity && o.Capacity <= MaxCapacity) {
		errs = append(errs, fmt.Errorf("capacity %v: must be from %d to %d requests a second, so that the upstream and not this machine is the bottleneck",
			o.Capacity, MinCapacity, MaxCapacity))
	}
	if o.Duration < MinDuration || o.Duration > MaxDuration {
		errs = append(errs, fmt.Errorf("duration %v: must be from %v to %v", o.Duration, MinDuration, MaxDuration))
	}
	if len(errs) > 0 {
		return OptionsError{errors.Join(errs...)}
	}
	return nil
}

// OptionsError is the error of [Run] for options that are out of range.
type OptionsError struct{ error }

// step is how long each step of the load lasts.
func (o *Options) step() time.Duration {
	return (o.Duration / time.Duration(len(steps))).Truncate(time.Second)
}

// Run starts upstreams and gateways, sends the load, shows what becomes of it,
// and then keeps the gateways running until ctx ends. It returns nil when ctx
// ends, at whatever point.
func Run(ctx context.Context, o Options) error {
	if err := o.setDefaults(); err != nil {
		return err
	}
	with, without, err := startLanes(&o)
	if err != nil {
		return err
	}
	defer without.stop()
	defer with.stop()

	introduce(&o, with, without)
	account, err := load(ctx, &o, with, without)
	if err != nil || ctx.Err() != nil {
		return err
	}
	if err := o.conclude(ctx, account); err != nil {
		return err
	}
	if o.Once {
		return nil
	}
	fmt.Fprintf(o.Out, "\nThe load has ended. The gateway is still at %s; Ctrl-C stops it.\n", with.url())
	select {
	case <-ctx.Done():
		return nil
	case <-with.ended:
		return errors.Join(errors.New("the gateway stopped by itself"), with.err)
	}
}

// conclude ends the story with what was measured. What a busy machine could not show follows in
// virtual time.
func (o *Options) conclude(ctx context.Context, a *account) error {
	text := a.conclusion()
	if !o.Terminal { // where it is on the screen already
		text = "\n" + a.wave() + text
	}
	void, _ := a.voided()
	if void > 0 {
		text += fmt.Sprintf("Try again when the machine is idle, or with less: weir demo --capacity %.0f\n", max(MinCapacity, o.Capacity/2))
	}
	if verdict := a.verdict(a.figures(), ""); verdict != "" {
		text += "\n" + verdict
	}
	if void > 0 {
		simulated, err := o.simulated(ctx, a)
		if err != nil {
			return err
		}
		text += "\nSIMULATED: the same load in virtual time, with the same gate before an upstream of the same capacity:\n\n" +
			table(simulated) + "\n" + a.verdict(simulated, ", simulated")
	}
	_, err := io.WriteString(o.Out, text)
	return err
}

// load sends the same load down both lanes and shows each second when it is
// over for good.
func load(ctx context.Context, o *Options, with, without *lane) (*account, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := with.load(ctx, o); err != nil {
		return nil, err
	}
	if err := without.load(ctx, o); err != nil {
		return nil, err
	}
	begin := time.Now()
	account := newAccount(o.Capacity, patience)
	account.lasts, account.color = with.meter.Seconds(), o.Color
	screen := newScreen(o, account)
	for i := range with.meter.Seconds() {
		// The last one that was due in this second gives up this much later.
		final := begin.Add(time.Duration(i+1)*time.Second + patience + closeAfter)
		if loadgen.Pause(ctx, time.Until(final)) != nil {
			break
		}
		step := int(time.Duration(i) * time.Second / o.step())
		s := second{
			step:    step,
			due:     steps[step] * o.Capacity,
			limit:   with.limit(),
			with:    with.meter.Second(i),
			without: without.meter.Second(i),
		}
		account.add(&s)
		screen.show(i+1, &s)
	}
	cancel()
	<-with.meter.Done()
	<-without.meter.Done()
	return account, nil
}

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
	cfg, err := o.configure(up.url(), listen)
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

// configure returns the gateway's defaults for one upstream, and what a user would add: how long
// clients wait. That also bounds the wait in the room. The gateway finds the limit by itself.
func (o *Options) configure(upstream, listen string) (*config.Config, error) {
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
