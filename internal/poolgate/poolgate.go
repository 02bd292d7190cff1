// Package poolgate has what weirsql and weirpgx share: a gate that fits the pool of connections behind it, the time
// that a statement may take, and how long work waits in the pool.
package poolgate

import (
	"errors"
	"fmt"

	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/limit"
)

// DefaultExempt is how many connections are for exempt work, if the pool is large enough: no more than a
// quarter of it.
const DefaultExempt = 8

// Fit returns the configuration of a gate for a pool of so many connections. Those that are not for exempt
// work are the most that its limit may be, and the ceiling of the default controller. pkg begins the errors.
func Fit(pkg string, gate limit.Config, conns int64) (limit.Config, error) {
	if conns < 1 {
		return gate, fmt.Errorf("%s: a pool of %d connections; open at least 1", pkg, conns)
	}
	gate.Exempt = Exempt(gate, conns)
	places := conns - max(gate.Exempt, 0)
	var f fault.List
	f.Check(places > 0, fault.Path{"Exempt"}, gate.Exempt, "must be below the connections, which are %d", conns)
	f.Check(places <= 0 || gate.Limit <= places, fault.Path{"Limit"}, gate.Limit,
		"must be at most %d: there are %d connections; for exempt work: %d", places, conns, conns-places)
	if err := f.Err(pkg); err != nil {
		return gate, err
	}
	if gate.Controller == nil && gate.Limit == 0 {
		// Transactions that hinder each other may get most done one at a time.
		belief, err := control.NewBelief(control.BeliefConfig{Min: 1, Max: places})
		if err != nil {
			return gate, err
		}
		gate.Controller = belief
	}
	return gate, nil
}

// NewLimiter makes the limiter of a configuration that fits. A Controller of the user has bounds of its own.
func NewLimiter(pkg string, gate limit.Config, conns int64) (*limit.Limiter, error) {
	l, err := limit.New(gate)
	if err != nil {
		return nil, err
	}
	if n := l.Snapshot().Limit; n > conns {
		l.Close()
		return nil, fmt.Errorf("%s: Controller: begins with a limit of %d before %d connections; give it a Max that fits", pkg, n, conns)
	}
	return l, nil
}

// Exempt returns how many connections are for exempt work, or -1 for none.
func Exempt(gate limit.Config, conns int64) int64 {
	if gate.Exempt != 0 {
		return gate.Exempt
	}
	if n := min(DefaultExempt, conns/4); n > 0 {
		return n
	}
	return -1
}

// AfterFailure reports whether a statement was refused only because an earlier one of its transaction had
// failed (SQLSTATE 25P02). The earlier one says why.
func AfterFailure(err error) bool {
	var state interface{ SQLState() string }
	return errors.As(err, &state) && state.SQLState() == "25P02"
}
