package quota

import (
	"context"
	"hash/maphash"
	"sync"
	"time"

	"github.com/weir-go/weir"
)

// Last returns what the store has said last of the bucket that w would be charged
// to: what is left, for whoever answers w, without another question. In a Memory,
// which is at hand, it is what Peek says. Of a store on another machine it is what
// this process heard up to a second ago, and false if it heard nothing: what the
// store could not tell, or was decided without it, is not remembered, and of two
// buckets that share a place here only the last is known.
func (q *Quota) Last(ctx context.Context, w weir.Work) (Decision, bool) {
	if q.memory != nil {
		d, _ := q.Peek(ctx, w) // that w would be refused now is no error
		return d, len(d.Limits) > 0
	}
	set := q.settings.Load()
	id := set.identify(w)
	r := set.rules.find(&id)
	if w.Exempt || r == nil || r.exempt || r.blocked {
		return Decision{}, false
	}
	key := string(appendKey(nil, q.name, r, &id))
	result, _, ok := q.heard.get(key, q.now())
	if !ok || result.Window >= len(r.limits) {
		return Decision{}, false
	}
	return Decision{Rule: r.title, Limits: r.limits, Cost: set.cost(w), Key: key, Result: result}, true
}

// heard remembers what a store has said lately, each bucket in the one place that
// its key hashes to.
type heard struct {
	seed   maphash.Seed
	mu     sync.Mutex // guards what follows
	places [1 << 10]saying
}

type saying struct {
	key    uint64
	at     time.Duration
	result Result
}

// fresh is how long an answer counts.
const fresh = time.Second

func (h *heard) hash(key string) uint64 {
	return maphash.String(h.seed, key) | 1 // 0 is an empty place
}

func (h *heard) put(key string, now time.Duration, r Result) {
	hash := h.hash(key)
	h.mu.Lock()
	h.places[hash>>1%uint64(len(h.places))] = saying{hash, now, r}
	h.mu.Unlock()
}

// get returns what was said of key, and when.
func (h *heard) get(key string, now time.Duration) (r Result, at time.Duration, ok bool) {
	hash := h.hash(key)
	h.mu.Lock()
	defer h.mu.Unlock()
	s := &h.places[hash>>1%uint64(len(h.places))]
	return s.result, s.at, s.key == hash && now-s.at < fresh
}
