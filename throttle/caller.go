package throttle

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/gate"
)

// Caller is the state that all calls of a process to other services share. For each target it has a budget for
// retries and a guard: a throttle or a breaker. Make one with [NewCaller]. It is safe for concurrent use.
//
// The parts stand in one order, outermost first:
//
//	the call → retry → budget → throttle or breaker → the client's own limit → an attempt
//
// So each attempt counts when it is sent, and a retry is charged before its back-off. A refusal by the client's
// own limit says nothing about the target. A call that this process refuses is no request in the budget.
type Caller struct {
	cfg    CallerConfig
	front  gate.Front
	random func() float64

	mu      sync.Mutex // guards what follows
	targets map[string]*target
	recent  target // the head of a ring of targets: recent.older is the newest, recent.newer the oldest
	evicted uint64
}

// target is the state of one target.
type target struct {
	name   string
	guard  guard // nil: none
	chain  weir.Gate
	budget *Budget

	newer, older *target
}

// guard is a Throttle or a Breaker.
type guard interface {
	weir.Gate
	weir.TryAdmitter
	weir.Snapshotter
}

// NewCaller makes a Caller. The error names every setting out of range.
func NewCaller(cfg CallerConfig) (*Caller, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	c := &Caller{cfg: cfg, random: cfg.Random, targets: map[string]*target{}}
	if c.random == nil {
		c.random = rand.Float64
	}
	c.front.Init(cfg.Name, cfg.Now)
	c.recent.newer, c.recent.older = &c.recent, &c.recent
	return c, nil
}

// Start begins a call to a target. safe says that the work is idempotent: it may be done twice. deadline is when
// the answer stops being useful; the zero time means never.
func (c *Caller) Start(name string, deadline time.Time, safe bool) Call {
	t := c.findOrAdd(name)
	call := Call{caller: c, target: t, safe: safe, deadline: -1}
	if !deadline.IsZero() {
		call.deadline = max(0, c.front.Deadline(c.front.Now(), deadline))
	}
	return call
}

// Do runs fn for a call to a target, and again if that is safe and can help. [AnswerOf] decides what an error
// means. Before each attempt the target's guard and the own limit admit w, whose Attempt is the attempt's
// number. Do returns nil, the error of the last attempt, or a [*weir.Rejection] if this process refused. The
// refusal of a retry also wraps the error of the attempt before. safe is as for [Caller.Start].
//
// If w has an earlier deadline than ctx, the context of fn ends then, and when Do returns. So read an answer to
// its end in fn. fn must make one call only. With two, a refusal of the second does not prove that the first
// has not begun, and neither does a failure to connect. Wrap such an error by its text alone, or use Do for
// each call.
func (c *Caller) Do(ctx context.Context, name string, w weir.Work, safe bool, fn func(context.Context) error) error {
	w.Inherit(ctx)
	if at, ok := ctx.Deadline(); ok && (w.Deadline.IsZero() || !w.Deadline.Before(at)) {
		w.Deadline = at // also for the gates, which see no more of ctx than its end
	} else if !w.Deadline.IsZero() && c.cfg.Now == nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, w.Deadline)
		defer cancel()
	}
	call := c.Start(name, w.Deadline, safe)
	defer call.End()
	var before error // that of the attempt before
	for {
		w.Attempt = call.Attempt()
		answer, err := call.do(ctx, w, fn)
		if err == nil {
			return nil
		}
		if !call.sent && before != nil {
			return fmt.Errorf("%w; attempt %d: %w", err, w.Attempt, before)
		}
		if ctx.Err() != nil {
			return err
		}
		if wait, stop := call.Decide(answer); stop != Again || call.Wait(ctx, wait) != nil {
			return err
		}
		before = err
	}
}

// do is [weir.Do] for one attempt, with other outcomes for the gates. A refusal by a quota of the target is no
// overload, and a target that cannot be reached is one.
func (c *Call) do(ctx context.Context, w weir.Work, fn func(context.Context) error) (Answer, error) {
	p, err := c.Gate().Admit(ctx, w)
	if err != nil {
		return Answer{}, err
	}
	defer p.Done(weir.NoSample) // counts only after a panic; otherwise the permit is done already
	c.Sent()
	if err = fn(weir.WithPermit(ctx, c.Gate(), p)); err == nil {
		p.Done(weir.OK)
		return Answer{}, nil
	}
	a := AnswerOf(err)
	switch ctx.Err() {
	case context.Canceled:
		a.Outcome = weir.Abandoned
	case context.DeadlineExceeded:
		a.Outcome = weir.Overload
	}
	p.Done(a.Outcome)
	return a, err
}

// longestTarget is how much of a target's name is kept, in bytes. A host has at most 253, but strangers may name any.
const longestTarget = 300

// findOrAdd returns a target. For a new target it makes room.
func (c *Caller) findOrAdd(name string) *target {
	name = name[:min(len(name), longestTarget)]
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.targets[name]
	switch {
	case t != nil && c.recent.older == t:
		return t
	case t != nil:
		t.unlink()
	default:
		if len(c.targets) >= c.cfg.Targets {
			oldest := c.recent.newer // in the ring, the oldest target stands before the head
			oldest.unlink()
			delete(c.targets, oldest.name)
			c.evicted++
		}
		name = strings.Clone(name) // name may be part of a large string
		t = c.newTarget(name)
		c.targets[name] = t
	}
	t.newer, t.older = &c.recent, c.recent.older
	t.older.newer, c.recent.older = t, t
	return t
}

func (t *target) unlink() {
	t.newer.older, t.older.newer = t.older, t.newer
}

func (c *Caller) newTarget(name string) *target {
	t := &target{name: name, budget: &Budget{now: c.front.Now, core: newBudget(&c.cfg.Budget)}}
	gateName := strings.TrimPrefix(c.cfg.Name+":"+name, ":")
	switch c.cfg.Guard {
	case GuardThrottle:
		cfg := c.cfg.Throttle
		cfg.Name, cfg.Hooks, cfg.Random, cfg.Now = gateName, c.cfg.Hooks, c.random, c.cfg.Now
		t.guard = newThrottle(&cfg)
	case GuardBreaker:
		cfg := c.cfg.Breaker
		cfg.Name, cfg.Hooks, cfg.Now = gateName, c.cfg.Hooks, c.cfg.Now
		t.guard = newBreakerGate(&cfg)
	}
	switch {
	case t.guard == nil && c.cfg.Limit == nil:
		t.chain = weir.All()
	case t.guard == nil:
		t.chain = c.cfg.Limit
	case c.cfg.Limit == nil:
		t.chain = t.guard
	default:
		t.chain = weir.All(t.guard, c.cfg.Limit)
	}
	return t
}

// TargetStatus is the state of one target of a [Caller].
type TargetStatus struct {
	// Target is its name.
	Target string `json:"target"`
	// Guard is its throttle or breaker. It is the zero Snapshot if there is none.
	Guard weir.Snapshot `json:"guard"`
	// RetriesLeft is how many more retries its budget allows now.
	RetriesLeft int `json:"retries_left"`
}

// Targets returns the status of each target, the most recently called first.
func (c *Caller) Targets() []TargetStatus {
	var list []*target
	c.mu.Lock()
	for t := c.recent.older; t != &c.recent; t = t.older {
		list = append(list, t)
	}
	c.mu.Unlock()
	all := make([]TargetStatus, 0, len(list))
	for _, t := range list {
		s := TargetStatus{Target: t.name, RetriesLeft: t.budget.Left()}
		if t.guard != nil {
			s.Guard = t.guard.Snapshot()
		}
		all = append(all, s)
	}
	return slices.Clip(all)
}

// Evicted returns how many targets were evicted to make room for others.
func (c *Caller) Evicted() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.evicted
}

// Call is one call to a target with all its attempts. It is for one goroutine at a time. Call Sent when an
// attempt is sent. If an attempt did not succeed, call Decide, and then Wait or a wait of your own. Call End at
// the end.
type Call struct {
	caller   *Caller
	target   *target
	deadline time.Duration // on the caller's clock; -1: none
	attempt  int
	safe     bool
	sent     bool   // the present attempt
	charge   Charge // of the present attempt, until it is sent
}

// Gate returns the gate of each attempt: the target's guard, and then the client's own limit.
func (c *Call) Gate() weir.Gate { return c.target.chain }

// Attempt returns the number of the present attempt, 0 first.
func (c *Call) Attempt() int { return c.attempt }

// Sent says that the present attempt was sent. The first attempt counts as a request in the target's budget. A
// later one stays charged from then on.
func (c *Call) Sent() {
	if c.attempt == 0 && !c.sent {
		c.target.budget.Request()
	}
	c.sent, c.charge = true, Charge{}
}

// Decide decides what follows an attempt that did not succeed. With [Again] there is another attempt after the
// wait. It is charged already, and End refunds the charge if Sent was not called.
func (c *Call) Decide(a Answer) (time.Duration, Stop) {
	if !c.sent {
		return 0, StopRefused
	}
	left := time.Duration(-1)
	if c.deadline >= 0 {
		left = max(0, c.deadline-c.caller.front.Now())
	}
	wait, stop := c.caller.cfg.Retry.Next(c.attempt, a, c.safe, left, c.caller.random())
	if stop != Again {
		return 0, stop
	}
	charge, ok := c.target.budget.Charge()
	if !ok {
		return 0, StopBudget
	}
	c.charge, c.sent = charge, false
	c.attempt++
	return wait, Again
}

// Wait waits before an attempt. If ctx ends first, it returns the error of ctx, and no attempt follows.
func (c *Call) Wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return ctx.Err()
}

// End ends the call. It refunds a retry that was charged and not sent. A second call does nothing.
func (c *Call) End() {
	c.target.budget.Refund(c.charge)
	c.charge = Charge{}
}
