package keyed

import (
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/internal/keys"
	"github.com/weir-go/weir/limit"
)

// memory keeps what the controllers of evicted keys had learned, of the keys that
// were evicted last: who has been cut down must not get the first limit back by
// staying away until somebody else takes its place.
type memory struct {
	of   map[keys.Name]learned
	ring []keys.Name // in order of eviction, from next on
	next int
}

// learned are the states of a key's controllers by part.
type learned map[string]control.State

// remembered is how many times as many evicted keys as live ones are remembered.
const remembered = 4

// learned returns what the controllers of a pool have learned, nil if nothing.
func (p *pool) learned() learned {
	var states learned
	for part, limiter := range p.parts {
		if s, ok := limiter.Save(); ok {
			if states == nil {
				states = make(learned, len(p.parts))
			}
			states[part] = s
		}
	}
	return states
}

// keep remembers the states of a key, and forgets the oldest beyond most.
func (m *memory) keep(key keys.Name, states learned, most int) {
	if states == nil || most <= 0 {
		return
	}
	if m.of == nil {
		m.of = make(map[keys.Name]learned)
	}
	if _, again := m.of[key]; again {
		m.of[key] = states
		return
	}
	for len(m.of) >= most {
		m.forget()
	}
	m.of[key] = states
	m.ring = append(m.ring, key)
}

// forget drops the key that was evicted first.
func (m *memory) forget() {
	delete(m.of, m.ring[m.next])
	if m.next++; 2*m.next > len(m.ring) {
		m.ring = append([]keys.Name(nil), m.ring[m.next:]...)
		m.next = 0
	}
}

// recall gives limiters just made what their key had learned.
func recall(parts map[string]*limit.Limiter, states learned) {
	for part, s := range states {
		if limiter, ok := parts[part]; ok {
			limiter.Restore(s)
		}
	}
}
