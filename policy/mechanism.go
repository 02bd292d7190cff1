package policy

import (
	"time"

	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/limit"
)

// The words for controllers and orders, the defaults first.
var (
	controllers = []string{"fixed", "aimd", "knee"}
	orders      = []string{"fifo", "lifo", "adaptive"}
)

// Controllers returns the words for LimitSpec.Controller, the default first.
func Controllers() []string { return append([]string(nil), controllers...) }

// Orders returns the words for QueueSpec.Order, the default first.
func Orders() []string { return append([]string(nil), orders...) }

// aimd returns the settings of an AIMD controller.
func (l *LimitSpec) aimd() control.AIMDConfig {
	return control.AIMDConfig{
		Initial:    l.Limit,
		Min:        l.Min,
		Max:        l.Max,
		Threshold:  time.Duration(l.Threshold),
		Percentile: l.Percentile,
		Backoff:    l.Backoff,
		Window:     time.Duration(l.Window),
		MinSamples: l.MinSamples,
	}
}

// config returns the limiter's settings, with a controller of their own, for a
// spec that has been checked.
func (l *LimitSpec) config() (limit.Config, error) {
	cfg := limit.Config{Queue: l.Queue.queue()}
	if l.Controller == "knee" {
		knee, err := control.NewKnee(control.KneeConfig{Initial: l.Limit, Min: l.Min, Max: l.Max})
		cfg.Controller = knee
		return cfg, err
	}
	if l.Controller != "aimd" {
		cfg.Limit = l.Limit // limit.New makes a fixed controller of it
		return cfg, nil
	}
	aimd, err := control.NewAIMD(l.aimd())
	cfg.Controller = aimd
	return cfg, err
}

func (q *QueueSpec) queue() limit.Queue {
	room := limit.Queue{Len: q.Len, MaxWait: time.Duration(q.MaxWait)}
	switch q.Order {
	case "lifo":
		room.Order = limit.LIFO
	case "adaptive":
		room.Order = limit.Adaptive
	}
	return room
}
