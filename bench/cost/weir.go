package cost

import (
	"context"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/limit"
)

// weirLoop sets up a limiter and the loop that uses it. controller nil means a
// fixed limit of n. The wait room and all else are the defaults.
func weirLoop(n int64, controller func() (control.Controller, error), use func(*limit.Limiter) Loop) func() (Loop, func(), error) {
	return func() (Loop, func(), error) {
		cfg := limit.Config{Name: "bench", Limit: n}
		if controller != nil {
			c, err := controller()
			if err != nil {
				return nil, nil, err
			}
			cfg.Controller = c
		}
		l, err := limit.New(cfg)
		if err != nil {
			return nil, nil, err
		}
		return use(l), l.Close, nil
	}
}

// cancellable is weirLoop with a context that could be cancelled, as that of
// every HTTP request can.
func cancellable(n int64, controller func() (control.Controller, error), use func(context.Context) func(*limit.Limiter) Loop) func() (Loop, func(), error) {
	return func() (Loop, func(), error) {
		ctx, cancel := context.WithCancel(context.Background())
		loop, stop, err := weirLoop(n, controller, use(ctx))()
		if err != nil {
			cancel()
			return nil, nil, err
		}
		return loop, func() { stop(); cancel() }, nil
	}
}

func aimd() (control.Controller, error) { return control.NewAIMD(control.AIMDConfig{}) }

func tryAdmit(l *limit.Limiter) Loop {
	return func(n int) error {
		for range n {
			p, err := l.TryAdmit(weir.Work{})
			if err != nil {
				return err
			}
			p.Done(weir.OK)
		}
		return nil
	}
}

// tryAdmitHolding ends the oldest of eight permits with each new one, as a
// server does whose work overlaps: the slot just given back is never the one
// just taken.
func tryAdmitHolding(l *limit.Limiter) Loop {
	return func(n int) (err error) {
		var held [8]weir.Permit
		for i := range n {
			held[i%len(held)].Done(weir.OK)
			if held[i%len(held)], err = l.TryAdmit(weir.Work{}); err != nil {
				break
			}
		}
		for _, p := range held {
			p.Done(weir.OK)
		}
		return err
	}
}

// named is work that says whose it is and how important.
var named = weir.Work{Op: "GET /reports", User: "alice@example.com", Tenant: "acme", Priority: weir.High}

func admit(ctx context.Context) func(*limit.Limiter) Loop { return admitWork(ctx, weir.Work{}) }

func admitWork(ctx context.Context, w weir.Work) func(*limit.Limiter) Loop {
	return func(l *limit.Limiter) Loop {
		return func(n int) error {
			for range n {
				p, err := l.Admit(ctx, w)
				if err != nil {
					return err
				}
				p.Done(weir.OK)
			}
			return nil
		}
	}
}

// weirFull sets up a limiter whose only slot is taken and where nothing waits.
func weirFull(use func(*limit.Limiter) Loop) func() (Loop, func(), error) {
	return func() (Loop, func(), error) {
		l, err := limit.New(limit.Config{Name: "bench", Limit: 1, Queue: limit.Queue{Len: -1}})
		if err != nil {
			return nil, nil, err
		}
		p, err := l.TryAdmit(weir.Work{})
		if err != nil {
			return nil, nil, err
		}
		return use(l), func() { p.Done(weir.OK); l.Close() }, nil
	}
}

func refusedTry(l *limit.Limiter) Loop {
	return func(n int) error {
		for range n {
			if _, err := l.TryAdmit(weir.Work{}); err == nil {
				return errTaken
			}
		}
		return nil
	}
}

func refusedAdmit(l *limit.Limiter) Loop {
	ctx := context.Background()
	return func(n int) error {
		for range n {
			if _, err := l.Admit(ctx, weir.Work{}); err == nil {
				return errTaken
			}
		}
		return nil
	}
}

func passOn(ctx context.Context) func(*limit.Limiter) Loop { return passOnWork(ctx, weir.Work{}) }

func passOnWork(ctx context.Context, w weir.Work) func(*limit.Limiter) Loop {
	return func(l *limit.Limiter) Loop {
		var held weir.Permit // by whoever has the slot
		return between(func() error {
			p, err := l.Admit(ctx, w)
			if err == nil {
				held = p
			}
			return err
		}, func() { held.Done(weir.OK) })
	}
}
