package cost

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"math/bits"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/quota"
)

// QuotaGroups returns what is measured of quotas: decisions about one key that is
// always the same, and about random ones of so many keys.
func QuotaGroups(keys int) []Group {
	hot, many := hotKey(), manyKeys(keys)
	hot.Peers = append(hot.Peers, quotaPeers(0)...)
	many.Peers = append(many.Peers, quotaPeers(keys)...)
	return []Group{hot, many}
}

// hotKey is a decision about a key that everybody asks for.
func hotKey() Group {
	return Group{
		Name:  "quota, a hot key",
		Floor: Subject{Name: "clock read and a compare-and-swap", New: ready(cellRate)},
		Peers: []Subject{
			{Name: "weir Memory.Take, plenty left", Goal: Goal{Ratio: 1.3}, New: weirTake(quota.Window{Rate: 1, Burst: 1e14}, 0)},
			{Name: "weir Memory.Take, always full again", New: weirTake(quota.Window{Rate: 1e12, Burst: 1e12}, 0)},
			{Name: "weir Memory.Take, refused", New: weirTake(quota.Window{Rate: 1e-9, Burst: 1}, 0)},
			{Name: "weir Quota.Admit + Done, by user", New: ready(weirQuota)},
			{Name: "weir Memory.Take, two windows", New: weirTake(quota.Window{Rate: 1, Burst: 1e14}, 0, quota.Window{Rate: 2, Burst: 1e14})},
		},
	}
}

// Million is the number of keys that the goals are about.
const Million = 1_000_000

// manyKeys is a decision about one of many keys, most of which were not asked for
// lately.
func manyKeys(keys int) Group {
	return Group{
		Name:  fmt.Sprintf("quota, random keys of %d", keys),
		Floor: Subject{Name: "hash, bare open-addressed table of arrival times", New: ready(func() Loop { return bareTable(keys) })},
		Peers: []Subject{
			{Name: "weir Memory.Take, plenty left", Goal: Goal{Ratio: 1.5}, New: weirTake(quota.Window{Rate: 1e-6, Burst: 1e6}, keys)},
			{Name: "weir Memory.Take, always full again", New: weirTake(quota.Window{Rate: 1e9, Burst: 1e6}, keys)},
			{Name: "weir Memory.Take, refused", New: weirTake(quota.Window{Rate: 1e-9, Burst: 1}, keys)},
		},
	}
}

var errOutOfTokens = errors.New("refused, and it should not be")

// cellRate is the least a rate limit can be: the generic cell rate algorithm on one
// word.
func cellRate() Loop {
	var arrival atomic.Int64
	epoch := time.Now()
	return func(n int) error {
		for range n {
			if !conform(&arrival, int64(time.Since(epoch))) {
				return errOutOfTokens
			}
		}
		return nil
	}
}

// conform is one decision: increment and tolerance are such that it lets through.
func conform(arrival *atomic.Int64, now int64) bool {
	const increment, tolerance = 1, int64(time.Hour)
	for {
		was := arrival.Load()
		if was-tolerance > now {
			return false
		}
		if arrival.CompareAndSwap(was, max(was, now)+increment) {
			return true
		}
	}
}

// keyring is random keys, side by side in the order in which they are asked for:
// the store is to miss the processor's caches, not the benchmark.
type keyring struct {
	text string
	next atomic.Uint32
}

const keyLen = 16

func newKeyring(n int) *keyring {
	r := rand.New(rand.NewPCG(1, 2))
	var b []byte
	for range n {
		b = binary.LittleEndian.AppendUint64(b, r.Uint64())
		b = binary.LittleEndian.AppendUint64(b, r.Uint64())
	}
	return &keyring{text: string(b)}
}

func (k *keyring) len() int { return len(k.text) / keyLen }

func (k *keyring) at(i int) string { return k.text[i*keyLen : (i+1)*keyLen] }

// turn calls do for the next n keys.
func (k *keyring) turn(n int, do func(key string) error) error {
	i := int(k.next.Add(uint32(n))) % k.len()
	for range n {
		if i++; i >= k.len() {
			i = 0
		}
		if err := do(k.at(i)); err != nil {
			return err
		}
	}
	return nil
}

// cell is a key's place in a bare table: 21 bytes a key with what is left free.
type cell struct{ id, arrival atomic.Int64 }

func bareTable(n int) Loop {
	keys := newKeyring(n)
	cells := make([]cell, n*4/3)
	seed := maphash.MakeSeed()
	find := func(key string) *cell {
		h := maphash.String(seed, key)
		id := int64(h | 1)
		for i, _ := bits.Mul64(h, uint64(len(cells))); ; {
			c := &cells[i]
			switch c.id.Load() {
			case id:
				return c
			case 0:
				if c.id.CompareAndSwap(0, id) {
					return c
				}
				continue
			}
			if i++; i == uint64(len(cells)) {
				i = 0
			}
		}
	}
	for i := range n {
		find(keys.at(i))
	}
	epoch := time.Now()
	return func(n int) error {
		return keys.turn(n, func(key string) error {
			if !conform(&find(key).arrival, int64(time.Since(epoch))) {
				return errOutOfTokens
			}
			return nil
		})
	}
}

// weirQuota is the whole gate: rule, key, bucket and permit.
func weirQuota() Loop {
	gate, err := quota.New(quota.Config{Name: "api", Rules: []quota.Rule{{User: quota.Every, Windows: []quota.Window{{Rate: 1, Burst: 1e14}}}}})
	ctx := context.Background()
	w := weir.Work{User: "someone"}
	return func(n int) error {
		for range n {
			if err != nil {
				return err
			}
			p, err := gate.Admit(ctx, w)
			if err != nil {
				return err
			}
			p.Done(weir.OK)
		}
		return nil
	}
}

// weirTake is a take of one token, of one key or of random ones of several. A burst
// of one is used up before, so that everything is refused.
func weirTake(limit quota.Window, keys int, more ...quota.Window) func() (Loop, func(), error) {
	return func() (Loop, func(), error) {
		store, err := quota.NewMemory(quota.MemoryConfig{MaxKeys: max(keys, 1024)})
		if err != nil {
			return nil, nil, err
		}
		ctx := context.Background()
		limits := append([]quota.Window{limit}, more...)
		refused := limit.Burst == 1
		one := func(t *quota.Request) error {
			r, err := store.Decide(ctx, t)
			if err == nil && r.OK == refused {
				return errOutOfTokens
			}
			return err
		}
		if keys == 0 {
			key := "someone in particular"
			_, _ = store.Decide(ctx, &quota.Request{Key: key, Windows: limits, Cost: 1})
			return func(n int) error {
				t := &quota.Request{Key: key, Windows: limits, Cost: 1}
				for range n {
					if r, err := store.Decide(ctx, t); err != nil || r.OK == refused {
						return errors.Join(errOutOfTokens, err)
					}
				}
				return nil
			}, func() {}, nil
		}
		ring := newKeyring(keys)
		for i := range 2 * keys { // a second time, as tables grow for buckets that are full again
			_, _ = store.Decide(ctx, &quota.Request{Key: ring.at(i % keys), Windows: limits, Cost: 1})
		}
		return func(n int) error {
			t := &quota.Request{Windows: limits, Cost: 1}
			return ring.turn(n, func(key string) error {
				t.Key = key
				return one(t)
			})
		}, func() {}, nil
	}
}
