package quota

import (
	"context"
	"errors"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir"
)

// Quota is a gate that limits what is used up, by rules. It is safe for concurrent
// use.
type Quota struct {
	name     string
	clock    func() time.Duration // Config.Now
	epoch    time.Time
	store    Store
	memory   *Memory // the store, if it is one
	heard    *heard  // from the store, if it is none
	settings atomic.Pointer[settings]

	mu   sync.Mutex // of changes; guards what follows
	shut bool

	spare  sync.Mutex // guards what follows
	local  *Memory    // in place of the store; nil until it is needed
	book   book
	room   room
	pools  [poolCount]pool
	closed atomic.Bool
}

// New makes a gate. The error names every setting out of range.
func New(cfg Config) (*Quota, error) {
	set, err := cfg.compile()
	if err != nil {
		return nil, err
	}
	q := &Quota{name: cfg.Name, clock: cfg.Now, epoch: time.Now(), store: cfg.Store}
	if q.store == nil {
		m, err := NewMemory(MemoryConfig{Now: cfg.Now})
		if err != nil {
			return nil, err
		}
		q.store = m
	}
	if q.memory, _ = q.store.(*Memory); q.memory == nil {
		q.heard = &heard{seed: maphash.MakeSeed()}
	}
	for i := range q.pools {
		q.pools[i].init(q)
	}
	q.settings.Store(set)
	return q, nil
}

// Name returns the name from the configuration.
func (q *Quota) Name() string { return q.name }

// Admit takes what w costs from the bucket that its rule gives it, or refuses; with
// a Queue it may wait for the tokens to come back. Done gives nothing back: a token
// is used up. Cancel does, for work that never started, and SetCost settles what it
// has really cost.
func (q *Quota) Admit(ctx context.Context, w weir.Work) (weir.Permit, error) {
	if p, ok := weir.Nested(ctx, q); ok {
		return p, nil
	}
	p, place, err := q.arrive(ctx, &w, w.MaxWait >= 0, nil)
	if place == nil {
		return p, err
	}
	select {
	case <-place.ready:
	case <-ctx.Done():
		if q.room.remove(place) {
			q.giveBack(&place.charge)
			return weir.Permit{}, q.refuse(&w, q.givenUp(ctx))
		}
		<-place.ready // the answer won the race, or is on its way
		if place.err == nil {
			place.permit.Cancel()
			place.err = q.givenUp(ctx)
		}
	}
	if place.err != nil {
		return weir.Permit{}, q.refuse(&w, place.err)
	}
	q.admitted(&w, q.now()-place.arrived)
	return place.permit, nil
}

// TryAdmit is Admit that never waits for tokens. (A store on another machine may
// take its time.)
func (q *Quota) TryAdmit(w weir.Work) (weir.Permit, error) {
	p, _, err := q.arrive(context.Background(), &w, false, nil)
	return p, err
}

// Arrive implements [weir.Arriver]: Admit for callers that cannot block. The caller
// cancels the Waiter when it stops waiting; deadlines and MaxWait need no help.
func (q *Quota) Arrive(w weir.Work, wake func(weir.Permit, error)) (weir.Permit, weir.Waiter, error) {
	p, place, err := q.arrive(context.Background(), &w, w.MaxWait >= 0, wake)
	if place == nil {
		return p, nil, err
	}
	return weir.Permit{}, place, weir.ErrWaiting
}

// now returns the time since the gate's epoch.
func (q *Quota) now() time.Duration {
	if q.clock != nil {
		return q.clock()
	}
	return time.Since(q.epoch)
}

// since returns a time of day as the time since the gate's epoch.
func (q *Quota) since(t time.Time) time.Duration {
	if q.clock != nil {
		return t.Sub(VirtualEpoch)
	}
	return t.Sub(q.epoch)
}

// ErrClosed is the error of changing a gate that has been closed. Work is refused
// with a Rejection for [weir.ReasonDraining] instead.
var ErrClosed = errors.New("closed")

// Close refuses new work, and what waits, with [weir.ReasonDraining]; what waits
// gives its tokens back. Permits stay valid: they may still be settled or
// cancelled. Closing twice does nothing.
func (q *Quota) Close() {
	q.mu.Lock()
	q.shut = true
	q.mu.Unlock()
	q.closed.Store(true)
	for _, w := range q.room.close() {
		q.giveBack(&w.charge)
		w.answer(weir.Permit{}, q.draining())
	}
}

var (
	_ weir.Gate        = (*Quota)(nil)
	_ weir.TryAdmitter = (*Quota)(nil)
	_ weir.Arriver     = (*Quota)(nil)
	_ weir.Foreteller  = (*Quota)(nil)
	_ weir.Snapshotter = (*Quota)(nil)
)
