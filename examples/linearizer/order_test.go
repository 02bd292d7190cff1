package main

import (
	"errors"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func expect(n int64) *int64 { return &n }

func batchOf(id string, expect *int64, types ...string) batch {
	b := batch{ID: id, Expect: expect}
	for _, t := range types {
		b.Events = append(b.Events, event{Type: t})
	}
	return b
}

func TestDecide(t *testing.T) {
	one := batchOf("1", nil, "a", "b")
	stands := &settled{result{Status: applied, First: 3, Last: 4}, one.digest()}
	failed := &settled{result{Status: conflict, Expected: 1, Revision: 2}, one.digest()}
	other := batchOf("1", expect(0), "a", "b")
	for _, tt := range []struct {
		name   string
		batch  batch
		head   int64
		before *settled
		want   status
		first  int64
		last   int64
		fresh  bool
	}{
		{"the first events", one, 0, nil, applied, 1, 2, true},
		{"behind others", one, 7, nil, applied, 8, 9, true},
		{"as expected", batchOf("1", expect(7), "a"), 7, nil, applied, 8, 8, true},
		{"an empty database, as expected", batchOf("1", expect(0), "a"), 0, nil, applied, 1, 1, true},
		{"behind what was expected", batchOf("1", expect(7), "a"), 6, nil, conflict, 0, 0, true},
		{"beyond what was expected", batchOf("1", expect(7), "a"), 8, nil, conflict, 0, 0, true},
		{"once more", one, 9, stands, applied, 3, 4, false},
		{"a conflict once more stays one", one, 2, failed, conflict, 0, 0, false},
		{"another content", batchOf("1", nil, "a"), 9, stands, reused, 0, 0, false},
		{"another precondition is another content", other, 9, stands, reused, 0, 0, false},
	} {
		r, fresh := decide(&tt.batch, tt.head, tt.before)
		if r.Status != tt.want || r.First != tt.first || r.Last != tt.last || fresh != tt.fresh {
			t.Errorf("%s: %+v, fresh %v", tt.name, r, fresh)
		}
	}
}

func TestClaim(t *testing.T) {
	c := claim{epoch: 3, next: 10}
	if got, err := c.take(4); err != nil || got != (claim{4, 10}) {
		t.Errorf("a later owner: %+v, %v", got, err)
	}
	if got, err := c.take(3); err != nil || got != c {
		t.Errorf("the same owner: %+v, %v", got, err)
	}
	if got, err := c.take(2); !errors.Is(err, errFenced) || got != c {
		t.Errorf("an earlier owner: %+v, %v", got, err)
	}
	if got, done, err := c.advance(3, 10); err != nil || done || got != (claim{3, 11}) {
		t.Errorf("the next record: %+v, %v, %v", got, done, err)
	}
	if got, done, err := c.advance(3, 15); err != nil || done || got != (claim{3, 16}) {
		t.Errorf("a record behind a gap: %+v, %v, %v", got, done, err)
	}
	if got, done, err := c.advance(3, 9); err != nil || !done || got != c {
		t.Errorf("a record once more: %+v, %v, %v", got, done, err)
	}
	for _, epoch := range []int64{2, 4} {
		if got, _, err := c.advance(epoch, 10); !errors.Is(err, errFenced) || got != c {
			t.Errorf("by epoch %d: %+v, %v", epoch, got, err)
		}
	}
}

func TestOldest(t *testing.T) {
	part := func(seconds ...int64) kgo.FetchTopicPartition {
		var p kgo.FetchTopicPartition
		for _, s := range seconds {
			p.Records = append(p.Records, &kgo.Record{Timestamp: time.Unix(s, 0)})
		}
		return p
	}
	for _, tt := range []struct {
		name  string
		parts []kgo.FetchTopicPartition
		want  int
	}{
		{"no partition", nil, -1},
		{"no record", []kgo.FetchTopicPartition{part(), part()}, -1},
		{"one", []kgo.FetchTopicPartition{part(), part(5)}, 1},
		{"the second is older", []kgo.FetchTopicPartition{part(5, 6), part(4, 9)}, 1},
		{"only the first record counts", []kgo.FetchTopicPartition{part(5, 1), part(4)}, 1},
		{"the first of equals", []kgo.FetchTopicPartition{part(5), part(5)}, 0},
	} {
		if got := oldest(tt.parts); got != tt.want {
			t.Errorf("%s: %d, want %d", tt.name, got, tt.want)
		}
	}
}
