package policy

import (
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/limit"
)

// edf is the order in which the earliest deadline goes first.
const edf = "edf"

// The words for orders, the default first.
var orders = []string{"adaptive", "fifo", "lifo", edf}

// Orders returns the words for QueueSpec.Order, the default first.
func Orders() []string { return append([]string(nil), orders...) }

// config returns the limiter's settings, with a controller of their own, for a
// spec that has been checked.
func (l *LimitSpec) config() (limit.Config, error) {
	cfg := limit.Config{Queue: l.Queue.queue(), Exempt: l.Exempt, RefuseOversize: l.RefuseOversize}
	k, _ := l.kind()
	if k.word == "fixed" && len(l.Signals) == 0 {
		cfg.Limit = l.Limit // limit.New makes a fixed controller of it
		return cfg, nil
	}
	inner, err := k.make(l)
	if err == nil && len(l.Signals) > 0 && !k.heeds {
		// Named, because a lag that the controller goes by is no pressure.
		inner, err = made(control.NewCapped(inner, control.CapConfig{Min: l.Min, Signals: l.Signals}))
	}
	cfg.Controller = inner
	return cfg, err
}

func (q *QueueSpec) queue() limit.Queue {
	room := limit.Queue{
		Len: q.Len, MaxWait: time.Duration(q.MaxWait), ByTime: q.ByTime,
		Weights: limit.Weights{Users: q.Weights.Users, Tenants: q.Weights.Tenants},
	}
	for word, share := range q.Shares {
		if p, ok := weir.ParsePriority(word); ok {
			if room.Shares == nil {
				room.Shares = make(map[weir.Priority]float64, len(q.Shares))
			}
			room.Shares[p] = share
		}
	}
	switch q.Order {
	case "fifo":
		room.Order = limit.FIFO
	case "lifo":
		room.Order = limit.LIFO
	case edf:
		room.Order = limit.EDF
	default:
		room.Order = limit.Adaptive
	}
	return room
}
