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

// config returns the limiter's settings, with a controller of their own, for a
// spec that has been checked.
func (s *LimitSpec) config() (limit.Config, error) {
	cfg := limit.Config{Queue: s.Queue.queue()}
	if s.Controller != "aimd" {
		cfg.Limit = s.Limit // limit.New makes a fixed controller of it
		return cfg, nil
	}
	aimd, err := control.NewAIMD(s.aimd())
	cfg.Controller = aimd
	return cfg, err
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
