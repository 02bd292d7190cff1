package policy

import (
	"time"

	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/limit"
)

// The words for controllers and orders, the defaults first.
var (
	controllers = []string{"fixed", "aimd"}
	orders      = []string{"fifo", "lifo", "adaptive"}
)

// Controllers returns the words for LimitSpec.Controller, the default first.
func Controllers() []string { return append([]string(nil), controllers...) }

// Orders returns the words for QueueSpec.Order, the default first.
func Orders() []string { return append([]string(nil), orders...) }

// aimd returns the settings of an AIMD controller.
func (s *LimitSpec) aimd() control.AIMDConfig {
	return control.AIMDConfig{
		Initial:    s.Limit,
		Min:        s.Min,
		Max:        s.Max,
		Threshold:  time.Duration(s.Threshold),
		Percentile: s.Percentile,
		Backoff:    s.Backoff,
		Window:     time.Duration(s.Window),
		MinSamples: s.MinSamples,
	}
}

// controller returns a new controller for a spec that has been checked; nil for
// one that has not, and limit.New says what it thinks of that.
func (s *LimitSpec) controller() control.Controller {
	if s.Controller != "aimd" {
		return nil // limit.Config.Limit is a fixed controller
	}
	a, err := control.NewAIMD(s.aimd())
	if err != nil {
		return nil
	}
	return a
}

func (s *QueueSpec) queue() limit.Queue {
	q := limit.Queue{Len: s.Len, MaxWait: time.Duration(s.MaxWait)}
	switch s.Order {
	case "lifo":
		q.Order = limit.LIFO
	case "adaptive":
		q.Order = limit.Adaptive
	}
	return q
}
