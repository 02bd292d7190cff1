package keyed

import (
	"slices"
	"testing"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/limit"
)

// asked is a controller that says when it is asked.
type asked struct {
	name  string
	order *[]string
}

func (a asked) Name() string            { return a.name }
func (a asked) Start() control.Decision { return control.Decision{Limit: 9, Next: time.Second} }
func (a asked) Update(*control.Window) control.Decision {
	*a.order = append(*a.order, a.name)
	return a.Start()
}

// On virtual time the same happens in every run: what is due at one moment is done
// by keys as they came, and by the names of their parts.
func TestLimitersStepInOrder(t *testing.T) {
	want := []string{"b1", "b2", "b3", "b4", "a1", "a2", "a3", "a4"}
	for range 20 {
		var now time.Duration
		var order []string
		l := newLimiters(t, LimitersConfig{
			Part: func(w weir.Work) string { return w.Op },
			New: func(key string) (map[string]limit.Config, error) {
				parts := make(map[string]limit.Config)
				for _, part := range []string{"3", "1", "4", "2"} {
					parts[part] = limit.Config{Controller: asked{key + part, &order}}
				}
				return parts, nil
			},
			Now: func() time.Duration { return now },
		})
		for _, key := range []string{"b", "a"} {
			admit(t, l, weir.Work{Tenant: key, Op: "1"}).Done(weir.OK)
		}
		now = time.Second
		if l.Step(); !slices.Equal(order, want) {
			t.Fatalf("asked %q, want %q", order, want)
		}
	}
}
