package main

import (
	"errors"
	"testing"
	"testing/synctest"
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
	c := claim{epoch: 2<<generationBits + 3, next: 10, leader: 5}
	epoch := func(group, generation int64) claim { return claim{group<<generationBits + generation, 10, 5} }
	for _, tt := range []struct {
		name       string
		generation int32
		over       int64
		want       claim
	}{
		{"a later owner", 4, 0, epoch(2, 4)},
		{"the same owner", 3, 0, c},
		{"of a group that has begun anew", 1, c.epoch, epoch(3, 1)},
		{"of one whose generations are higher already", 9, c.epoch, epoch(3, 9)},
		{"a later owner, whatever was over before", 4, c.epoch - 1, epoch(2, 4)},
	} {
		if got, err := c.take(tt.generation, tt.over); err != nil || got != tt.want {
			t.Errorf("%s: %+v, %v", tt.name, got, err)
		}
	}
	for _, over := range []int64{0, c.epoch - 1, c.epoch + 1, 3} {
		if got, err := c.take(2, over); !errors.Is(err, errFenced) || got != c {
			t.Errorf("an earlier owner, after %d: %+v, %v", over, got, err)
		}
	}
	if err := c.owned(c.epoch); err != nil {
		t.Error(err)
	}
	for _, other := range []int64{c.epoch - 1, c.epoch + 1, 3} {
		if err := c.owned(other); !errors.Is(err, errFenced) {
			t.Errorf("by epoch %#x: %v", other, err)
		}
	}
	for epoch, want := range map[int64]string{3: "generation 3", 1<<generationBits + 7: "generation 7 of group 2"} {
		if got := ownerOf(epoch); got != want {
			t.Errorf("%#x is %s, want %s", epoch, got, want)
		}
	}
	for _, tt := range []struct {
		name   string
		offset int64
		fresh  bool
		next   int64
		leader int32
	}{
		{"the next record", 10, true, 11, 6},
		{"one with an old id", 10, false, 11, 6},
		{"a record behind a gap", 15, true, 16, 6},
		{"a record once more", 9, false, 10, 5},
		{"a new record in the place of one that is lost", 7, true, 8, 6},
	} {
		if got, want := c.advance(tt.offset, 6, tt.fresh), (claim{c.epoch, tt.next, tt.leader}); got != want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, want)
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

// Records of a partition wait for one another only so long: meanwhile older ones of other partitions wait, too.
func TestGather(t *testing.T) {
	records := make([]*kgo.Record, 1000)
	for i := range records {
		records[i] = &kgo.Record{}
	}
	for _, tt := range []struct {
		work time.Duration
		want int
	}{{0, maxGroup}, {time.Millisecond, 8}, {4 * time.Millisecond, 2}, {time.Minute, 1}} {
		synctest.Test(t, func(t *testing.T) {
			p := &processor{pace: pace{each: tt.work, due: time.Now()}}
			if got, err := p.gather(t.Context(), records); len(got) != tt.want || err != nil {
				t.Errorf("%v each: %d records in a transaction, want %d: %v", tt.work, len(got), tt.want, err)
			}
		})
	}
}
