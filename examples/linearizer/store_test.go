package main

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"

	"modernc.org/sqlite"
)

func newStore(t *testing.T) *store {
	t.Helper()
	s, err := openStore(t.Context(), filepath.Join(t.TempDir(), "a store?#%.db"), writers)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.db.ExecContext(t.Context(), "PRAGMA synchronous = OFF"); err != nil { // no power fails here
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// model is a naive store: it keeps everything that was ever sent, and says again what it has said.
type model struct {
	logs    map[string][]logged
	answers map[string]settled // by database and id
	claims  map[int32]claim
}

func (m *model) apply(e *entry) (fresh bool) {
	r := &e.record
	key := r.Database + "\x00" + r.Batch.ID
	if said, ok := m.answers[key]; ok {
		if e.result = said.result; string(said.digest) != string(r.Batch.digest()) {
			e.result = result{Status: reused}
		}
		return false
	}
	head := int64(len(m.logs[r.Database]))
	if r.Batch.Expect == nil || *r.Batch.Expect == head {
		for i, ev := range r.Batch.Events {
			m.logs[r.Database] = append(m.logs[r.Database], logged{Revision: head + int64(i) + 1, Batch: r.Batch.ID, event: ev})
		}
		e.result = result{Status: applied, First: head + 1, Last: head + int64(len(r.Batch.Events))}
	} else {
		e.result = result{Status: conflict, Expected: *r.Batch.Expect, Revision: head}
	}
	m.answers[key] = settled{e.result, r.Batch.digest()}
	return true
}

// Two processors, one of them always behind what the group has decided, write the records of two partitions:
// some of them again, some with an id that was used, in groups of any size. The store is what the naive model
// says, and whoever has lost a partition writes nothing. The group is deleted now and then, and Kafka loses records.
func TestStoreModel(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			s := newStore(t)
			random := rand.New(rand.NewPCG(seed, 1))
			m := &model{logs: map[string][]logged{}, answers: map[string]settled{}, claims: map[int32]claim{}}
			topics := map[int32][]record{} // what the topic holds
			held := [2]map[int32]int64{{}, {}}
			generation := int32(0)
			for rebalances := 0; t.Context().Err() == nil && rebalances < 50; {
				who, partition := random.IntN(2), int32(random.IntN(2))
				switch random.IntN(10) {
				case 0:
					rebalances++
					if generation++; random.IntN(5) == 0 { // the group was deleted
						generation = 1
					}
					was, over := m.claims[partition], int64(0)
					if generation <= int32(was.epoch) {
						over = was.epoch
					}
					c, err := s.take(t.Context(), partition, generation, over)
					if want := was.next; err != nil || c.next != want || c.epoch <= was.epoch {
						t.Fatalf("taken over at %+v, was %+v: %v", c, was, err)
					}
					m.claims[partition] = c
					held[who][partition] = c.epoch
				case 1: // one who was frozen wants to take it over
					if c := m.claims[partition]; int32(c.epoch) > 1 {
						for _, over := range []int64{0, c.epoch - 1} {
							if got, err := s.take(t.Context(), partition, int32(c.epoch)-1, over); !errors.Is(err, errFenced) || got.epoch != c.epoch {
								t.Fatalf("taken over with an old generation: %v", err)
							}
						}
					}
				case 2: // Kafka loses records, and perhaps says so
					if random.IntN(3) > 0 {
						continue
					}
					left := len(topics[partition]) - random.IntN(min(len(topics[partition]), 5)+1)
					topics[partition] = topics[partition][:left]
					if c := m.claims[partition]; random.IntN(2) == 0 && c.next > int64(left) {
						if err := s.rewind(t.Context(), partition, c.epoch-1, int64(left)); !errors.Is(err, errFenced) {
							t.Fatalf("rewound by an old owner: %v", err)
						}
						if err := s.rewind(t.Context(), partition, c.epoch, int64(left)); err != nil {
							t.Fatal(err)
						}
						c.next = int64(left)
						m.claims[partition] = c
					}
				default:
					epoch := held[who][partition]
					if epoch == 0 {
						continue
					}
					step(t, s, m, random, topics, partition, epoch)
				}
			}
			m.compare(t, s)
		})
	}
}

// step applies some records, old ones and new ones, as the model does.
func step(t *testing.T, s *store, m *model, random *rand.Rand, topics map[int32][]record, partition int32, epoch int64) {
	t.Helper()
	for range random.IntN(4) {
		topics[partition] = append(topics[partition], draw(random, partition))
	}
	from := min(max(0, int(m.claims[partition].next)-random.IntN(8)), len(topics[partition]))
	to := min(len(topics[partition]), from+1+random.IntN(5))
	var entries, wanted []entry
	for at := from; at < to; at++ {
		entries = append(entries, entry{offset: int64(at), record: topics[partition][at]})
	}
	wanted = slices.Clone(entries)
	err := s.apply(t.Context(), partition, epoch, entries)
	if len(entries) == 0 {
		return
	}
	c := m.claims[partition]
	if epoch != c.epoch {
		if !errors.Is(err, errFenced) {
			t.Fatalf("epoch %d wrote a partition of epoch %d: %v", epoch, c.epoch, err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	for i := range wanted {
		if fresh := m.apply(&wanted[i]); fresh || wanted[i].offset >= c.next {
			c.next = wanted[i].offset + 1
		}
		got, want := entries[i].result, wanted[i].result
		if got.Reason = ""; got != want {
			t.Fatalf("record %d of partition %d: %+v, want %+v", wanted[i].offset, partition, got, want)
		}
	}
	m.claims[partition] = c
	if next, err := s.next(t.Context(), partition); err != nil || next != c.next {
		t.Fatalf("partition %d goes on at %d, want %d: %v", partition, next, c.next, err)
	}
}

// draw makes a record. Its database goes by the partition, as the topic's key does.
func draw(random *rand.Rand, partition int32) record {
	r := record{Version: version, Origin: "127.0.0.1:1", Token: "t", Database: fmt.Sprintf("db%d.%d", partition, random.IntN(2))}
	var to *int64
	if random.IntN(3) == 0 {
		to = expect(int64(random.IntN(30)))
	}
	r.Batch = batchOf(strconv.Itoa(random.IntN(60)), to, []string{"a", "b", "c"}[:1+random.IntN(3)]...)
	return r
}

// compare holds the whole store against the model.
func (m *model) compare(t *testing.T, s *store) {
	t.Helper()
	events := 0
	for database, want := range m.logs {
		got, err := s.log(t.Context(), database, 1, 1_000_000, 1<<30)
		if err != nil || len(got) != len(want) {
			t.Fatalf("%s: %d events, want %d: %v", database, len(got), len(want), err)
		}
		for i := range got {
			if got[i].Revision != want[i].Revision || got[i].Batch != want[i].Batch || got[i].Type != want[i].Type {
				t.Fatalf("%s: %+v, want %+v", database, got[i], want[i])
			}
		}
		events += len(got)
	}
	var batches int
	if err := s.db.QueryRowContext(t.Context(), "SELECT count(*) FROM batches").Scan(&batches); err != nil || batches != len(m.answers) {
		t.Errorf("%d results, want %d: %v", batches, len(m.answers), err)
	}
	if events < 100 {
		t.Errorf("only %d events: the test shows little", events)
	}
}

// What a transaction leaves when it fails: nothing.
func TestAllOrNothing(t *testing.T) {
	s := newStore(t)
	if _, err := s.take(t.Context(), 0, 1, 0); err != nil {
		t.Fatal(err)
	}
	good := entry{offset: 0, record: record{Database: "d", Batch: batchOf("1", nil, "a")}}
	if _, err := s.db.ExecContext(t.Context(), "CREATE TRIGGER full BEFORE INSERT ON events WHEN NEW.batch = '2' BEGIN SELECT RAISE(FAIL, 'the disk is full'); END"); err != nil {
		t.Fatal(err)
	}
	bad := entry{offset: 1, record: record{Database: "d", Batch: batchOf("2", nil, "a", "b")}}
	if err := s.apply(t.Context(), 0, 1, []entry{good, bad}); err == nil {
		t.Fatal("no error")
	}
	if next, err := s.next(t.Context(), 0); err != nil || next != 0 {
		t.Errorf("the next is %d: %v", next, err)
	}
	if events, err := s.log(t.Context(), "d", 1, 10, 1<<30); err != nil || len(events) != 0 {
		t.Errorf("%v: %v", events, err)
	}
	if b, err := settledOf(t.Context(), s.db, "d", "1"); err != nil || b != nil {
		t.Errorf("%+v: %v", b, err)
	}
}

func TestBelong(t *testing.T) {
	s := newStore(t)
	for _, tt := range []struct {
		identity string
		want     error
	}{{"a/1", nil}, {"a/1", nil}, {"a/2", errOtherTopic}} {
		if err := s.belong(t.Context(), tt.identity); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v", tt.identity, err)
		}
	}
}

// Where Kafka's log has ended before, a partition goes back, and no leader epoch is known of the record before.
func TestRewind(t *testing.T) {
	s := newStore(t)
	if _, err := s.take(t.Context(), 0, 1, 0); err != nil {
		t.Fatal(err)
	}
	entries := []entry{{offset: 3, leader: 7, fault: errors.New("no batch")}, {offset: 4, leader: 7, fault: errors.New("no batch")}}
	if err := s.apply(t.Context(), 0, 1, entries); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		epoch, to int64
		want      claim
		fenced    bool
	}{
		{1, 9, claim{epoch: 1, next: 5, leader: 7}, false},
		{1, 5, claim{epoch: 1, next: 5, leader: 7}, false},
		{2, 4, claim{epoch: 1, next: 5, leader: 7}, true},
		{1, 4, claim{epoch: 1, next: 4, leader: -1}, false},
	} {
		if err := s.rewind(t.Context(), 0, tt.epoch, tt.to); errors.Is(err, errFenced) != tt.fenced || err != nil && !tt.fenced {
			t.Errorf("to %d by %d: %v", tt.to, tt.epoch, err)
		}
		var got claim
		if err := s.inTx(t.Context(), func(tx *sql.Tx) (err error) { got, err = claimOf(t.Context(), tx, 0); return err }); err != nil || got != tt.want {
			t.Errorf("to %d by %d: %+v, %v; want %+v", tt.to, tt.epoch, got, err, tt.want)
		}
	}
	if _, ok, err := s.passed(t.Context(), 0, 4); err != nil || ok {
		t.Errorf("what was there is known still: %v, %v", ok, err)
	}
}

// A record that is not acknowledged has no offset yet: nobody is past it.
func TestNotAcknowledgedIsNotLost(t *testing.T) {
	s := newStore(t)
	if _, err := s.take(t.Context(), 0, 1, 0); err != nil {
		t.Fatal(err)
	}
	a := &api{cfg: apiConfig{store: s}}
	if res, ok, err := a.find(t.Context(), &request{database: "d", id: "1", offset: -1, asked: askForLost}); ok || err != nil {
		t.Errorf("%+v, %v, %v", res, ok, err)
	}
}

// counting connects to a file by a driver of its own.
type counting struct {
	driver *sqlite.Driver
	path   string
}

func (c counting) Connect(context.Context) (sqldriver.Conn, error) { return c.driver.Open(c.path) }
func (c counting) Driver() sqldriver.Driver                        { return c.driver }

// A result may come between the two questions of an API server: whether there is one, and whether the processors are past
// the record. Then it is the answer.
func TestResultBetweenTwoQuestions(t *testing.T) {
	var asked atomic.Int64
	driver := &sqlite.Driver{}
	driver.MustRegisterScalarFunction("asked", 0, func(*sqlite.FunctionContext, []sqldriver.Value) (sqldriver.Value, error) {
		return asked.Add(1), nil
	})
	path := filepath.Join(t.TempDir(), "store.db")
	s, err := openStore(t.Context(), path, writers)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.close() })
	if _, err := s.take(t.Context(), 0, 1, 0); err != nil {
		t.Fatal(err)
	}
	b := batchOf("1", nil, "a")
	if err := s.apply(t.Context(), 0, 1, []entry{{offset: 3, record: record{Database: "d", Batch: b}}}); err != nil {
		t.Fatal(err)
	}
	for _, change := range []string{"ALTER TABLE batches RENAME TO kept", "CREATE VIEW batches AS SELECT * FROM kept WHERE asked() > 1"} {
		if _, err := s.db.ExecContext(t.Context(), change); err != nil {
			t.Fatal(err)
		}
	}
	db := sql.OpenDB(counting{driver, path})
	t.Cleanup(func() { _ = db.Close() })
	a := &api{cfg: apiConfig{store: &store{db}}}
	res, ok, err := a.find(t.Context(), &request{database: "d", id: "1", digest: b.digest(), offset: 3, asked: askForLost})
	if err != nil || !ok || res.Status != applied || asked.Load() != 2 {
		t.Errorf("%+v, %v, %v after %d questions", res, ok, err, asked.Load())
	}
}

// Records that are no batch are remembered, so many of each partition.
func TestRejectsAreBounded(t *testing.T) {
	s := newStore(t)
	if _, err := s.take(t.Context(), 0, 1, 0); err != nil {
		t.Fatal(err)
	}
	var entries []entry
	for i := range int64(keptRejects + 50) {
		entries = append(entries, entry{offset: i, fault: errors.New("no batch")})
	}
	if err := s.apply(t.Context(), 0, 1, entries); err != nil {
		t.Fatal(err)
	}
	var n, first int64
	if err := s.db.QueryRowContext(t.Context(), `SELECT count(*), min("offset") FROM rejects`).Scan(&n, &first); err != nil || n != keptRejects || first != 50 {
		t.Errorf("%d, from %d: %v", n, first, err)
	}
	if r, ok, err := s.passed(t.Context(), 0, 60); err != nil || !ok || r.Status != noBatch {
		t.Errorf("%+v, %v, %v", r, ok, err)
	}
	if r, ok, err := s.passed(t.Context(), 0, 10); err != nil || !ok || r.Status != lost {
		t.Errorf("%+v, %v, %v", r, ok, err)
	}
	if r, ok, err := s.passed(t.Context(), 0, 5000); err != nil || ok {
		t.Errorf("%+v, %v, %v", r, ok, err)
	}
	// A new batch among them: Kafka has lost what was here, and what stands behind it is not known yet.
	if err := s.apply(t.Context(), 0, 1, []entry{{offset: 500, record: record{Database: "d", Batch: batchOf("1", nil, "a")}}}); err != nil {
		t.Fatal(err)
	}
	if r, ok, err := s.passed(t.Context(), 0, 600); err != nil || ok {
		t.Errorf("%+v, %v, %v", r, ok, err)
	}
	if r, ok, err := s.passed(t.Context(), 0, 400); err != nil || !ok || r.Status != noBatch {
		t.Errorf("%+v, %v, %v", r, ok, err)
	}
}

// A partition that is taken over in the middle of a transaction is taken over behind it: what it wrote counts, and
// the next owner begins there.
func TestTakenOverWithinATransaction(t *testing.T) {
	s := newSystem(t)
	first, second := s.store(writers), s.store(writers)
	if _, err := first.take(t.Context(), 0, 1, 0); err != nil {
		t.Fatal(err)
	}
	taken := make(chan error, 1)
	var next claim
	err := first.inTx(t.Context(), func(tx *sql.Tx) error {
		c, err := claimOf(t.Context(), tx, 0)
		if err != nil {
			return err
		}
		go func() {
			var err error
			next, err = second.take(t.Context(), 0, 2, 0)
			taken <- err
		}()
		return c.advance(6, 0, true).save(t.Context(), tx, 0)
	})
	if err := errors.Join(err, <-taken); err != nil || next.next != 7 {
		t.Errorf("the next owner begins at %d, %v; want 7", next.next, err)
	}
	if err := first.apply(t.Context(), 0, 1, []entry{{offset: 7, fault: errors.New("no batch")}}); !errors.Is(err, errFenced) {
		t.Errorf("the owner of before writes: %v", err)
	}
}
