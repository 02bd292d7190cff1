package proxy

import (
	"sync"
	"sync/atomic"
	"time"
)

// services is what is known of how long an upstream takes, route by route: what
// is quick on one says nothing about another. Routes are named by the
// configuration, and so is their number bounded; over very many reloads with ever
// new names, by maxServices.
type services struct {
	all   mean
	guess atomic.Int64 // for routes without an answer yet, in ns; 0: none
	n     atomic.Int32
	each  sync.Map // of *service, by the route's name
}

// maxServices is how many routes are told apart. Of more, nothing is known.
const maxServices = 10_000

// service is what is known of one route's requests; nil: nothing.
type service struct {
	mean mean

	// The oldest request that waits for an answer, as of the watch's round. The
	// watch's mutex guards them.
	round  uint64
	oldest time.Duration
}

// of returns the service of a route, nil if there are too many.
func (s *services) of(route string) *service {
	if v, ok := s.each.Load(route); ok {
		return v.(*service)
	}
	if s.n.Load() >= maxServices {
		return nil
	}
	v, known := s.each.LoadOrStore(route, new(service))
	if !known {
		s.n.Add(1)
	}
	return v.(*service)
}

// add learns from an answer.
func (s *services) add(sv *service, took time.Duration) {
	s.all.add(took)
	if sv != nil {
		sv.mean.add(took)
	}
}

// expected returns how long a request takes on average, 0 if nothing is known.
func (s *services) expected(sv *service) time.Duration {
	if sv != nil {
		if d := sv.mean.value(); d > 0 {
			return d
		}
	}
	return time.Duration(s.guess.Load())
}

// see notes a request that was sent at started and has no answer yet. The watch
// shows them from the oldest to the newest.
func (sv *service) see(round uint64, started time.Duration) {
	if sv != nil && sv.round != round {
		sv.round, sv.oldest = round, started
	}
}

// age returns how long the oldest of the route's requests has been waiting for
// an answer, going by what the watch has seen in this round.
func (sv *service) age(round uint64, now time.Duration) time.Duration {
	if sv == nil || sv.round != round {
		return 0
	}
	return now - sv.oldest
}
