// Package limit is the concurrency gate: slots that come back.
package limit

import (
	"context"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
)

// Limiter is a concurrency gate.
type Limiter struct{}

func New(cfg Config) (*Limiter, error)                                   { panic("not yet") }
func (l *Limiter) Name() string                                          { panic("not yet") }
func (l *Limiter) Admit(context.Context, weir.Work) (weir.Permit, error) { panic("not yet") }
func (l *Limiter) TryAdmit(weir.Work) (weir.Permit, error)               { panic("not yet") }
func (l *Limiter) Arrive(weir.Work, func(weir.Permit, error)) (weir.Permit, weir.Waiter, error) {
	panic("not yet")
}
func (l *Limiter) SetLimit(n int64) error          { panic("not yet") } // Resize by hand, until the controller decides otherwise
func (l *Limiter) Reconfigure(cfg Config) error    { panic("not yet") } // adopt new settings, keep in-flight, limit, learned state
func (l *Limiter) Snapshot() weir.Snapshot         { panic("not yet") }
func (l *Limiter) Save() (control.State, bool)     { panic("not yet") }
func (l *Limiter) Restore(control.State)           { panic("not yet") }
func (l *Limiter) Close()                          { panic("not yet") } // refuse new and waiting work with ReasonDraining; permits in flight stay valid
func (l *Limiter) Drain(ctx context.Context) error { panic("not yet") } // Close, then wait until nothing is in flight
func (l *Limiter) Next() (time.Duration, bool)     { panic("not yet") } // virtual time: when Step is due
func (l *Limiter) Step()                           { panic("not yet") } // virtual time: expire waiters, close windows
