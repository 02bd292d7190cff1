package main

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/keyed"
	"github.com/weir-go/weir/limit"
)

// system is the whole of it, as a rule on a broker in this process.
type system struct {
	t       *testing.T
	cluster *kfake.Cluster
	brokers []string
	path    string
	client  *kgo.Client
	logged  *safeBuffer
	log     *slog.Logger
}

func newSystem(t *testing.T) *system {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	s := systemOn(t, cluster.ListenAddrs()...)
	s.cluster = cluster
	return s
}

// systemOn is one on a broker of the caller's.
func systemOn(t *testing.T, brokers ...string) *system {
	t.Helper()
	s := &system{t: t, brokers: brokers, path: filepath.Join(t.TempDir(), "store.db"), logged: &safeBuffer{}}
	s.log = slog.New(slog.NewTextHandler(s.logged, nil))
	var err error
	if s.client, err = kgo.NewClient(kgo.SeedBrokers(s.brokers...), kgo.DefaultProduceTopic(topic), kgo.ProducerBatchMaxBytes(100<<20)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.client.Close)
	if err := makeTopic(t.Context(), s.client, 4, s.log); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(s.logged.String())
		}
	})
	return s
}

func (s *system) store(connections int) *store {
	s.t.Helper()
	st, err := openStore(s.t.Context(), s.path, connections)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if err := st.close(); err != nil {
			s.t.Error(err)
		}
	})
	return st
}

// processor runs one until stop is called, or the test ends.
func (s *system) processor(change func(*processorConfig)) (_ *processor, stop func()) {
	s.t.Helper()
	cfg := processorConfig{brokers: s.brokers, store: s.store(writers), log: s.log}
	if change != nil {
		change(&cfg)
	}
	p, err := newProcessor(s.t.Context(), cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			s.t.Error(err)
		}
		p.close()
	})
	s.t.Cleanup(stop)
	return p, stop
}

// api runs one with so many slots for each database.
func (s *system) api(slots int64, change func(*apiConfig)) *api {
	s.t.Helper()
	gate, err := keyed.New(keyed.Config{Name: "databases", Limit: slots, Queue: limit.Queue{Len: -1}})
	if err != nil {
		s.t.Fatal(err)
	}
	cfg := apiConfig{brokers: s.brokers, store: s.store(readers), gate: gate, addr: "127.0.0.1:0", results: "127.0.0.1:0", patience: time.Minute, log: s.log}
	if change != nil {
		change(&cfg)
	}
	a, err := startAPI(s.t.Context(), cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if err := a.close(); err != nil {
			s.t.Error(err)
		}
		gate.Close()
		if n := gate.Snapshot().InFlight; n != 0 {
			s.t.Errorf("%d permits are left", n)
		}
	})
	return a
}

// inFlight is how many permits are out.
func (a *api) inFlight() int64 { return a.cfg.gate.(weir.Snapshotter).Snapshot().InFlight }

// answer is what a client gets.
type answer struct {
	code     int
	header   http.Header
	body     string
	result   result
	Result   result `json:"result"`
	Detail   string `json:"detail"`
	Reason   string `json:"reason"`
	Ask      string `json:"ask"`
	Events   []logged
	NextFrom int64 `json:"next"`
}

func (s *system) ask(method, url, body string, header ...string) answer {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	a := answer{code: resp.StatusCode, header: resp.Header, body: string(text)}
	_ = json.Unmarshal(text, &a.result)
	_ = json.Unmarshal(text, &a) // some answers are of another form: the test says what it wants
	return a
}

func (s *system) post(a *api, database, body string, header ...string) answer {
	s.t.Helper()
	return s.ask(http.MethodPost, "http://"+a.addr+"/v1/databases/"+database+"/batches", body, header...)
}

func (s *system) get(a *api, path string) answer {
	s.t.Helper()
	return s.ask(http.MethodGet, "http://"+a.addr+path, "")
}

// until asks again and again, which takes a while on a busy machine.
func (s *system) until(what string, ok func() bool) {
	s.t.Helper()
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	for begun := time.Now(); !ok(); <-again.C {
		if time.Since(begun) > 3*time.Minute {
			s.t.Fatalf("not within three minutes: %s\n%s", what, s.logged)
		}
	}
}

// The way of a batch, and every answer that a client may get.
func TestAnswers(t *testing.T) {
	s := newSystem(t)
	s.processor(nil)
	a := s.api(5, nil)
	for _, tt := range []struct {
		name, database, body string
		code                 int
		first, last          int64
		says                 string
	}{
		{"the first", "orders", `{"id":"1","events":[{"type":"placed","data":{"a":"<&>"}},{"type":"paid"}]}`, 201, 1, 2, ""},
		{"the next", "orders", `{"id":"2","expect":2,"events":[{"type":"sent"}]}`, 201, 3, 3, ""},
		{"once more", "orders", `{"id":"2", "expect":2, "events":[ {"type":"sent"} ]}`, 201, 3, 3, ""},
		{"once more, spaced otherwise", "orders", `{"id":"1","events":[{"type":"placed","data":{ "a" : "<&>" }},{"type":"paid"}]}`, 201, 1, 2, ""},
		{"the precondition fails", "orders", `{"id":"3","expect":2,"events":[{"type":"lost"}]}`, 409, 0, 0, "the batch expects revision 2, and the database has 3"},
		{"it has failed for good", "orders", `{"id":"3","expect":2,"events":[{"type":"lost"}]}`, 409, 0, 0, "expects revision 2"},
		{"the id is taken", "orders", `{"id":"1","events":[{"type":"other"}]}`, 422, 0, 0, "another content came first"},
		{"another database", "bills", `{"id":"1","expect":0,"events":[{"type":"other"}]}`, 201, 1, 1, ""},
		{"an odd name", "a%2Fb%22%7B%7D", `{"id":"ä/ \"","events":[{"type":"x"}]}`, 201, 1, 1, ""},
		{"no JSON", "orders", `{`, 400, 0, 0, "unexpected EOF"},
		{"two batches", "orders", `{"id":"9","events":[{"type":"x"}]}{}`, 400, 0, 0, "one batch a request"},
		{"an unknown field", "orders", `{"id":"9","expects":1,"events":[{"type":"x"}]}`, 400, 0, 0, `unknown field \"expects\"`},
		{"no id", "orders", `{"events":[{"type":"x"}]}`, 400, 0, 0, "id is empty"},
		{"an id of 1 MB", "orders", `{"id":"` + strings.Repeat("x", 1<<20) + `","events":[{"type":"x"}]}`, 413, 0, 0, "at most 786432 bytes"},
		{"an id of 100 KB", "orders", `{"id":"` + strings.Repeat("x", 100<<10) + `","events":[{"type":"x"}]}`, 400, 0, 0, "id has 102400 bytes, at most 128"},
		{"no events", "orders", `{"id":"9"}`, 400, 0, 0, "0 events"},
		{"an event without a type", "orders", `{"id":"9","events":[{}]}`, 400, 0, 0, "events[0].type is empty"},
		{"a revision below 0", "orders", `{"id":"9","expect":-1,"events":[{"type":"x"}]}`, 400, 0, 0, "expect is -1"},
		{"an id that no URL can carry", "orders", `{"id":"..","events":[{"type":"x"}]}`, 400, 0, 0, "id is .., which no path of a URL can carry"},
		{"a name that no URL can carry", "%2E%2E", `{"id":"9","events":[{"type":"x"}]}`, 400, 0, 0, "name is .., which"},
		{"an id with half a character", "orders", `{"id":"9\ud800","events":[{"type":"x"}]}`, 400, 0, 0, "id has the character U+FFFD, or something that is not UTF-8"},
		{"an id that is no text", "orders", "{\"id\":\"9\xff\",\"events\":[{\"type\":\"x\"}]}", 400, 0, 0, "id has the character U+FFFD"},
		{"data that is no text", "orders", "{\"id\":\"9\",\"events\":[{\"type\":\"x\",\"data\":\"\xff\"}]}", 400, 0, 0, "events[0].data is not UTF-8"},
		{"data that nests too deep", "orders", `{"id":"9","events":[{"type":"x","data":` + strings.Repeat("[", 9997) + strings.Repeat("]", 9997) + `}]}`, 400, 0, 0, "events[0].data has 9997 levels"},
		{"a name that is no text", "a%FF", `{"id":"9","events":[{"type":"x"}]}`, 400, 0, 0, "name is not UTF-8"},
		{"a name that cannot be printed", "a%0Ab", `{"id":"9","events":[{"type":"x"}]}`, 400, 0, 0, "U+000A"},
		{"a name that is too long", strings.Repeat("x", 201), `{"id":"9","events":[{"type":"x"}]}`, 400, 0, 0, "201 bytes"},
	} {
		got := s.post(a, tt.database, tt.body)
		if got.code != tt.code || got.result.First != tt.first || got.result.Last != tt.last || !strings.Contains(got.body, tt.says) {
			t.Errorf("%s: %d %s", tt.name, got.code, got.body)
		}
	}
	for value, want := range map[string]time.Duration{
		"wait=5": 5 * time.Second, `wait="5"`: 5 * time.Second, "Wait = 5": 5 * time.Second, "wait=5; foo=bar": 5 * time.Second,
		"respond-async, wait=0": 0, "waiting=5": time.Minute, "respond-async": time.Minute,
	} {
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		r.Header.Set("Prefer", value)
		if got, err := a.patienceOf(r); err != nil || got != want {
			t.Errorf("Prefer: %s: %v, %v", value, got, err)
		}
	}
	if got := s.post(a, "orders", `{}`, "Prefer", "wait=soon"); got.code != 400 || !strings.Contains(got.body, "Prefer: wait=") {
		t.Errorf("no preference: %d %s", got.code, got.body)
	}
	if got := s.get(a, "/v1/databases/orders/batches/2"); got.code != 200 || got.result != (result{Status: applied, First: 3, Last: 3}) {
		t.Errorf("the result: %d %s", got.code, got.body)
	}
	if got := s.get(a, pathOf("a/b\"{}", "ä/ \"")); got.code != 200 || got.result.First != 1 {
		t.Errorf("the result of an odd name: %d %s", got.code, got.body)
	}
	if got := s.get(a, "/v1/databases/orders/batches/none"); got.code != 404 {
		t.Errorf("no result: %d %s", got.code, got.body)
	}
	got := s.get(a, "/v1/databases/orders/events?from=1")
	if got.code != 200 || len(got.Events) != 3 || got.NextFrom != 4 || got.Events[0].Type != "placed" || string(got.Events[0].Data) != `{"a":"<&>"}` || got.Events[2].Batch != "2" {
		t.Errorf("the log: %d %s", got.code, got.body)
	}
	if got := s.get(a, "/v1/databases/orders/events?from=3"); got.code != 200 || len(got.Events) != 1 || got.Events[0].Revision != 3 {
		t.Errorf("the log from 3: %d %s", got.code, got.body)
	}
	if got := s.get(a, "/v1/databases/orders/events?from=x"); got.code != 400 {
		t.Errorf("the log from x: %d %s", got.code, got.body)
	}
}

// While nothing is processed, a batch keeps its slot, whether its client waits or has left; its database
// gets no more than it has slots, and others are not touched. Everything comes to an end with the results.
func TestPermitsEndWithResults(t *testing.T) {
	s := newSystem(t)
	a := s.api(2, nil)
	late := s.post(a, "orders", `{"id":"1","events":[{"type":"x"}]}`, "Prefer", "wait=0")
	if late.code != 202 || late.Ask != "/v1/databases/orders/batches/1" || late.header.Get("Location") != late.Ask {
		t.Fatalf("a client whose time is over: %d %s", late.code, late.body)
	}
	ctx, leave := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+a.addr+"/v1/databases/orders/batches", strings.NewReader(`{"id":"2","events":[{"type":"x"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	left := make(chan struct{})
	go func() {
		defer close(left)
		if resp, err := http.DefaultClient.Do(req); err == nil {
			resp.Body.Close()
			t.Error("an answer to a client that has left")
		}
	}()
	s.until("the second has a slot", func() bool { return a.inFlight() == 2 })
	s.until("both are published", func() bool { return a.acknowledged() == 2 })
	leave()
	<-left
	full := s.post(a, "orders", `{"id":"3","events":[{"type":"x"}]}`)
	if full.code != 503 || full.header.Get("Retry-After") == "" || !strings.Contains(full.body, `"gate":"databases"`) {
		t.Errorf("beyond the slots: %d %s", full.code, full.body)
	}
	if got := s.post(a, "bills", `{"id":"1","events":[{"type":"x"}]}`, "Prefer", "wait=0"); got.code != 202 {
		t.Errorf("another database: %d %s", got.code, got.body)
	}
	if n := a.inFlight(); n != 3 {
		t.Errorf("%d in flight", n)
	}
	s.processor(nil)
	s.until("all permits are back", func() bool { return a.inFlight() == 0 })
	for _, path := range []string{late.Ask, "/v1/databases/orders/batches/2", "/v1/databases/bills/batches/1"} {
		if got := s.get(a, path); got.code != 200 || got.result.Status != applied {
			t.Errorf("%s: %d %s", path, got.code, got.body)
		}
	}
}

// readDeadline is a connection's deadline for reading, which passes when a test says so.
type readDeadline struct {
	http.ResponseWriter
	cleared atomic.Bool
}

func (d *readDeadline) SetReadDeadline(at time.Time) error {
	d.cleared.Store(at.IsZero())
	return nil
}

// pass ends reading, as a deadline that nobody has cleared does.
func (d *readDeadline) pass() error {
	if d.cleared.Load() {
		return nil
	}
	return http.NewResponseController(d.ResponseWriter).SetReadDeadline(time.Unix(1, 0))
}

// A client that waits for longer than a request may take to be read gets an answer all the same.
func TestWaitBeyondTheReadDeadline(t *testing.T) {
	s := newSystem(t)
	a := s.api(1, nil)
	routes := a.routes()
	deadlines := make(chan *readDeadline, 1)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d := &readDeadline{ResponseWriter: w}
		deadlines <- d
		routes.ServeHTTP(d, r)
	}))
	t.Cleanup(front.Close)
	answered := make(chan answer, 1)
	go func() {
		answered <- s.ask(http.MethodPost, front.URL+"/v1/databases/orders/batches", `{"id":"1","events":[{"type":"x"}]}`, "Prefer", "wait=60")
	}()
	s.until("it is published", func() bool { return a.acknowledged() == 1 })
	if err := (<-deadlines).pass(); err != nil {
		t.Fatal(err)
	}
	s.processor(nil)
	if got := <-answered; got.code != 201 {
		t.Errorf("%d %s", got.code, got.body)
	}
}

// What a processor delivers of a batch that it could not apply is a failure to the gate, as the store's answer is.
func TestOutcomes(t *testing.T) {
	for status, want := range map[status]weir.Outcome{applied: weir.OK, conflict: weir.OK, reused: weir.OK, noBatch: weir.Failed, lost: weir.Failed} {
		ended := make(chan weir.Outcome, 1)
		gate, err := keyed.New(keyed.Config{Name: "databases", Limit: 1, Hooks: weir.Hooks{
			Done: func(_ string, o weir.Outcome, _ time.Duration) { ended <- o },
		}})
		if err != nil {
			t.Fatal(err)
		}
		permit, err := gate.Admit(t.Context(), weir.Work{Tenant: "orders"})
		if err != nil {
			t.Fatal(err)
		}
		a := &api{waiting: map[string]*request{"token": {permit: permit, done: make(chan result, 1)}}}
		a.receive([]delivery{{"token", result{Status: status}}, {"token", result{Status: status}}, {"stranger", result{}}})
		if got := <-ended; got != want || gate.Snapshot().InFlight != 0 {
			t.Errorf("%s: %v, want %v", status, got, want)
		}
		gate.Close()
	}
}

// acknowledged is how many of those that wait Kafka has.
func (a *api) acknowledged() (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, req := range a.waiting {
		if req.offset >= 0 {
			n++
		}
	}
	return n
}

// A result that cannot be delivered is asked for.
func TestOverdueIsAsked(t *testing.T) {
	s := newSystem(t)
	s.processor(nil)
	a := s.api(2, func(cfg *apiConfig) { cfg.overdue = 20 * time.Millisecond })
	a.grpc.Stop()
	for _, tt := range []struct {
		body string
		code int
	}{
		{`{"id":"1","events":[{"type":"x"}]}`, 201},
		{`{"id":"2","expect":5,"events":[{"type":"x"}]}`, 409},
		{`{"id":"1","events":[{"type":"y"}]}`, 422},
	} {
		if got := s.post(a, "orders", tt.body); got.code != tt.code {
			t.Errorf("%s: %d %s", tt.body, got.code, got.body)
		}
	}
}

// Processors come and go, and what is committed to Kafka means nothing: each batch is applied once.
func TestProcessorsComeAndGo(t *testing.T) {
	s := newSystem(t)
	a := s.api(100, func(cfg *apiConfig) { cfg.overdue = 50 * time.Millisecond })
	send := func(from, to int) {
		t.Helper()
		var wg sync.WaitGroup
		for i := from; i < to; i++ {
			wg.Go(func() {
				body, _ := json.Marshal(batchOf(string(rune('a'+i)), nil, "x"))
				if got := s.post(a, "orders", string(body)); got.code != 201 {
					t.Errorf("%d: %d %s", i, got.code, got.body)
				}
			})
		}
		wg.Wait()
	}
	_, stop := s.processor(nil)
	send(0, 5)
	s.processor(nil)
	send(5, 10)
	stop()
	send(10, 15)
	got := s.get(a, "/v1/databases/orders/events")
	seen := map[string]bool{}
	for i, e := range got.Events {
		if e.Revision != int64(i+1) || seen[e.Batch] {
			t.Errorf("event %d: %+v", i, e)
		}
		seen[e.Batch] = true
	}
	if len(seen) != 15 {
		t.Errorf("%d batches in the log", len(seen))
	}
}

// commits has the group committed to an offset of each partition.
func (s *system) commits(to int64) {
	s.t.Helper()
	ask := kmsg.NewPtrMetadataRequest()
	asked := kmsg.NewMetadataRequestTopic()
	asked.Topic = kmsg.StringPtr(topic)
	ask.Topics = append(ask.Topics, asked)
	found, err := ask.RequestWith(s.t.Context(), s.client)
	if err != nil || len(found.Topics) != 1 {
		s.t.Fatal(found, err)
	}
	req, of := kmsg.NewPtrOffsetCommitRequest(), kmsg.NewOffsetCommitRequestTopic()
	req.Group, of.Topic, of.TopicID = group, topic, found.Topics[0].TopicID
	for _, p := range found.Topics[0].Partitions {
		one := kmsg.NewOffsetCommitRequestTopicPartition()
		one.Partition, one.Offset = p.Partition, to
		of.Partitions = append(of.Partitions, one)
	}
	req.Topics = append(req.Topics, of)
	resp, err := req.RequestWith(s.t.Context(), s.client)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, p := range resp.Topics[0].Partitions {
		if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
			s.t.Fatal(err)
		}
	}
}

// Somebody plays with the group's offsets while no processor runs: the store says where to begin.
func TestKafkasOffsetsMeanNothing(t *testing.T) {
	s := newSystem(t)
	a := s.api(5, func(cfg *apiConfig) { cfg.overdue = 20 * time.Millisecond })
	id := 0
	for _, to := range []int64{0, 4, 1000} { // to the start, to the end of what is there by then, and beyond it
		_, stop := s.processor(nil)
		id++
		if got := s.post(a, "orders", `{"id":"`+string(rune('a'+id))+`","events":[{"type":"x"}]}`); got.code != 201 {
			t.Fatalf("before: %d %s", got.code, got.body)
		}
		stop()
		id++
		missed := s.post(a, "orders", `{"id":"`+string(rune('a'+id))+`","events":[{"type":"x"}]}`, "Prefer", "wait=0")
		if missed.code != 202 {
			t.Fatalf("meanwhile: %d %s", missed.code, missed.body)
		}
		s.until("it is in the topic", func() bool { return a.acknowledged() == 1 })
		s.commits(to)
		_, stop = s.processor(nil)
		s.until("it is applied", func() bool { return a.inFlight() == 0 })
		stop()
	}
	got := s.get(a, "/v1/databases/orders/events")
	if len(got.Events) != id {
		t.Errorf("%d events of %d batches: %s", len(got.Events), id, got.body)
	}
}
