package main

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/weir-go/weir/internal/testbed/freeport"
	"github.com/weir-go/weir/internal/testbed/kafka"
	"github.com/weir-go/weir/internal/testbed/process"
	"github.com/weir-go/weir/weirkafka"
)

// Of the kills: what runs, and who sends.
const (
	killAPIs       = 2
	killProcessors = 3
	killDatabases  = 12
	killClients    = 12
	killSession    = 3 * time.Second // so that a killed processor's partitions soon go to another
	mostEventsSent = 3               // of a batch
	killsAnswered  = time.Minute     // how long after the last kill a batch may be without a result
	mostFrozen     = 3               // processors, until one of them is fenced
)

// sent is a batch, and what its client was told.
type sent struct {
	database string
	batch    batch
	answer   result // empty if there never was one
}

// killing is a system of processes of their own on a real Kafka, that are killed while clients send.
type killing struct {
	o      *options
	broker *kafka.Server
	folder string

	mu      sync.Mutex
	members []*member
	sent    []sent
	trouble error // the first answer that contradicts an earlier one
}

// member is an API server or a processor.
type member struct {
	args    []string
	addr    string // of an API server
	process *process.Process
	log     *safeBuffer // of the process
}

// safeBuffer is what has been logged.
type safeBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

var killPorts = freeport.Range{First: 23_300, Size: 150}

// kills runs it all and prints what was found. Which process dies when is drawn from the seed.
func (o *options) kills(ctx context.Context) (err error) {
	if o.seed == 0 {
		o.seed = uint64(time.Now().UnixNano())
	}
	fmt.Fprintf(o.out, "%d kills, -seed %d\n", o.killed, o.seed)
	k := &killing{o: o}
	if k.folder, err = os.MkdirTemp("", "linearizer-kills-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, k.stop()) }()
	// A broker that comes back waits until the one that was killed counts as gone.
	if k.broker, err = startKafka(ctx, "group.min.session.timeout.ms=1000", "broker.session.timeout.ms=4000"); err != nil {
		return err
	}
	if err := k.startAll(ctx); err != nil {
		return err
	}
	sending, stopSending := context.WithCancel(ctx)
	defer stopSending()
	answering, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	var clients sync.WaitGroup
	for i := range killClients {
		clients.Go(func() { k.client(answering, sending, i) })
	}
	err = k.killSome(ctx, rand.New(rand.NewPCG(o.seed, 1)))
	stopSending()
	late := time.AfterFunc(killsAnswered, func() { giveUp(fmt.Errorf("%v after the last kill, some batches have no result", killsAnswered)) })
	defer late.Stop()
	clients.Wait()
	if err := errors.Join(err, context.Cause(answering), k.trouble); err != nil {
		return fmt.Errorf("%w; -seed %d%s", err, o.seed, k.said())
	}
	if err := k.idle(ctx); err != nil {
		return err
	}
	return k.check(ctx)
}

// path is that of the store.
func (k *killing) path() string { return filepath.Join(k.folder, "store.db") }

func (k *killing) startAll(ctx context.Context) error {
	common := []string{"-kafka", k.broker.Addr, "-store", k.path()}
	for range killAPIs {
		addr, err := killPorts.Addr()
		if err != nil {
			return err
		}
		k.members = append(k.members, &member{args: append([]string{"api", "-listen", addr}, common...), addr: addr})
	}
	for range killProcessors {
		k.members = append(k.members, &member{args: append([]string{"process", "-work", "1ms", "-session", killSession.String()}, common...)})
	}
	for _, m := range k.members {
		if err := m.start(ctx); err != nil {
			return err
		}
	}
	return nil
}

// start runs this program again, with other arguments.
func (m *member) start(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, m.args...)
	cmd.Env = append(os.Environ(), "LINEARIZER=1") // a test that is this program knows it by that
	m.log = &safeBuffer{}
	cmd.Stderr = m.log
	if m.process, err = process.Start(m.args[0], cmd); err != nil || m.addr == "" {
		return err
	}
	return m.process.Listening(ctx, m.addr)
}

// said is what the processes printed last.
func (k *killing) said() (all string) {
	for _, m := range k.members {
		all += "\n" + m.args[0] + m.process.Said()
	}
	return all
}

// stop ends everything.
func (k *killing) stop() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, m := range k.members {
		m.process.Stop()
	}
	var err error
	if k.broker != nil {
		err = k.broker.Stop()
	}
	return errors.Join(err, os.RemoveAll(k.folder))
}

// killSome kills one after the other, and starts each again. Two of them are the broker, if there are enough.
func (k *killing) killSome(ctx context.Context, random *rand.Rand) error {
	n := k.o.killed
	for i := range n {
		if err := wait(ctx, time.Duration(500+random.IntN(1000))*time.Millisecond); err != nil {
			return err
		}
		away := time.Duration(random.IntN(1000)) * time.Millisecond
		if i == n/3 || i == 2*n/3 {
			fmt.Fprintf(k.o.out, "%3d broker\n", i+1)
			if err := kill(k.broker.Pid()); err != nil {
				return err
			}
			if err := errors.Join(wait(ctx, away), k.broker.Restart(ctx)); err != nil {
				return err
			}
			continue
		}
		m := k.members[random.IntN(len(k.members))]
		fmt.Fprintf(k.o.out, "%3d %s\n", i+1, m.args[0])
		if err := m.process.Alive(); err != nil {
			return err // nobody ends but by being killed
		}
		if err := kill(m.process.Pid()); err != nil {
			return err
		}
		m.process.Stop() // it waits for the end
		if err := errors.Join(wait(ctx, away), m.start(ctx)); err != nil {
			return err
		}
	}
	return k.freezeOne(ctx)
}

// freezeOne freezes a processor, and wants it fenced when it goes on. If it had no batch in hand after all, there is nothing
// that it could be kept from, and another one is frozen.
func (k *killing) freezeOne(ctx context.Context) (err error) {
	s, err := openStore(ctx, k.path(), writers)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	lag, err := weirkafka.NewLag(weirkafka.LagConfig{Brokers: []string{k.broker.Addr}, Group: group, Topics: []string{topic}})
	if err != nil {
		return err
	}
	defer lag.Close()
	for range mostFrozen {
		fenced, err := k.freeze(ctx, s, lag)
		if fenced || err != nil {
			return err
		}
	}
	return fmt.Errorf("%d processors went on after others had taken over what was theirs, and none was fenced", mostFrozen)
}

// freeze stops a processor until others have all of its partitions. Then it goes on with what it had begun. fenced says that
// it was kept from writing that.
func (k *killing) freeze(ctx context.Context, s *store, lag *weirkafka.Lag) (fenced bool, err error) {
	m, had, err := k.stopOne(ctx, s, lag)
	if err != nil {
		return false, err
	}
	goOn := sync.OnceValue(func() error { return syscall.Kill(m.process.Pid(), syscall.SIGCONT) })
	defer func() { err = errors.Join(err, goOn()) }()
	taken := soon(ctx, killsAnswered, func() bool {
		now, err := epochs(ctx, s.db)
		for partition, was := range had {
			if now[partition] <= was {
				return false
			}
		}
		return err == nil
	})
	if !taken {
		return false, fmt.Errorf("a processor is frozen for %v, and others have not taken over all that was its own: partitions and epochs %v", killsAnswered, had)
	}
	before := len(m.log.String())
	if err := goOn(); err != nil {
		return false, err
	}
	fenced = soon(ctx, 10*time.Second, func() bool { return strings.Contains(m.log.String()[before:], "fenced: nothing was written") })
	fmt.Fprintf(k.o.out, "    process, frozen until others had its %d partitions; fenced: %v\n", len(had), fenced)
	return fenced, ctx.Err()
}

// stopOne stops a processor that has batches in hand, and returns its partitions with its epochs. Nobody can write
// meanwhile, so it does not stop in its transaction: there it would keep all others from taking over.
func (k *killing) stopOne(ctx context.Context, s *store, lag *weirkafka.Lag) (m *member, had map[int32]int64, err error) {
	stopped := soon(ctx, killsAnswered, func() bool {
		err = s.inTx(ctx, func(tx *sql.Tx) error {
			first, err := k.busy(ctx, tx, lag)
			if err != nil {
				return err
			}
			if err := wait(ctx, time.Second); err != nil { // by then it has fetched them
				return err
			}
			if m, err = k.busy(ctx, tx, lag); err != nil {
				return err
			}
			if m != first {
				return errors.New("the partitions are being dealt out")
			}
			if had, err = m.partitions(ctx, tx); err != nil {
				return err
			}
			return pause(m.process.Pid())
		})
		return err == nil || wait(ctx, time.Second) != nil // others may write again
	})
	if !stopped {
		err = fmt.Errorf("no processor had anything to do for %v: %w", killsAnswered, err)
	}
	return m, had, err
}

// busy returns a processor that has a partition with records that are not applied.
func (k *killing) busy(ctx context.Context, tx *sql.Tx, lag *weirkafka.Lag) (*member, error) {
	all, err := lag.Partitions(ctx)
	if err != nil {
		return nil, err
	}
	for _, p := range all {
		c, err := claimOf(ctx, tx, p.Partition)
		if err != nil {
			return nil, err
		}
		for _, m := range k.members[killAPIs:] {
			if p.End > c.next && m.has(p.Partition, c.epoch) {
				return m, nil
			}
		}
	}
	return nil, errors.New("all is applied, or the partitions are nobody's")
}

// partitions are those that a processor has, with the epochs by which it has them.
func (m *member) partitions(ctx context.Context, q querier) (map[int32]int64, error) {
	all, err := epochs(ctx, q)
	maps.DeleteFunc(all, func(partition int32, epoch int64) bool { return !m.has(partition, epoch) })
	return all, err
}

// has reports whether a processor has a partition by this epoch, as its log says.
func (m *member) has(partition int32, epoch int64) bool {
	_, after, taken := strings.Cut(m.log.String(), fmt.Sprintf(`msg="partition taken over" partition=%d generation=%d `, partition, int32(epoch)))
	return taken && !strings.Contains(after, fmt.Sprintf("msg=\"partition given up\" partition=%d\n", partition))
}

// epochs are those of all partitions.
func epochs(ctx context.Context, q querier) (all map[int32]int64, err error) {
	rows, err := q.QueryContext(ctx, "SELECT partition, epoch FROM partitions")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	all = map[int32]int64{}
	for rows.Next() {
		var partition int32
		var epoch int64
		if err := rows.Scan(&partition, &epoch); err != nil {
			return nil, err
		}
		all[partition] = epoch
	}
	return all, rows.Err()
}

// pause stops a process, and returns when all its threads stand still.
func pause(pid int) error {
	err := syscall.Kill(pid, syscall.SIGSTOP)
	for again := err == nil; again; again = errors.Is(err, syscall.EINTR) {
		_, err = syscall.Wait4(pid, nil, syscall.WUNTRACED, nil)
	}
	return err
}

// soon asks again and again. It reports false if that is not so within this time.
func soon(ctx context.Context, within time.Duration, ok func() bool) bool {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for !ok() {
		if wait(ctx, 20*time.Millisecond) != nil {
			return false
		}
	}
	return true
}

func kill(pid int) error { return syscall.Kill(pid, syscall.SIGKILL) }

// client sends one batch after the other until sending ends. It sends each until it knows what became of it:
// whoever was killed meanwhile, the id says that it is the same.
func (k *killing) client(ctx, sending context.Context, number int) {
	random := rand.New(rand.NewPCG(k.o.seed, uint64(2+number)))
	known := map[string]int64{} // revisions that this client has heard of
	for n := 0; sending.Err() == nil; n++ {
		s := sent{database: fmt.Sprintf("db%d", random.IntN(killDatabases))}
		s.batch = batch{ID: fmt.Sprintf("%d.%d", number, n)}
		for range 1 + random.IntN(mostEventsSent) {
			s.batch.Events = append(s.batch.Events, event{Type: "tick", Data: json.RawMessage(strconv.Itoa(n))})
		}
		if random.IntN(4) == 0 {
			at := known[s.database]
			s.batch.Expect = &at
		}
		for again := random.IntN(8) == 0; ; again = false {
			was := s.answer
			if s.answer = k.settle(ctx, random, &s); ctx.Err() != nil {
				return
			}
			if was.Status != "" && was != s.answer {
				k.fail(fmt.Errorf("batch %s of %s: the first answer was %+v, a later one %+v", s.batch.ID, s.database, was, s.answer))
			}
			if !again {
				break
			}
		}
		known[s.database] = max(known[s.database], s.answer.Last, s.answer.Revision)
		k.mu.Lock()
		k.sent = append(k.sent, s)
		k.mu.Unlock()
	}
}

func (k *killing) fail(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.trouble == nil {
		k.trouble = err
	}
}

// settle sends a batch until it has a result.
func (k *killing) settle(ctx context.Context, random *rand.Rand, s *sent) result {
	body, err := json.Marshal(s.batch)
	if err != nil {
		k.fail(err)
		return result{}
	}
	for ctx.Err() == nil {
		addr := k.members[random.IntN(killAPIs)].addr
		if res, ok := post(ctx, "http://"+addr+"/v1/databases/"+s.database+"/batches", body); ok {
			return res
		}
		_ = wait(ctx, time.Duration(20+random.IntN(80))*time.Millisecond)
	}
	return result{}
}

// post sends a batch once. ok is false if it is not known what became of it.
func post(ctx context.Context, url string, body []byte) (res result, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return res, false
	}
	req.Header.Set("Prefer", "wait=4")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return res, false // killed, or not there
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return res, false
	}
	var problem struct{ Result result }
	switch resp.StatusCode {
	case http.StatusCreated:
		return res, json.Unmarshal(text, &res) == nil
	case http.StatusConflict:
		return problem.Result, json.Unmarshal(text, &problem) == nil
	}
	return res, false
}

// idle waits until no API server has anything in flight.
func (k *killing) idle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for _, m := range k.members[:killAPIs] {
		var s struct {
			Awaited   int `json:"awaiting_results"`
			Admission struct {
				InFlight int `json:"in_flight"`
			}
		}
		for {
			resp, err := http.Get("http://" + m.addr + "/status")
			if err != nil {
				return err
			}
			err = json.NewDecoder(resp.Body).Decode(&s)
			resp.Body.Close()
			if err == nil && s.Awaited == 0 && s.Admission.InFlight == 0 {
				break
			}
			if wait(ctx, 100*time.Millisecond) != nil {
				return fmt.Errorf("a minute after the last answer, %d batches wait and %d permits are in flight at %s", s.Awaited, s.Admission.InFlight, m.addr)
			}
		}
	}
	return nil
}

// check holds the store against what clients were told.
func (k *killing) check(ctx context.Context) (err error) {
	s, err := openStore(ctx, k.path(), readers)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	v := verdict{events: map[string]int{}}
	if err := v.readLogs(ctx, s); err != nil {
		return err
	}
	for _, one := range k.sent {
		if err := v.compare(ctx, s, &one); err != nil {
			return err
		}
	}
	if err := s.db.QueryRowContext(ctx, "SELECT count(*) FROM batches").Scan(&v.results); err != nil {
		return err
	}
	fmt.Fprintf(k.o.out, "%d batches answered, %d applied, %d conflicts; %d acknowledged ones lost, %d applied twice, %d gaps in revisions, %d results for %d ids, 0 in flight\n",
		len(k.sent), v.applied, v.conflicts, v.lost, v.twice, v.gaps, v.results, len(k.sent))
	if v.lost+v.twice+v.gaps != 0 || v.results != len(k.sent) || v.applied == 0 {
		return fmt.Errorf("the store is not what the clients were told; -seed %d", k.o.seed)
	}
	return nil
}

// verdict counts what is right and what is wrong.
type verdict struct {
	applied, conflicts, lost, twice, gaps, results int

	events map[string]int // of each batch, by database and id
}

// readLogs goes through all events in their order.
func (v *verdict) readLogs(ctx context.Context, s *store) error {
	for i := range killDatabases {
		database := fmt.Sprintf("db%d", i)
		events, err := s.log(ctx, database, 1, 1<<30, 1<<30)
		if err != nil {
			return err
		}
		for j, e := range events {
			if e.Revision != int64(j+1) {
				v.gaps++
			}
			v.events[database+"/"+e.Batch]++
		}
	}
	return nil
}

// compare holds one batch against its result and its events.
func (v *verdict) compare(ctx context.Context, s *store, one *sent) error {
	is, err := settledOf(ctx, s.db, one.database, one.batch.ID)
	if err != nil {
		return err
	}
	in, want := v.events[one.database+"/"+one.batch.ID], 0
	switch one.answer.Status {
	case applied:
		v.applied++
		want = len(one.batch.Events)
	case conflict:
		v.conflicts++
	}
	if is == nil || is.result != one.answer || in < want {
		v.lost++
	}
	if in > want {
		v.twice++
	}
	return nil
}
