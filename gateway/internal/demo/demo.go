// Package demo shows what admission control is for, on one machine and within
// half a minute: a small upstream of known capacity, the gateway in front of it,
// and an open-loop load that rises to three times that capacity. The same load
// goes to a second upstream of the same kind through the same gateway with its
// gate off, so that the only difference is the gate.
//
// It is honest about itself. Every request counts from the moment it was due;
// each second's account is closed before it is shown; and a second in which the
// generator was late counts for neither side.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"
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
	DefaultAdmin  = "127.0.0.1:9090"
)

// patience is when a client leaves, and so when an answer stops being useful.
const patience = 500 * time.Millisecond

// settling is how long after the last client's patience a second's account is
// taken for closed.
const settling = 20 * time.Millisecond

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
	return errors.Join(errs...)
}

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
	fmt.Fprint(o.Out, account.conclusion())
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
	screen := newScreen(o, account)
	for i := range with.meter.Seconds() {
		// The last one that was due in this second gives up this much later.
		final := begin.Add(time.Duration(i+1)*time.Second + patience + settling)
		if !wait(ctx, time.Until(final)) {
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
