package sim

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/weir-go/weir/policy"
)

// Cache is a look-aside cache: clients look into it first, ask the backend for
// what they do not find, and put in what they got in time. A request that finds
// its answer does not reach the gates.
type Cache struct {
	// Keys is how many different things there are to ask for, Zipf how uneven
	// they are asked for: the k-th most popular 1/k^Zipf as often as the first.
	// Zipf is more than 0.
	Keys int     `json:"keys"`
	Zipf float64 `json:"zipf"`
	// Size is how many answers the cache holds. A new one takes the place of
	// one at random. It starts with the most popular ones.
	Size int `json:"size"`
	// Flush are the moments at which it loses everything.
	Flush []policy.Duration `json:"flush,omitempty"`
}

func (c *Cache) validate(f *faultList, path string) {
	f.check(c.Keys >= 1 && c.Keys <= 1e7, path+".keys", "%d: must be from 1 to 10000000", c.Keys)
	f.check(c.Zipf > 0 && c.Zipf <= 10, path+".zipf", "%v: must be more than 0 and at most 10", c.Zipf)
	f.check(c.Size >= 1 && c.Size <= c.Keys, path+".size", "%d: must be from 1 to the number of keys", c.Size)
	for i, at := range c.Flush {
		f.check(at >= 0, index(path+".flush", i), "%v: must not be negative", at)
	}
}

// cache is a Cache at work. Keys are numbered by their popularity.
type cache struct {
	rng     *rand.Rand
	chances []float64 // of keys up to each
	key     int32     // the last one looked for

	place []int32 // of each key in held, -1 for none
	held  []int32
	size  int
	flush []time.Duration
}

func newCache(spec *Cache, rng *rand.Rand) *cache {
	c := &cache{rng: rng, size: spec.Size, place: make([]int32, spec.Keys), chances: make([]float64, spec.Keys)}
	sum := 0.0
	for k := range c.chances {
		sum += math.Pow(float64(k+1), -spec.Zipf)
		c.chances[k] = sum
		c.place[k] = -1
	}
	for k := range spec.Size {
		c.fill(int32(k))
	}
	for _, at := range spec.Flush {
		c.flush = append(c.flush, time.Duration(at))
	}
	slices.Sort(c.flush)
	return c
}

// look draws a key and reports whether its answer is there.
func (c *cache) look(now time.Duration) bool {
	for len(c.flush) > 0 && c.flush[0] <= now {
		c.flush = c.flush[1:]
		for _, k := range c.held {
			c.place[k] = -1
		}
		c.held = c.held[:0]
	}
	u := c.rng.Float64() * c.chances[len(c.chances)-1]
	k, _ := slices.BinarySearch(c.chances, u)
	c.key = int32(min(k, len(c.chances)-1))
	return c.place[c.key] >= 0
}

// fill puts in an answer.
func (c *cache) fill(key int32) {
	if c.place[key] >= 0 {
		return
	}
	if len(c.held) < c.size {
		c.place[key] = int32(len(c.held))
		c.held = append(c.held, key)
		return
	}
	i := c.rng.IntN(len(c.held))
	c.place[c.held[i]] = -1
	c.held[i], c.place[key] = key, int32(i)
}
