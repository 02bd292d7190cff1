package slot_test

import (
	"context"
	"fmt"
	"sync"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/slot"
)

// desk is a gate with one slot, and without a wait room.
type desk struct {
	mu    sync.Mutex
	group slot.Group
	slot  slot.Slot
}

func newDesk() *desk {
	d := &desk{}
	d.group.Holder = d
	d.group.Attention.Store(1) // Done always calls the desk
	d.slot.Init(&d.group, 0)
	return d
}

func (d *desk) Admit(ctx context.Context, _ weir.Work) (weir.Permit, error) {
	if p, ok := weir.Nested(ctx, d); ok {
		return p, nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.slot.Held() {
		return weir.Permit{}, &weir.Rejection{Gate: "desk", Reason: weir.ReasonLimit, Value: 1, Limit: 1, Retryable: true}
	}
	return weir.NewPermit(d.slot.Issue()), nil
}

func (d *desk) Done(t slot.Ticket, outcome uint8) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if live, _ := t.Recall(); live {
		fmt.Println("ended:", weir.Outcome(outcome))
	}
}

func (d *desk) Cancel(t slot.Ticket)               { d.Done(t, uint8(weir.NoSample)) }
func (d *desk) Sample(slot.Ticket, uint8)          {}
func (d *desk) SetCost(slot.Ticket, string, int64) {}

// A gate of one's own.
func Example() {
	gate := newDesk()
	p, _ := gate.Admit(context.Background(), weir.Work{})
	_, err := gate.Admit(context.Background(), weir.Work{})
	fmt.Println(err)
	p.Done(weir.OK)
	p.Done(weir.Failed) // does nothing: the slot may be somebody else's by now
	// Output:
	// weir: gate "desk" refused: every slot is taken (1 of 1)
	// ended: ok
}
