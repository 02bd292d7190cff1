package policy

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir"
)

// What the file says of a limit holds of pools for reads and for writes as well: how
// many keys there may be, how many may wait, and what costs too much.
func TestReadWriteSettings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := LimitSpec{Limit: 8, Min: 4, RefuseOversize: true, Queue: QueueSpec{Len: 8, MaxWait: Duration(time.Hour), Order: "fifo"}}
		p := must(t, pairSpec(limit, &EachSpec{Own: true, MaxKeys: 1}), Options{})
		defer p.Close()
		g := p.Gate("db")
		work := weir.Work{Tenant: "a"}
		in := held(t, g, work, 50)
		if len(in) != 4 {
			t.Fatalf("%d reads were admitted, want 4", len(in))
		}
		for i := range 3 {
			_, waiter, err := g.Arrive(work, func(weir.Permit, error) {})
			if waits := err == weir.ErrWaiting; waits != (i < 2) {
				t.Errorf("number %d: %v; a quarter of 8 places is the key's", i, err)
			} else if waits {
				defer waiter.Cancel()
			}
		}
		for _, tt := range []struct {
			work   weir.Work
			reason weir.Reason
			rule   string
		}{
			{weir.Work{Tenant: "a", Write: true, Cost: 5}, weir.ReasonTooLarge, ""},
			{weir.Work{Tenant: "b"}, weir.ReasonLimit, "keys"},
		} {
			_, err := g.TryAdmit(tt.work)
			if r := weir.AsRejection(err); r == nil || r.Reason != tt.reason || tt.rule != "" && r.Rule != tt.rule {
				t.Errorf("%+v: %v, want %v %s", tt.work, err, tt.reason, tt.rule)
			}
		}
		for _, permit := range in {
			permit.Done(weir.OK)
		}
	})
}
