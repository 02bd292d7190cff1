package kafka

import (
	"slices"
	"testing"
)

// A connection against a model of it: all answers in the order of their requests, each written once and by one goroutine at a time, and
// nothing taken for an answer that is none. The two goroutines of a relay are two places in the program that take a step in turn.
func FuzzConnection(f *testing.F) {
	f.Add([]byte{0, 1, 1, 2, 3, 1, 3, 2, 4})
	f.Add([]byte{1, 3, 1, 0, 1, 2, 4, 1, 3, 3, 4, 4})
	f.Fuzz(func(t *testing.T, program []byte) {
		var c connection
		var sent, toBroker, written []int32
		var writers [2][]byte // what each goroutine writes now: requests, answers
		wrote := func(own []byte) { written = append(written, int32(own[0])) }
		for i, op := range program {
			id := int32(len(sent))
			switch op % 5 {
			case 0, 1: // a request comes, for the broker or not, unless an own answer is just being written
				if writers[0] != nil || c.full() || id > 200 {
					continue
				}
				p := pending{request: request{correlation: id}}
				if op%5 == 1 {
					p.own = []byte{byte(id)}
				} else {
					toBroker = append(toBroker, id)
				}
				sent = append(sent, id)
				c.expect(p)
				if p.own != nil {
					writers[0] = c.firstOwn()
				}
			case 2: // the broker answers
				if writers[1] != nil || len(toBroker) == 0 {
					if _, err := c.answers(id + 1000); err == nil {
						t.Fatalf("step %d: an answer to nothing is taken", i)
					}
					continue
				}
				if _, err := c.answers(toBroker[0] + 1); err == nil {
					t.Fatalf("step %d: an answer to request %d is taken for one to %d", i, toBroker[0]+1, toBroker[0])
				}
				if writers[0] != nil {
					continue // requests behind an own answer that is being written have not been sent
				}
				p, err := c.answers(toBroker[0])
				if err != nil || p.correlation != toBroker[0] {
					t.Fatalf("step %d: %+v, %v", i, p, err)
				}
				written, toBroker = append(written, toBroker[0]), toBroker[1:]
				c.answered()
				writers[1] = c.firstOwn()
			case 3, 4: // a goroutine has written its own answer
				if w := op%5 - 3; writers[w] != nil {
					wrote(writers[w])
					writers[w] = c.nextOwn()
				}
			}
			if writers[0] != nil && writers[1] != nil {
				t.Fatalf("step %d: both goroutines write", i)
			}
		}
		for len(c.pending) > 0 { // let all end
			switch {
			case writers[0] != nil:
				wrote(writers[0])
				writers[0] = c.nextOwn()
			case writers[1] != nil:
				wrote(writers[1])
				writers[1] = c.nextOwn()
			default:
				if _, err := c.answers(toBroker[0]); err != nil {
					t.Fatal(err)
				}
				written, toBroker = append(written, toBroker[0]), toBroker[1:]
				c.answered()
				writers[1] = c.firstOwn()
			}
		}
		if !slices.Equal(written, sent) {
			t.Fatalf("answers to %v, of requests %v", written, sent)
		}
	})
}
