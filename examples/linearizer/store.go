package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"time"

	_ "modernc.org/sqlite"
)

// store is the database of all processes of one machine: a file of SQLite. Processors write it. API servers read it, and
// like processors tie it to a topic.
type store struct{ db *sql.DB }

// errOtherTopic is a store that belongs to another topic: its offsets and epochs would mean nothing here.
var errOtherTopic = errors.New("the store belongs to another topic")

const schema = `
CREATE TABLE IF NOT EXISTS topic (one INTEGER PRIMARY KEY CHECK (one = 1), identity TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS partitions (partition INTEGER PRIMARY KEY, epoch INTEGER NOT NULL, next INTEGER NOT NULL, leader INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS databases (name TEXT PRIMARY KEY, revision INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS events (
	database TEXT NOT NULL, revision INTEGER NOT NULL, batch TEXT NOT NULL, type TEXT NOT NULL, data BLOB,
	PRIMARY KEY (database, revision)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS batches (
	database TEXT NOT NULL, id TEXT NOT NULL, digest BLOB NOT NULL, status TEXT NOT NULL,
	first INTEGER NOT NULL, last INTEGER NOT NULL, expected INTEGER NOT NULL, revision INTEGER NOT NULL, reason TEXT NOT NULL,
	PRIMARY KEY (database, id)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS rejects (
	partition INTEGER NOT NULL, "offset" INTEGER NOT NULL, reason TEXT NOT NULL,
	PRIMARY KEY (partition, "offset")) WITHOUT ROWID;`

// openStore opens the file, and makes it if it is not there.
//
// WAL lets API servers read while a processor writes. With synchronous=FULL a commit is on the disk, so what
// was acknowledged outlasts the machine's power, not only the process.
func openStore(ctx context.Context, path string, connections int) (*store, error) {
	name := url.URL{Scheme: "file", Opaque: url.PathEscape(path), RawQuery: url.Values{
		"_pragma": {"busy_timeout(10000)", "journal_mode(WAL)", "synchronous(FULL)"},
		"_txlock": {"immediate"},
	}.Encode()}
	db, err := sql.Open("sqlite", name.String())
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	if _, err := db.ExecContext(ctx, schema); err != nil {
		return nil, errors.Join(fmt.Errorf("the store %s: %w", path, err), db.Close())
	}
	return &store{db}, nil
}

func (s *store) close() error { return s.db.Close() }

// belong ties the store to a topic: to the identity of its cluster and its own. A topic that was deleted and
// made anew is another one. A store that is tied is only read, for it may be busy or full.
func (s *store) belong(ctx context.Context, identity string) error {
	const ask = "SELECT identity FROM topic"
	var is string
	err := s.db.QueryRowContext(ctx, ask).Scan(&is)
	if errors.Is(err, sql.ErrNoRows) {
		if _, err := s.db.ExecContext(ctx, "INSERT INTO topic VALUES (1, ?) ON CONFLICT DO NOTHING", identity); err != nil {
			return err
		}
		err = s.db.QueryRowContext(ctx, ask).Scan(&is)
	}
	if err != nil {
		return err
	}
	if is != identity {
		return fmt.Errorf("%w: to %s, and this is %s; use another file", errOtherTopic, is, identity)
	}
	return nil
}

// inTx runs f in a transaction that holds SQLite's only right to write from its beginning.
func (s *store) inTx(ctx context.Context, f func(tx *sql.Tx) error) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := f(tx); err != nil {
		return errors.Join(err, ignoreDone(tx.Rollback()))
	}
	return tx.Commit()
}

// ignoreDone leaves out that a transaction has ended by itself, with its context.
func ignoreDone(err error) error {
	if errors.Is(err, sql.ErrTxDone) {
		return nil
	}
	return err
}

// take makes a processor of this generation the owner of a partition, and says where it begins. next is 0 if nothing
// of the partition was ever applied. With an error, it says who is the owner.
func (s *store) take(ctx context.Context, partition, generation int32, gone int64) (c claim, err error) {
	err = s.inTx(ctx, func(tx *sql.Tx) (err error) {
		if c, err = claimOf(ctx, tx, partition); err != nil {
			return err
		}
		if c, err = c.take(generation, gone); err != nil {
			return fmt.Errorf("partition %d: %w", partition, err)
		}
		return c.save(ctx, tx, partition)
	})
	return c, err
}

// rewind moves a partition back to where Kafka's log ends, or has ended before others went on. What is written there
// is new, whatever was applied of these offsets before.
func (s *store) rewind(ctx context.Context, partition int32, epoch, to int64) error {
	return s.inTx(ctx, func(tx *sql.Tx) error {
		c, err := claimOf(ctx, tx, partition)
		if err == nil {
			err = c.owned(epoch)
		}
		if err != nil || c.next <= to {
			return err
		}
		c.next, c.leader = to, -1
		return errors.Join(forgetFrom(ctx, tx, partition, to), c.save(ctx, tx, partition))
	})
}

func claimOf(ctx context.Context, tx *sql.Tx, partition int32) (claim, error) {
	c := claim{leader: -1}
	err := tx.QueryRowContext(ctx, "SELECT epoch, next, leader FROM partitions WHERE partition = ?", partition).Scan(&c.epoch, &c.next, &c.leader)
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return c, err
}

func (c claim) save(ctx context.Context, tx *sql.Tx, partition int32) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO partitions VALUES (?, ?, ?, ?) ON CONFLICT (partition) DO UPDATE
		SET epoch = excluded.epoch, next = excluded.next, leader = excluded.leader`, partition, c.epoch, c.next, c.leader)
	return err
}

// entry is a record of the topic on its way into the store, and what comes out.
type entry struct {
	offset int64
	leader int32 // the leader epoch
	record record
	fault  error // why it is no batch, nil if it is one
	result result
}

// apply writes the events, results and ids of some records of a partition, and the offset after the last, in
// one transaction. A record that was applied before gets the result of then.
func (s *store) apply(ctx context.Context, partition int32, epoch int64, entries []entry) error {
	return s.inTx(ctx, func(tx *sql.Tx) error {
		c, err := claimOf(ctx, tx, partition)
		if err != nil {
			return err
		}
		if err := c.owned(epoch); err != nil {
			return fmt.Errorf("partition %d: %w", partition, err)
		}
		for i := range entries {
			e := &entries[i]
			fresh, err := e.settle(ctx, tx, partition)
			if err != nil {
				return err
			}
			if fresh && e.offset < c.next {
				if err := forgetFrom(ctx, tx, partition, e.offset); err != nil {
					return err
				}
			}
			c = c.advance(e.offset, e.leader, fresh)
		}
		if err := forgetRejects(ctx, tx, partition); err != nil {
			return err
		}
		return c.save(ctx, tx, partition)
	})
}

// settle decides about one record, and writes what follows. fresh says that its batch had no result before.
func (e *entry) settle(ctx context.Context, tx *sql.Tx, partition int32) (fresh bool, err error) {
	r := &e.record
	if e.fault != nil {
		return false, e.reject(ctx, tx, partition)
	}
	before, err := settledOf(ctx, tx, r.Database, r.Batch.ID)
	if err != nil {
		return false, err
	}
	var head int64
	err = tx.QueryRowContext(ctx, "SELECT revision FROM databases WHERE name = ?", r.Database).Scan(&head)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return false, err
	}
	if e.result, fresh = decide(&r.Batch, head, before); !fresh {
		return false, nil
	}
	return true, e.write(ctx, tx)
}

// write is for a batch that is new.
func (e *entry) write(ctx context.Context, tx *sql.Tx) error {
	r := &e.record
	if err := keep(ctx, tx, r.Database, r.Batch.ID, settled{e.result, r.Batch.digest()}); err != nil {
		return err
	}
	if e.result.Status != applied {
		return nil
	}
	for i, ev := range r.Batch.Events {
		if _, err := tx.ExecContext(ctx, "INSERT INTO events VALUES (?, ?, ?, ?, ?)", r.Database, e.result.First+int64(i), r.Batch.ID, ev.Type, []byte(ev.Data)); err != nil {
			return err
		}
	}
	_, err := tx.ExecContext(ctx, "INSERT INTO databases VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET revision = excluded.revision", r.Database, e.result.Last)
	return err
}

// keptRejects is how many records that are no batch are remembered for each partition.
const keptRejects = 1000

// reject keeps why a record is no batch. It is no result of the id that the record names, if any: whoever
// writes rubbish into the topic would take ids from others.
func (e *entry) reject(ctx context.Context, tx *sql.Tx, partition int32) error {
	e.result = result{Status: noBatch, Reason: clip(e.fault.Error())}
	_, err := tx.ExecContext(ctx, "INSERT INTO rejects VALUES (?, ?, ?) ON CONFLICT DO NOTHING", partition, e.offset, e.result.Reason)
	return err
}

// forgetRejects keeps the newest of a partition.
func forgetRejects(ctx context.Context, tx *sql.Tx, partition int32) error {
	_, err := tx.ExecContext(ctx, `DELETE FROM rejects WHERE partition = ? AND "offset" <= (
		SELECT "offset" FROM rejects WHERE partition = ? ORDER BY "offset" DESC LIMIT 1 OFFSET ?)`, partition, partition, keptRejects)
	return err
}

// forgetFrom forgets those of a partition from an offset on: Kafka has lost them, and others come there.
func forgetFrom(ctx context.Context, tx *sql.Tx, partition int32, offset int64) error {
	_, err := tx.ExecContext(ctx, `DELETE FROM rejects WHERE partition = ? AND "offset" >= ?`, partition, offset)
	return err
}

// querier is a transaction or the database itself.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// settledOf returns what became of a batch, nil if nothing yet.
func settledOf(ctx context.Context, q querier, database, id string) (*settled, error) {
	var s settled
	err := q.QueryRowContext(ctx, "SELECT digest, status, first, last, expected, revision, reason FROM batches WHERE database = ? AND id = ?", database, id).
		Scan(&s.digest, &s.Status, &s.First, &s.Last, &s.Expected, &s.Revision, &s.Reason)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &s, nil
}

func keep(ctx context.Context, tx *sql.Tx, database, id string, s settled) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
		database, id, s.digest, s.Status, s.First, s.Last, s.Expected, s.Revision, s.Reason)
	return err
}

// logged is an event as the log has it.
type logged struct {
	Revision int64  `json:"revision"`
	Batch    string `json:"batch"`
	event
}

// log returns at most most events of a database, from a revision on. It ends with the one by which their data has
// that many bytes.
func (s *store) log(ctx context.Context, database string, from int64, most, bytes int) (events []logged, err error) {
	rows, err := s.db.QueryContext(ctx, "SELECT revision, batch, type, data FROM events WHERE database = ? AND revision >= ? ORDER BY revision LIMIT ?", database, from, most)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for bytes > 0 && rows.Next() {
		var l logged
		var data []byte
		if err := rows.Scan(&l.Revision, &l.Batch, &l.Type, &data); err != nil {
			return nil, err
		}
		l.Data = data
		bytes -= len(data)
		events = append(events, l)
	}
	return events, rows.Err()
}

// passed says what became of a record that has no result by its batch's id. ok is false if that is not yet
// known.
func (s *store) passed(ctx context.Context, partition int32, offset int64) (r result, ok bool, err error) {
	err = s.db.QueryRowContext(ctx, `SELECT reason FROM rejects WHERE partition = ? AND "offset" = ?`, partition, offset).Scan(&r.Reason)
	if err == nil {
		r.Status = noBatch
		return r, true, nil
	}
	if !errors.Is(err, sql.ErrNoRows) {
		return r, false, err
	}
	next, err := s.next(ctx, partition)
	if err != nil || next <= offset {
		return r, false, err
	}
	return result{Status: lost, Reason: "the processors are past the record, and have not seen it; it was deleted from the topic"}, true, nil
}

// next is the offset of the first record of a partition that is not applied.
func (s *store) next(ctx context.Context, partition int32) (next int64, err error) {
	err = s.db.QueryRowContext(ctx, "SELECT next FROM partitions WHERE partition = ?", partition).Scan(&next)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	}
	return next, err
}

// retryAfter is how long to wait after so many failures in a row.
func retryAfter(failures int) time.Duration {
	return min(50*time.Millisecond<<min(failures, 6), 2*time.Second)
}
