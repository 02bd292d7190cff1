package policy

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Reloads of limiters for each key, and of pairs of them, refuse nothing while
// requests come, those on their way to a gate that has become another kind included.
func TestOwnReloadsUnderLoadRefuseNothing(t *testing.T) {
	specs := []Spec{
		ownSpec(LimitSpec{Limit: 4}, EachSpec{MaxKeys: 50}),
		ownSpec(LimitSpec{Limit: 2}, EachSpec{MaxKeys: 4, Overrides: map[string]OverrideSpec{"t1": {Limit: 1}}}),
		ownSpec(LimitSpec{Controller: "probe", Probe: ProbeSpec{ReadWrite: true}}, EachSpec{}),
		pairSpec(LimitSpec{}, nil),
		databases(3, EachSpec{}),
	}
	for i := range specs {
		specs[i].Identity.Tenant = "header:X-Tenant"
		specs[i].Routes = []RouteSpec{{Match: []string{"/"}, Gates: []string{"db"}}}
		l := *specs[i].Gates["db"].Limit
		l.Queue = QueueSpec{}
		g := specs[i].Gates["db"]
		g.Limit = &l
		specs[i].Gates["db"] = g
	}
	synctest.Test(t, func(t *testing.T) {
		var current atomic.Pointer[Policy]
		current.Store(must(t, specs[0], Options{}))
		var load sync.WaitGroup
		for i := range 12 {
			load.Go(func() {
				for n := range 40 {
					r := from("127.0.0.1:1", fmt.Sprintf("X-Tenant: t%d", (i+n)%4))
					if n%2 == 0 {
						r.Method = "POST"
					}
					rt, w := current.Load().Match(r)
					time.Sleep(time.Millisecond) // between the match and the gate
					permit, err := rt.Gate().Admit(t.Context(), w)
					if err != nil {
						t.Errorf("%s: %v", w.Tenant, err)
						return
					}
					time.Sleep(time.Millisecond)
					permit.Done(0)
				}
			})
		}
		for i := range 30 {
			time.Sleep(5 * time.Millisecond)
			old := current.Load()
			next := must(t, specs[(i*i+i/2)%len(specs)], Options{Previous: old})
			current.Store(next)
			old.Retire(next)
		}
		load.Wait()
		current.Load().Close()
		time.Sleep(time.Minute)
	})
}
