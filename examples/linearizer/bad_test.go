package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/weirkafka"
)

const goodRecord = `{"version":1,"database":"orders","origin":"127.0.0.1:1","token":"t","batch":{"id":"1","events":[{"type":"x"}]}}`

func TestParseRecord(t *testing.T) {
	if r, err := parseRecord([]byte(goodRecord)); err != nil || r.Database != "orders" || r.Batch.ID != "1" {
		t.Errorf("%+v: %v", r, err)
	}
	for _, tt := range []struct{ name, value, want string }{
		{"nothing", ``, "not the JSON of a batch"},
		{"no JSON", `hello`, "not the JSON of a batch"},
		{"another type", `{"version":"one"}`, "not the JSON of a batch"},
		{"another version", strings.Replace(goodRecord, `"version":1`, `"version":2`, 1), "version 2; this program reads version 1"},
		{"no origin", strings.Replace(goodRecord, `127.0.0.1:1`, ``, 1), "who waits"},
		{"no token", strings.Replace(goodRecord, `"token":"t"`, `"token":""`, 1), "who waits"},
		{"an origin of 1 KB", strings.Replace(goodRecord, `127.0.0.1:1`, strings.Repeat("x", 1024), 1), "who waits"},
		{"10 MB", strings.Repeat("x", 10<<20), "10485760 bytes, at most 1048576"},
		{"no id", strings.Replace(goodRecord, `"id":"1"`, `"id":""`, 1), "id is empty"},
		{"no database", strings.Replace(goodRecord, `orders`, ``, 1), "database is empty"},
		{"no events", strings.Replace(goodRecord, `{"type":"x"}`, ``, 1), "0 events"},
	} {
		_, err := parseRecord([]byte(tt.value))
		if err == nil || !strings.Contains(err.Error(), tt.want) || len(err.Error()) > 300 {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

// Whatever is wrong with a record, an address or a token that is too long is forgotten: results wait for
// API servers by them, so many for each.
func TestWhoWaitsIsBounded(t *testing.T) {
	long := strings.Repeat("x", 1024)
	for _, tt := range []struct{ name, origin, token, change, to string }{
		{"another type", "127.0.0.1:1", long, `{"type":"x"}`, `5`},
		{"another version", "127.0.0.1:1", long, `"version":1`, `"version":2`},
		{"no events", "127.0.0.1:1", long, `{"type":"x"}`, ``},
		{"a long address of another type", long + ":1", "t", `{"type":"x"}`, `5`},
	} {
		value := strings.NewReplacer("127.0.0.1:1", tt.origin, `"token":"t"`, `"token":"`+tt.token+`"`, tt.change, tt.to).Replace(goodRecord)
		r, err := parseRecord([]byte(value))
		if err == nil || r.Origin != "" || r.Token != "" {
			t.Errorf("%s: an address of %d bytes, a token of %d: %v", tt.name, len(r.Origin), len(r.Token), err)
		}
	}
	// One whose batch is at fault gets the error.
	if r, err := parseRecord([]byte(strings.Replace(goodRecord, `{"type":"x"}`, `5`, 1))); err == nil || r.Origin != "127.0.0.1:1" || r.Token != "t" {
		t.Errorf("%+v: %v", r, err)
	}
}

// produce writes records past the API, all to one partition.
func (s *system) produce(key string, values ...string) (partition int32) {
	s.t.Helper()
	for _, v := range values {
		partition = s.produceAt(key, v).Partition
	}
	return partition
}

// produceAt writes one record, and returns it with its place.
func (s *system) produceAt(key, value string) *kgo.Record {
	s.t.Helper()
	r, err := s.client.ProduceSync(s.t.Context(), &kgo.Record{Key: []byte(key), Value: []byte(value)}).First()
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}

// Whatever stands in the topic, what comes behind it is applied.
func TestRubbishInTheTopic(t *testing.T) {
	s := newSystem(t)
	s.produce("orders", "", "no JSON", strings.Replace(goodRecord, `"version":1`, `"version":7`, 1), `{"version":1,"batch":{"id":"1"}}`, strings.Repeat("x", 900<<10))
	s.processor(nil)
	a := s.api(5, nil)
	if got := s.post(a, "orders", `{"id":"1","events":[{"type":"x"}]}`); got.code != 201 || got.result.First != 1 {
		t.Errorf("behind the rubbish: %d %s", got.code, got.body)
	}
	var n int
	if err := a.cfg.store.db.QueryRowContext(t.Context(), "SELECT count(*) FROM rejects").Scan(&n); err != nil || n != 5 {
		t.Errorf("%d error results: %v", n, err)
	}
	if n := strings.Count(s.logged.String(), "a record is no batch"); n != 5 {
		t.Errorf("%d lines in the log", n)
	}
}

// One id from two clients at once is one batch. With another content, one of the two is refused.
func TestOneIDTwice(t *testing.T) {
	s := newSystem(t)
	s.processor(nil)
	a, b := s.api(5, nil), s.api(5, nil)
	for _, tt := range []struct {
		id, one, other string
		codes          int
	}{{"same", "x", "x", 201 + 201}, {"different", "x", "y", 201 + 422}} {
		var got [2]answer
		var both sync.WaitGroup
		both.Go(func() { got[0] = s.post(a, "orders", `{"id":"`+tt.id+`","events":[{"type":"`+tt.one+`"}]}`) })
		both.Go(func() { got[1] = s.post(b, "orders", `{"id":"`+tt.id+`","events":[{"type":"`+tt.other+`"}]}`) })
		both.Wait()
		if got[0].code+got[1].code != tt.codes || tt.one == tt.other && got[0].result != got[1].result {
			t.Errorf("%s: %d %s, %d %s", tt.id, got[0].code, got[0].body, got[1].code, got[1].body)
		}
	}
	if got := s.get(a, "/v1/databases/orders/events"); len(got.Events) != 2 {
		t.Errorf("%d events", len(got.Events))
	}
}

// An API server that takes connections and never answers holds nobody else up.
func TestSilentOrigin(t *testing.T) {
	s := newSystem(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s.produce("orders", strings.Replace(goodRecord, "127.0.0.1:1", l.Addr().String(), 1), strings.Replace(goodRecord, "127.0.0.1:1", "no address", 1))
	s.processor(nil)
	a := s.api(5, nil)
	if got := s.post(a, "orders", `{"id":"2","expect":1,"events":[{"type":"x"}]}`); got.code != 201 {
		t.Errorf("%d %s", got.code, got.body)
	}
}

// While another process holds the store, or it may not grow, all stands still behind it and comes back.
func TestStoreBusyAndFull(t *testing.T) {
	t.Run("busy", func(t *testing.T) {
		newSystem(t).standsStill("database is locked", func(other *store, processors []*store) (end func()) {
			for _, p := range processors {
				execute(t, p, "PRAGMA busy_timeout = 10") // so that they soon say why
			}
			execute(t, other, "BEGIN IMMEDIATE")
			return func() { execute(t, other, "ROLLBACK") }
		})
	})
	t.Run("full", func(t *testing.T) {
		newSystem(t).standsStill("database or disk is full", func(_ *store, processors []*store) (end func()) {
			limit := func(pages int) {
				for _, p := range processors { // each has one connection, which has the limit
					execute(t, p, fmt.Sprintf("PRAGMA max_page_count = %d", pages))
				}
			}
			limit(1) // as many as it has
			return func() { limit(1 << 30) }
		})
	})
}

func execute(t *testing.T, s *store, statement string) {
	t.Helper()
	if _, err := s.db.ExecContext(t.Context(), statement); err != nil {
		t.Error(err)
	}
}

// standsStill holds what happens when the store cannot be written: the processors stop and say why, the lag rises by what is
// sent, and the API admits less, in the end nobody. It can be read all the time. Afterwards all of that comes back, and nothing
// is lost.
func (s *system) standsStill(says string, begin func(other *store, processors []*store) (end func())) {
	t := s.t
	var processors []*store
	for range 2 {
		s.processor(func(cfg *processorConfig) { processors = append(processors, cfg.store) })
	}
	const most, target = 8, 10
	gate, err := openAdmission(admissionConfig{controller: byLine, min: 1, max: most, target: target, critical: 40, every: 50 * time.Millisecond}, s.brokers, s.log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(gate.close)
	a := s.api(1, func(cfg *apiConfig) { cfg.gate, cfg.overdue = gate, 50*time.Millisecond })
	const databases = 10
	sent := map[string]int{} // batches of each database that were taken
	round := func(n int) (taken int) {
		for i := range databases {
			database := fmt.Sprintf("db%d", i)
			switch code := s.post(a, database, fmt.Sprintf(`{"id":"%d","events":[{"type":"x","data":"%s"}]}`, n, strings.Repeat("x", 2000)), "Prefer", "wait=0").code; code {
			case 201, 202:
				sent[database]++
				taken++
			case 503:
			default:
				t.Errorf("round %d: %d", n, code)
			}
		}
		return taken
	}
	other := s.store(1)
	isApplied := func() (n int64) {
		if err := processors[0].db.QueryRowContext(t.Context(), "SELECT sum(next) FROM partitions").Scan(&n); err != nil {
			t.Error(err)
		}
		return n
	}
	reads := func(want int64) func() bool {
		return func() bool { lag := gate.Lag(); return lag.Known && lag.Value == float64(want) }
	}
	round(0)
	s.until("all is applied before", func() bool { return a.inFlight() == 0 })
	s.until("the lag is 0 before, and every database has all slots", func() bool { return reads(0)() && gate.Snapshot().Limit == most })

	end := sync.OnceFunc(begin(other, processors))
	defer end()
	n := 0
	s.until("nobody is admitted, with fewer slots than before", func() bool {
		n++
		taken, lag := round(n), gate.Lag() // the slots are fewer also while a busy machine cannot tell the lag
		return taken == 0 && gate.Snapshot().Limit < most && lag.Known && lag.Value > target
	})
	s.until("the processors say why they stand still", func() bool {
		log := s.logged.String()
		return strings.Contains(log, "the store cannot be written; trying again") && strings.Contains(log, says)
	})
	standing, held := isApplied(), a.inFlight()
	s.until("the lag is all that holds a slot", reads(held))
	if held <= target || isApplied() != standing {
		t.Errorf("the lag is %d, beyond %d; %d records were applied, then %d", held, target, standing, isApplied())
	}
	// Asking goes on meanwhile.
	if got := s.get(a, "/v1/databases/db0/batches/0"); got.code != 200 {
		t.Errorf("a result of before: %d %s", got.code, got.body)
	}

	end()
	s.until("all permits are back", func() bool { return a.inFlight() == 0 })
	s.until("the lag is 0 again, and every database has all slots", func() bool { return reads(0)() && gate.Snapshot().Limit == most })
	for database, want := range sent {
		got := s.get(a, "/v1/databases/"+database+"/events")
		for i, e := range got.Events {
			if e.Revision != int64(i+1) {
				t.Errorf("%s: event %d has revision %d", database, i, e.Revision)
			}
		}
		if len(got.Events) != want {
			t.Errorf("%s: %d batches of %d are in the log", database, len(got.Events), want)
		}
	}
}

// A partition that another has taken over, unknown to its processor: it writes nothing, and says so. That is
// what a rebalance in the middle of a transaction is, and a processor that goes on after it was frozen.
func TestFenced(t *testing.T) {
	s := newSystem(t)
	p, _ := s.processor(nil)
	a := s.api(5, func(cfg *apiConfig) { cfg.overdue = 20 * time.Millisecond })
	if got := s.post(a, "orders", `{"id":"0","events":[{"type":"x"}]}`); got.code != 201 {
		t.Fatalf("before: %d %s", got.code, got.body)
	}
	other := s.store(writers)
	for partition := range int32(4) {
		if _, err := other.take(t.Context(), partition, 1000, 0); err != nil {
			t.Fatal(err)
		}
	}
	if got := s.post(a, "orders", `{"id":"1","events":[{"type":"x"}]}`, "Prefer", "wait=0"); got.code != 202 {
		t.Errorf("%d %s", got.code, got.body)
	}
	s.until("it is fenced", func() bool { return strings.Contains(s.logged.String(), "fenced: nothing was written") })
	if b, err := settledOf(t.Context(), other.db, "orders", "1"); err != nil || b != nil {
		t.Errorf("written: %+v, %v", b, err)
	}
	// Only the owner of now writes it.
	e := entry{record: record{Version: version, Database: "orders", Batch: batchOf("1", nil, "x")}}
	for partition := range int32(4) {
		next, err := other.next(t.Context(), partition)
		if err != nil {
			t.Fatal(err)
		}
		if next == 0 {
			continue
		}
		s.until("its processor gives the partition up", func() bool { _, ours := p.epoch(partition); return !ours })
		e.offset = next
		if err := other.apply(t.Context(), partition, 999, []entry{e}); !errors.Is(err, errFenced) {
			t.Errorf("by an older owner: %v", err)
		}
		if err := other.apply(t.Context(), partition, 1000, []entry{e}); err != nil {
			t.Error(err)
		}
	}
	s.until("the result is found in the store", func() bool { return a.inFlight() == 0 })
}

// What is fenced may be this processor's again by then, with a later epoch. That one stays.
func TestFencedByItself(t *testing.T) {
	s := newStore(t)
	log := slog.New(slog.DiscardHandler)
	p := &processor{cfg: processorConfig{store: s, log: log}, commits: newCommitter(nil, 0, nil), epochs: map[int32]int64{0: 5}}
	if _, err := s.take(t.Context(), 0, 5, 0); err != nil {
		t.Fatal(err)
	}
	if p.apply(t.Context(), 0, 4, []entry{{fault: errors.New("no batch")}}) {
		t.Error("written by the epoch of before")
	}
	if epoch, ours := p.epoch(0); !ours || epoch != 5 {
		t.Errorf("the partition is this processor's: %v, by epoch %d", ours, epoch)
	}
}

// A processor tries to write for as long as the partition is its own, and no longer.
func TestGivesUpWhatIsNotItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &processor{cfg: processorConfig{log: slog.New(slog.DiscardHandler)}, commits: newCommitter(nil, 0, nil), epochs: map[int32]int64{0: 5}}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		busy, tries := errors.New("busy"), 0
		err := p.persist(ctx, "trouble", p.owns(0, 5), func() error {
			if tries++; tries == 7 {
				p.leave(ctx, nil, map[string][]int32{topic: {0}})
			}
			return busy
		})
		if tries != 7 || !errors.Is(err, busy) || ctx.Err() != nil {
			t.Errorf("%d tries, then %v", tries, err)
		}
	})
}

// A transaction has so many records, however many have come.
func TestTransactionsAreBounded(t *testing.T) {
	s := newStore(t)
	if _, err := s.take(t.Context(), 0, 5, 0); err != nil {
		t.Fatal(err)
	}
	p := &processor{cfg: processorConfig{store: s, log: slog.New(slog.DiscardHandler)}, commits: newCommitter(nil, 0, nil), courier: newCourier(), epochs: map[int32]int64{0: 5}}
	var records []*kgo.Record
	for i := range int64(10 * maxGroup) {
		records = append(records, &kgo.Record{Offset: i, Value: []byte("no batch")})
	}
	n := p.work(t.Context(), 0, records)
	if next, err := s.next(t.Context(), 0); err != nil || n < 1 || n > maxGroup || next != int64(n) {
		t.Errorf("%d records in one transaction, at most %d; the next is %d: %v", n, maxGroup, next, err)
	}
}

// Whoever writes records names addresses. So many of them have a lane, with so many results each.
func TestLanesAreBounded(t *testing.T) {
	c := newCourier()
	var entries []entry
	for i := range maxLanes + 10 {
		entries = append(entries, entry{record: record{Origin: fmt.Sprintf("127.0.0.1:%d", i+1), Token: "t"}})
	}
	c.deliver(entries)
	c.mu.Lock()
	lanes, dropped := len(c.lanes), c.dropped
	c.mu.Unlock()
	if lanes != maxLanes || dropped < 10 {
		t.Errorf("%d lanes, %d results dropped", lanes, dropped)
	}
	if dropped = c.close(); dropped < 10 {
		t.Errorf("%d results dropped in the end", dropped)
	}
}

// A lane that is idle ends, unless something has just come into it.
func TestIdleLane(t *testing.T) {
	c := newCourier()
	lane := make(chan delivery, 1)
	c.lanes["somewhere"] = lane
	lane <- delivery{Token: "t"}
	if c.closeIdle("somewhere", lane) || len(c.lanes) != 1 {
		t.Error("a lane with a result has ended")
	}
	<-lane
	if !c.closeIdle("somewhere", lane) || len(c.lanes) != 0 {
		t.Error("an idle lane has not ended")
	}
}

// Somebody tells Kafka of an older offset while a processor runs. It hears of the right one again.
func TestCommitsAreToldAgain(t *testing.T) {
	s := newSystem(t)
	p, _ := s.processor(func(cfg *processorConfig) { cfg.recommit = 20 * time.Millisecond })
	a := s.api(5, nil)
	if got := s.post(a, "orders", `{"id":"1","events":[{"type":"x"}]}`); got.code != 201 {
		t.Fatalf("%d %s", got.code, got.body)
	}
	lag, err := weirkafka.NewLag(weirkafka.LagConfig{Brokers: s.brokers, Group: group, Topics: []string{topic}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(lag.Close)
	behind := func(want float64) func() bool {
		return func() bool { v, err := lag.Read(t.Context()); return err == nil && v == want }
	}
	s.until("Kafka has heard of it", behind(0))
	for partition := range int32(4) {
		p.client.CommitOffsetsSync(t.Context(), map[string]map[int32]kgo.EpochOffset{topic: {partition: {Epoch: -1, Offset: 0}}}, nil)
	}
	s.until("Kafka has heard of it again", behind(0))
}

// A transaction that ends after its partition was given up tells Kafka nothing: the next owner does.
func TestCommitsAreTheOwners(t *testing.T) {
	p := &processor{cfg: processorConfig{log: slog.New(slog.DiscardHandler)}, commits: newCommitter(nil, 0, nil), epochs: map[int32]int64{0: 3, 1: 3}}
	p.commit(0, 3, 10)
	p.commit(1, 3, 9)
	p.leave(t.Context(), nil, map[string][]int32{topic: {1}})
	p.commit(1, 3, 10)
	p.epochs[2] = 5
	p.commit(2, 4, 10)
	if len(p.commits.next) != 1 || p.commits.next[0] != 10 {
		t.Errorf("told: %v", p.commits.next)
	}
}

// A store belongs to one topic. With another, its offsets would mean nothing.
func TestOtherTopic(t *testing.T) {
	s := newSystem(t)
	_, stop := s.processor(nil)
	stop()
	again := newSystem(t)
	if _, err := newProcessor(t.Context(), processorConfig{brokers: again.brokers, store: s.store(writers), log: s.log}); !errors.Is(err, errOtherTopic) {
		t.Errorf("a processor: %v", err)
	}
	if a, err := startAPI(t.Context(), apiConfig{brokers: again.brokers, store: s.store(readers), addr: "127.0.0.1:0", results: "127.0.0.1:0", log: s.log}); !errors.Is(err, errOtherTopic) {
		t.Errorf("an API server: %v", err)
		if err == nil {
			_ = a.close()
		}
	}
}

// The topic is deleted and made anew under API servers. Offsets of the new one say nothing about a batch.
func TestTopicMadeAnew(t *testing.T) {
	s := newSystem(t)
	_, stop := s.processor(nil)
	soon := func(cfg *apiConfig) { cfg.overdue = 20 * time.Millisecond }
	busy, idle := s.api(1, soon), s.api(1, soon) // an idle one learns only later which topic there is
	for _, id := range []string{"1", "2"} {
		if got := s.post(busy, "orders", `{"id":"`+id+`","events":[{"type":"x"}]}`); got.code != 201 {
			t.Fatal(got.body)
		}
	}
	stop()
	remove := kmsg.NewPtrDeleteTopicsRequest()
	of := kmsg.NewDeleteTopicsRequestTopic()
	of.Topic = kmsg.StringPtr(topic)
	remove.TopicNames, remove.Topics = []string{topic}, append(remove.Topics, of)
	if _, err := remove.RequestWith(t.Context(), s.client); err != nil {
		t.Fatal(err)
	}
	if err := makeTopic(t.Context(), s.client, 4, s.log); err != nil {
		t.Fatal(err)
	}
	for _, a := range []*api{busy, idle} {
		if got := s.post(a, "orders", `{"id":"3","events":[{"type":"x"}]}`); got.code != 503 || !strings.Contains(got.body, "may be applied all the same") {
			t.Errorf("%d %s", got.code, got.body)
		}
	}
}

// Whoever starts while Kafka is away waits for it, says so, and ends when it has to.
func TestKafkaAwayAtTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logged safeBuffer
		log := slog.New(slog.NewTextHandler(&logged, nil))
		asked := 0
		answer, err := heard(t.Context(), log, func() (string, error) {
			if asked++; asked <= 15 {
				return "", errors.New("connection refused")
			}
			return "here", nil
		})
		if answer != "here" || err != nil || asked != 16 {
			t.Errorf("%q, %v after %d requests", answer, err, asked)
		}
		if n := strings.Count(logged.String(), "connection refused"); n != 2 {
			t.Errorf("told %d times in 16 requests, want 2:\n%s", n, logged.String())
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		gone := errors.New("gone")
		if _, err := heard(ctx, log, func() (string, error) { return "", gone }); !errors.Is(err, gone) || ctx.Err() == nil {
			t.Errorf("%v; the context: %v", err, ctx.Err())
		}
	})
}

// A broker that has not heard yet of a new topic is asked again.
func TestTopicNotHeardOf(t *testing.T) {
	s := newSystem(t)
	asked := 0
	s.cluster.ControlKey(int16(kmsg.Metadata), func(req kmsg.Request) (kmsg.Response, error, bool) {
		s.cluster.KeepControl()
		m := req.(*kmsg.MetadataRequest)
		if len(m.Topics) != 1 {
			return nil, nil, false
		}
		if asked++; asked > 2 {
			return nil, nil, false
		}
		resp := m.ResponseKind().(*kmsg.MetadataResponse)
		one := kmsg.NewMetadataResponseTopic()
		one.Topic, one.ErrorCode = m.Topics[0].Topic, kerr.UnknownTopicOrPartition.Code
		resp.Topics = append(resp.Topics, one)
		return resp, nil, true
	})
	if is, err := identityOf(t.Context(), s.client, s.log); err != nil || asked != 3 {
		t.Errorf("%q, %v after %d requests", is, err, asked)
	}
}

// An unknown lag is not shown as 0.
func TestUnknownLagIsShown(t *testing.T) {
	gate, err := openAdmission(smallMachine, []string{"127.0.0.1:1"}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer gate.close()
	shown, err := json.Marshal(gate.status())
	if err != nil || !strings.Contains(string(shown), `"slots_of_a_database":20,`) || !strings.Contains(string(shown), `"lag":null`) {
		t.Errorf("%s, %v", shown, err)
	}
}

// Without admission there is no bound, which is not shown as one of 0.
func TestNoBoundIsShown(t *testing.T) {
	cfg := smallMachine
	cfg.controller = byNone
	gate, err := openAdmission(cfg, []string{"127.0.0.1:1"}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer gate.close()
	shown, err := json.Marshal(gate.status())
	if err != nil || !strings.Contains(string(shown), `"slots_of_a_database":null`) {
		t.Errorf("%s, %v", shown, err)
	}
}

// A group that was deleted begins anew with generation 1, below what the store has seen. A member of it takes the
// partitions over all the same, and one that the group does not know does not.
func TestGroupBegunAnew(t *testing.T) {
	s := newSystem(t)
	before := s.store(writers)
	for partition := range int32(4) {
		if _, err := before.take(t.Context(), partition, 1000, 0); err != nil {
			t.Fatal(err)
		}
	}
	var known atomic.Bool
	s.cluster.ControlKey(int16(kmsg.Heartbeat), func(req kmsg.Request) (kmsg.Response, error, bool) {
		s.cluster.KeepControl()
		resp := req.ResponseKind().(*kmsg.HeartbeatResponse)
		resp.ErrorCode = kerr.UnknownMemberID.Code
		return resp, nil, !known.Load()
	})
	s.processor(nil)
	s.until("nobody takes over by a generation that the group does not know", func() bool {
		return strings.Contains(s.logged.String(), "fenced: the partition is not taken over")
	})
	known.Store(true)
	a := s.api(5, nil)
	if got := s.post(a, "orders", `{"id":"1","events":[{"type":"x"}]}`); got.code != 201 {
		t.Errorf("%d %s", got.code, got.body)
	}
	if err := before.apply(t.Context(), 0, 1000, []entry{{fault: errors.New("no batch")}}); !errors.Is(err, errFenced) {
		t.Errorf("the owner of before writes: %v", err)
	}
}

// Kafka loses the end of a partition after it was applied, and others write there. What was applied stays, and what came
// in its place is applied as well: whether Kafka can say where its log ended, or the client has to read it all again.
func TestKafkaLosesRecords(t *testing.T) {
	for _, tt := range []struct {
		name   string
		lost   int64 // the offset of the first that is lost
		leader int32
	}{{"it says where", 2, 0}, {"it cannot say", 100, -1}} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSystem(t)
			var all []string
			for _, id := range []string{"a", "b", "c", "d", "e"} {
				all = append(all, strings.Replace(goodRecord, `"id":"1"`, `"id":"`+id+`"`, 1))
			}
			partition := s.produce("orders", all...)
			before := s.store(writers)
			if _, err := before.take(t.Context(), partition, 1, 0); err != nil {
				t.Fatal(err)
			}
			var applied []entry
			for i, id := range []string{"a", "b", "x", "y", "z"} {
				e := entry{offset: int64(i), leader: tt.leader, record: record{Version: version, Database: "orders", Batch: batchOf(id, nil, "x")}}
				if i >= 2 {
					e.offset += tt.lost - 2
				}
				applied = append(applied, e)
			}
			if err := before.apply(t.Context(), partition, 1, applied); err != nil {
				t.Fatal(err)
			}
			s.cluster.ControlKey(int16(kmsg.OffsetForLeaderEpoch), func(req kmsg.Request) (kmsg.Response, error, bool) {
				s.cluster.KeepControl()
				resp, asked := req.ResponseKind().(*kmsg.OffsetForLeaderEpochResponse), req.(*kmsg.OffsetForLeaderEpochRequest).Topics[0]
				of := kmsg.NewOffsetForLeaderEpochResponseTopic()
				of.Topic = asked.Topic
				for _, p := range asked.Partitions {
					end := kmsg.NewOffsetForLeaderEpochResponseTopicPartition()
					end.Partition, end.LeaderEpoch, end.EndOffset = p.Partition, 0, tt.lost
					of.Partitions = append(of.Partitions, end)
				}
				resp.Topics = append(resp.Topics, of)
				return resp, nil, true
			})
			s.processor(nil)
			a := s.api(5, nil)
			if got := s.post(a, "orders", `{"id":"last","expect":8,"events":[{"type":"x"}]}`); got.code != 201 {
				t.Errorf("%d %s", got.code, got.body)
			}
			var order string
			for i, e := range s.get(a, "/v1/databases/orders/events").Events {
				if order += e.Batch + " "; e.Revision != int64(i+1) {
					t.Errorf("event %d has revision %d", i, e.Revision)
				}
			}
			if order != "a b x y z c d e last " {
				t.Errorf("applied: %s", order)
			}
			if next, err := before.next(t.Context(), partition); err != nil || next != 6 {
				t.Errorf("it goes on at %d, want 6: %v", next, err)
			}
			if said := strings.Contains(s.logged.String(), "Kafka has lost records"); said != (tt.leader >= 0) {
				t.Errorf("said: %v", said)
			}
		})
	}
}

// A client that sends its batch slowly holds no slot of its database meanwhile.
func TestSlowBody(t *testing.T) {
	s := newSystem(t)
	s.processor(nil)
	a := s.api(1, nil)
	slow, err := net.Dial("tcp", a.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	const body = `{"id":"slow","events":[{"type":"x"}]}`
	fmt.Fprintf(slow, "POST /v1/databases/orders/batches HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n", len(body))
	answers := bufio.NewReader(slow)
	if line, err := answers.ReadString('\n'); err != nil || !strings.Contains(line, "100 Continue") { // the server reads the body
		t.Fatalf("%q, %v", line, err)
	}
	if got := s.post(a, "orders", `{"id":"1","events":[{"type":"x"}]}`); got.code != 201 {
		t.Errorf("meanwhile: %d %s", got.code, got.body)
	}
	fmt.Fprint(slow, body)
	if _, err := answers.ReadString('\n'); err != nil { // ends what says to continue
		t.Fatal(err)
	}
	if resp, err := http.ReadResponse(answers, nil); err != nil || resp.StatusCode != 201 {
		t.Errorf("%v, %v", resp, err)
	}
}

// Large bodies are bounded together. Small ones always are read.
func TestLargeBodiesAreBounded(t *testing.T) {
	s := newSystem(t)
	_, stop := s.processor(nil)
	a := s.api(1, nil)
	all, err := a.bodies.TryAdmit(weir.Work{Cost: allBodies})
	if err != nil {
		t.Fatal(err)
	}
	large := `{"id":"large","events":[{"type":"x","data":"` + strings.Repeat("x", freeBody) + `"}]}`
	if got := s.post(a, "orders", large); got.code != 503 || !strings.Contains(got.body, `"gate":"bodies"`) {
		t.Errorf("%d %s", got.code, got.body)
	}
	if got := s.post(a, "orders", `{"id":"1","events":[{"type":"x"}]}`); got.code != 201 {
		t.Errorf("a small one: %d %s", got.code, got.body)
	}
	all.Done(weir.NoSample)
	stop()
	answered := make(chan answer, 1)
	go func() { answered <- s.post(a, "orders", large) }()
	s.until("it is published", func() bool { return a.acknowledged() == 1 })
	if n := a.bodies.Snapshot().InFlight; n != 0 {
		t.Errorf("%d bytes are counted for one that Kafka has", n)
	}
	s.processor(nil)
	if got := <-answered; got.code != 201 {
		t.Errorf("afterwards: %d %s", got.code, got.body)
	}
}

// A large body counts until Kafka has it, also when its client has got an answer.
func TestLargeBodiesCountUntilKafkaHasThem(t *testing.T) {
	s := newSystem(t)
	a := s.api(1, nil)
	came, release := make(chan struct{}), make(chan struct{})
	goOn := sync.OnceFunc(func() { close(release) })
	t.Cleanup(goOn)
	s.cluster.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		s.cluster.SleepControl(func() { close(came); <-release })
		return nil, nil, false
	})
	large := `{"id":"large","events":[{"type":"x","data":"` + strings.Repeat("x", freeBody) + `"}]}`
	if got := s.post(a, "orders", large, "Prefer", "wait=0"); got.code != 202 {
		t.Fatalf("%d %s", got.code, got.body)
	}
	<-came
	if n := a.bodies.Snapshot().InFlight; n != int64(len(large)) {
		t.Errorf("%d bytes are counted, want %d", n, len(large))
	}
	goOn()
	s.until("Kafka has it", func() bool { return a.acknowledged() == 1 })
	if n := a.bodies.Snapshot().InFlight; n != 0 {
		t.Errorf("%d bytes are counted for one that Kafka has", n)
	}
	s.processor(nil)
	s.until("it is applied", func() bool { return a.inFlight() == 0 })
}

// An answer with events is bounded, and says where to go on.
func TestEventsArePaged(t *testing.T) {
	s := newSystem(t)
	s.processor(nil)
	a := s.api(1, nil)
	for i := range 4 {
		if got := s.post(a, "orders", fmt.Sprintf(`{"id":"%d","events":[{"type":"x","data":"%s"}]}`, i, strings.Repeat("x", 600_000))); got.code != 201 {
			t.Fatalf("%d %s", got.code, got.body)
		}
	}
	for next, pages := int64(1), 0; next <= 4; pages++ {
		got := s.get(a, fmt.Sprintf("/v1/databases/orders/events?from=%d", next))
		if len(got.Events) != 2 || got.Events[0].Revision != next || pages > 2 {
			t.Fatalf("from %d: %d events", next, len(got.Events))
		}
		next = got.NextFrom
	}
}

// A record that somebody deletes before it is applied has no result. Its client hears so, and its permit ends.
func TestDeletedRecord(t *testing.T) {
	s := newSystem(t)
	a := s.api(1, func(cfg *apiConfig) { cfg.overdue = 20 * time.Millisecond })
	told := make(chan answer, 1)
	go func() { told <- s.post(a, "orders", `{"id":"1","events":[{"type":"x"}]}`) }()
	s.until("it is in the topic", func() bool { return a.acknowledged() == 1 })
	cut := kmsg.NewPtrDeleteRecordsRequest()
	of := kmsg.NewDeleteRecordsRequestTopic()
	of.Topic = topic
	for partition := range int32(4) {
		one := kmsg.NewDeleteRecordsRequestTopicPartition()
		one.Partition, one.Offset = partition, -1 // all of it
		of.Partitions = append(of.Partitions, one)
	}
	cut.Topics = append(cut.Topics, of)
	if _, err := cut.RequestWith(t.Context(), s.client); err != nil {
		t.Fatal(err)
	}
	partition := s.produce("orders", "no batch")
	s.processor(nil)
	if got := <-told; got.code != 500 || !strings.Contains(got.body, "it was deleted from the topic") {
		t.Errorf("%d %s", got.code, got.body)
	}
	if got := s.post(a, "orders", `{"id":"1","expect":0,"events":[{"type":"x"}]}`); got.code != 201 {
		t.Errorf("sent again: %d %s", got.code, got.body)
	}
	// It is asked for some times, because the processors may have gone back.
	for asked, want := range map[int]status{askForLost - 1: "", askForLost: lost} {
		if res, ok, err := a.find(t.Context(), &request{database: "orders", id: "none", partition: partition, offset: 0, asked: asked}); err != nil || ok != (want != "") || res.Status != want {
			t.Errorf("asked %d times: %+v, %v, %v", asked, res, ok, err)
		}
	}
	// What was no batch at an offset is nothing to a batch that comes there after Kafka has lost it.
	st := s.store(writers)
	if _, ok, err := st.passed(t.Context(), partition, 1); err != nil || !ok {
		t.Errorf("it is no batch: %v, %v", ok, err)
	}
	if _, err := st.take(t.Context(), partition, 1000, 0); err != nil {
		t.Fatal(err)
	}
	if err := st.rewind(t.Context(), partition, 1000, 1); err != nil {
		t.Fatal(err)
	}
	if res, ok, err := st.passed(t.Context(), partition, 1); err != nil || ok {
		t.Errorf("%+v, %v, %v", res, ok, err)
	}
}

// Clients that break off anywhere, in every way that TCP has, leave no permit behind.
func TestClientsThatBreakOff(t *testing.T) {
	s := newSystem(t)
	s.processor(nil)
	a := s.api(2, func(cfg *apiConfig) { cfg.overdue = 50 * time.Millisecond })
	random := rand.New(rand.NewPCG(1, 1))
	var clients sync.WaitGroup
	next := make(chan struct{}, 20)
	for i := range 500 {
		body := fmt.Sprintf(`{"id":"%d","events":[{"type":"x","data":"%s"}]}`, i, strings.Repeat("x", random.IntN(2)*freeBody))
		request := fmt.Sprintf("POST /v1/databases/db%d/batches HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%s", random.IntN(4), len(body), body)
		cut, end := random.IntN(len(request)+1), random.IntN(4)
		if random.IntN(3) == 0 {
			cut = len(request)
		}
		next <- struct{}{}
		clients.Go(func() {
			defer func() { <-next }()
			c, err := net.Dial("tcp", a.addr)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			_, _ = io.WriteString(c, request[:cut]) // an error is what this is about
			tcp := c.(*net.TCPConn)
			switch end {
			case 0: // it reads its answer, if there is one to come
				if cut == len(request) {
					_, _ = c.Read(make([]byte, 1))
				}
			case 1:
				_ = tcp.CloseWrite()
				_, _ = c.Read(make([]byte, 1))
			case 2:
				_ = tcp.SetLinger(0) // the connection is reset
			}
		})
	}
	clients.Wait()
	s.until("a batch is taken afterwards", func() bool { return s.post(a, "db0", `{"id":"last","events":[{"type":"x"}]}`).code == 201 })
	// The server may come to a connection after its client has left. This waits until it has handled them all.
	if err := a.http.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	s.until("all permits are back", func() bool {
		a.mu.Lock()
		waiting := len(a.waiting)
		a.mu.Unlock()
		return waiting == 0 && a.inFlight() == 0 && a.bodies.Snapshot().InFlight == 0
	})
	if n := a.bodies.Snapshot().Admitted; n == 0 {
		t.Error("no body was large: the test shows little")
	}
}

// A server that closes gives back the permit of a batch that Kafka has and no processor has answered.
func TestCloseBeforeTheResult(t *testing.T) {
	s := newSystem(t) // without a processor
	a := s.api(1, nil)
	if got := s.post(a, "orders", `{"id":"1","events":[{"type":"x"}]}`, "Prefer", "wait=0"); got.code != 202 {
		t.Fatalf("%d %s", got.code, got.body)
	}
	s.until("Kafka has the record", func() bool { return a.acknowledged() == 1 })
	if n := a.inFlight(); n != 1 {
		t.Fatalf("%d permits are out", n)
	}
	if err := a.close(); err != nil {
		t.Error(err)
	}
	if n := a.inFlight(); n != 0 {
		t.Errorf("%d permits are left", n)
	}
}
