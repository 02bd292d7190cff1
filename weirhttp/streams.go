package weirhttp

import (
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Defaults of a pool of streams.
const (
	defaultMaxStreams  = 4096
	defaultStreamBytes = 64 << 10
	defaultStreamGrace = time.Second
	defaultStreamStall = 100 * time.Millisecond
)

const (
	// quietBytes are buffered by net/http: writing them cannot block.
	quietBytes = 2 << 10
	// writeChunk is the most that is written under one deadline.
	writeChunk = 128 << 10
	// never is longer, in bytes and in time, than any response.
	never = 1<<63 - 1
)

// StreamsConfig configures [NewStreams]. The zero value of a field means its default; a
// negative value turns a rule off.
type StreamsConfig struct {
	// Max is the number of places. Default 4096; negative means
	// none, so that every stream keeps its slot and counts as overflowed.
	Max int
	// Bytes is the length beyond which a response is a stream. Default 64 KiB.
	Bytes int64
	// Grace is how long a response that has been flushed may stay open before it is a stream. Default 1 s.
	// Until then, a handler or an upstream that flushes while it works keeps its slot.
	Grace time.Duration
	// Stall is how long one write may block before the response is a stream. Such a write blocks because the
	// client reads more slowly than the handler writes. Default 100 ms.
	Stall time.Duration
}

// Streams is a bounded pool for responses whose length depends on the client or on the
// conversation. Examples are long downloads, slow readers, server-sent events and upgraded
// connections. When a request becomes a stream, it releases its permit and has a place here until
// it ends. So slow clients cannot fill a limiter, and are bounded all the same.
//
// A response becomes a stream when the first of these happens:
//
//   - its connection is hijacked;
//   - it is flushed with content type text/event-stream;
//   - it has been flushed and has not ended after Grace;
//   - it is longer than Bytes;
//   - a write has blocked for Stall;
//   - the handler says so with [Request.ReleaseForStream].
//
// A handler that calls it while a body arrives slowly gets its slot back with [Request.Reacquire].
//
// When the pool is full the request keeps its slot, is counted as overflowed, and tries
// again with each later write. It is never cut for that reason. A request without a slot needs no
// place. One user ([weir.Work].User) may have half of the places, so that no user can take them all.
// Work without a user is not told apart.
type Streams struct {
	bytes        int64
	grace, stall time.Duration

	max        atomic.Int64
	open       atomic.Int64
	high       atomic.Int64
	moved      atomic.Uint64
	overflowed atomic.Uint64
	cut        atomic.Uint64

	mu     sync.Mutex
	byUser map[string]int64 // places of each user that has some
}

// StreamsSnapshot is a pool at one moment. Moved, Overflowed and Cut only grow.
type StreamsSnapshot struct {
	// Max is the number of places. Open is how many are held (it may exceed Max
	// after SetMax). High is the most that were ever held at once.
	Max  int64 `json:"max"`
	Open int64 `json:"open"`
	High int64 `json:"high"`
	// Moved counts how often a response became a stream. Overflowed counts those that found the
	// pool full at first. Cut counts those that ended because the client stopped reading for longer
	// than [WithWriteTimeout] allows.
	Moved      uint64 `json:"moved"`
	Overflowed uint64 `json:"overflowed"`
	Cut        uint64 `json:"cut"`
}

// NewStreams returns an empty pool.
func NewStreams(cfg StreamsConfig) *Streams {
	s := &Streams{
		bytes: orDefault(cfg.Bytes, defaultStreamBytes),
		grace: orDefault(cfg.Grace, defaultStreamGrace),
		stall: orDefault(cfg.Stall, defaultStreamStall), byUser: map[string]int64{},
	}
	s.SetMax(cfg.Max)
	return s
}

// orDefault returns def for 0, and never for a negative v.
func orDefault[T ~int64](v, def T) T {
	switch {
	case v == 0:
		return def
	case v < 0:
		return never
	}
	return v
}

// SetMax changes the number of places, with the meaning of StreamsConfig.Max.
// Streams that are open stay open.
func (s *Streams) SetMax(n int) {
	if n == 0 {
		n = defaultMaxStreams
	}
	s.max.Store(max(int64(n), 0))
}

// Snapshot returns the pool's levels and counters.
func (s *Streams) Snapshot() StreamsSnapshot {
	return StreamsSnapshot{
		Max: s.max.Load(), Open: s.open.Load(), High: s.high.Load(),
		Moved: s.moved.Load(), Overflowed: s.overflowed.Load(), Cut: s.cut.Load(),
	}
}

// Enter takes a place for work of a user, and reports whether it did. Adapters of other protocols share the pool
// with it. A caller that got a place must call [Streams.Leave] once, with the same user.
func (s *Streams) Enter(user string) bool {
	if user == "" {
		return s.enter()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n, known := s.byUser[user]
	if half := (s.max.Load() + 1) / 2; n >= half || !s.enter() {
		return false
	}
	if !known {
		user = strings.Clone(user) // it may be a piece of something large
	}
	s.byUser[user] = n + 1
	return true
}

// enter takes a place if one is free.
func (s *Streams) enter() bool {
	for {
		n := s.open.Load()
		if n >= s.max.Load() {
			return false
		}
		if s.open.CompareAndSwap(n, n+1) {
			s.moved.Add(1)
			s.raise(n + 1)
			return true
		}
	}
}

// Overflow counts a response that found the pool full, and keeps its slot. Count each response
// once, however often it tries.
func (s *Streams) Overflow() { s.overflowed.Add(1) }

// Grace returns StreamsConfig.Grace, or its default.
func (s *Streams) Grace() time.Duration { return s.grace }

func (s *Streams) raise(n int64) {
	for {
		high := s.high.Load()
		if n <= high || s.high.CompareAndSwap(high, n) {
			return
		}
	}
}

// Leave gives a place back that [Streams.Enter] took for a user.
func (s *Streams) Leave(user string) {
	s.open.Add(-1)
	if user == "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byUser[user]--; s.byUser[user] <= 0 {
		delete(s.byUser, user)
	}
}
