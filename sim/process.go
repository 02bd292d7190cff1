package sim

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/throttle"
)

// Process is a process that clients belong to. They share a guard and a budget for retries, and each
// request is a call of the same package throttle that services use. Its time-out is for all attempts
// together, and the gates are told which attempt they see.
type Process struct {
	// Guard stands before the calls: throttle (default), breaker or none.
	Guard string `json:"guard,omitempty" enum:"throttle,breaker,none"`
	// Attempts is how many a call may have, the first included. Default 3.
	Attempts int `json:"attempts,omitempty" min:"0" max:"10"`
}

var guards = map[string]throttle.Guard{"": throttle.GuardThrottle, "throttle": throttle.GuardThrottle, "breaker": throttle.GuardBreaker, "none": throttle.NoGuard}

// checkProcess checks what a class says of the process of its clients.
func (s *Scenario) checkProcess(f *fault.List, path fault.Path, c *Class) {
	if c.Process == "" {
		return
	}
	_, ok := s.Processes[c.Process]
	f.Require(ok, path.At("process"), "%q: there is no such process; there are %s", c.Process, strings.Join(slices.Sorted(maps.Keys(s.Processes)), ", "))
	f.Require(c.Retry == nil, path.At("retry"), "cannot go together with process, which decides about retries")
}

// addProcesses makes the callers of a run and gives them to the classes.
func (w *world) addProcesses(s *Scenario, seed uint64) error {
	callers := map[string]*throttle.Caller{}
	for i, name := range slices.Sorted(maps.Keys(s.Processes)) {
		spec := s.Processes[name]
		caller, err := throttle.NewCaller(throttle.CallerConfig{
			Name: name, Guard: guards[spec.Guard], Retry: throttle.Retry{Attempts: spec.Attempts},
			Random: stream(seed, streamProcess, i).Float64,
			Now:    func() time.Duration { return w.now },
		})
		if err != nil {
			return fmt.Errorf("sim: process %q: %w", name, err)
		}
		callers[name] = caller
	}
	for i := range s.Traffic {
		w.classes[i].caller = callers[s.Traffic[i].Process]
	}
	return nil
}

// beginCall begins a call of the attempt's client, if that belongs to a process.
func (w *world) beginCall(a *attempt) {
	a.begun = w.now
	c := a.class
	if c.caller == nil {
		return
	}
	var deadline time.Time
	if patience := cmp.Or(c.timeout, c.deadline); patience > 0 {
		deadline = epoch.Add(w.now + patience)
	}
	call := c.caller.Start("backend", deadline, true)
	a.process = &call
}

// sends asks the process of a client whether to send an attempt. If it does not, that is the end of the
// call.
func (w *world) sends(a *attempt) bool {
	if a.process == nil {
		return true
	}
	gate, _ := a.process.Gate().(weir.TryAdmitter) // every guard is one, and so is the chain of none
	p, err := gate.TryAdmit(w.workOf(a))
	if err != nil {
		a.process.End()
		w.stats.withheld(w.now)
		w.over(a, false)
		w.recycle(a)
		return false
	}
	a.process.Sent()
	a.guard = p
	return true
}

// answerOf returns what the client of an attempt hears of a refusal. Those of a process say which attempt
// they make, so they are told when retries are common.
func (w *world) answerOf(a *attempt, err error) throttle.Answer {
	if a.process == nil {
		return throttle.Answer{}
	}
	if r := weir.AsRejection(err); r != nil {
		work := w.workOf(a)
		err = a.class.route.Told(&work, true, r)
	}
	return throttle.AnswerOf(err)
}

// leftAt is when the client of an attempt loses patience: its own time-out for each attempt, or that
// of the call.
func (a *attempt) leftAt(now time.Duration) time.Duration {
	if a.process != nil {
		return a.begun + a.class.timeout
	}
	return now + a.class.timeout
}

// recall makes another attempt of a call, if the process of its client decides so.
func (w *world) recall(a *attempt, answer throttle.Answer) bool {
	if a.process == nil {
		return false
	}
	wait, stop := a.process.Decide(answer)
	if stop != throttle.Again {
		return false
	}
	w.repeat(a, wait)
	return true
}
