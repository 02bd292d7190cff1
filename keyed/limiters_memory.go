package keyed

import (
	"container/list"

	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/internal/keys"
	"github.com/weir-go/weir/limit"
)

// memory keeps what the controllers of evicted keys had learned, of the keys that
// were evicted last: who has been cut down must not get the first limit back by
// staying away until somebody else takes its place.
type memory struct {
	memos map[keys.Name]*list.Element
	order list.List // of *memo, by when their keys were evicted last
}

// memo is what is remembered of one key. It is never written to.
type memo struct {
	key    keys.Name
	states learned
}

// learned are the states of a key's controllers by part.
type learned map[string]control.State

// remembered is how many times as many evicted keys as live ones are remembered.
const remembered = 4

// learned returns what the controllers of a pool have learned, nil if nothing.
func (p *pool) learned() learned {
	var states learned
	for part, limiter := range p.parts {
		if s, ok := saved(limiter); ok {
			if states == nil {
				states = make(learned, len(p.parts))
			}
			states[part] = s
		}
	}
	return states
}

// saved is what one controller has learned. If it panics it is nothing: the work on
// whose way this comes is of another key.
func saved(limiter *limit.Limiter) (s control.State, ok bool) {
	defer func() {
		if recover() != nil {
			s, ok = control.State{}, false
		}
	}()
	return limiter.Save()
}

// of returns what is remembered of a key, nil if nothing is.
func (m *memory) of(key keys.Name) *memo {
	if e := m.memos[key]; e != nil {
		return e.Value.(*memo)
	}
	return nil
}

// keep remembers the states of a key, and forgets the oldest beyond most.
func (m *memory) keep(key keys.Name, states learned, most int) {
	if states == nil || most <= 0 {
		return
	}
	if m.memos == nil {
		m.memos = make(map[keys.Name]*list.Element)
	}
	m.drop(key)
	m.memos[key] = m.order.PushBack(&memo{key, states})
	for len(m.memos) > most {
		delete(m.memos, m.order.Remove(m.order.Front()).(*memo).key)
	}
}

// drop forgets a key: it is back, and its controllers know.
func (m *memory) drop(key keys.Name) {
	if e := m.memos[key]; e != nil {
		m.order.Remove(e)
		delete(m.memos, key)
	}
}
