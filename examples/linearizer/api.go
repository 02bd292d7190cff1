package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"google.golang.org/grpc"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/limit"
	"github.com/weir-go/weir/weirhttp"
	"github.com/weir-go/weir/weirkafka"
)

// apiConfig is what an API server needs.
type apiConfig struct {
	brokers []string
	store   *store
	gate    weir.Gate
	// addr and results are where HTTP and gRPC listen; port 0 is any that is free.
	addr, results string
	// patience is how long a client waits for its result if it does not say. Default 10 s.
	patience time.Duration
	// overdue is when the store is asked for a result that has not come. Default 1 s.
	overdue time.Duration
	log     *slog.Logger
	options []kgo.Opt // besides, for tests
}

// api is the API server: it admits batches, publishes them, and waits for their results.
type api struct {
	cfg     apiConfig
	client  *kgo.Client
	http    *http.Server
	grpc    *grpc.Server
	addr    string         // of HTTP
	origin  string         // of gRPC, as records say it
	life    string         // what tokens of this process begin with
	bodies  *limit.Limiter // bytes of large bodies that Kafka has not got yet
	stop    context.CancelFunc
	stopped sync.WaitGroup

	mu      sync.Mutex
	count   uint64              // tokens that were given out
	waiting map[string]*request // what has been published and has no result yet, by token
}

// request is a batch between admission and result. It outlives the client that has sent it.
type request struct {
	database, id string
	digest       []byte
	permit       weir.Permit
	memory       weir.Permit // for the memory of a large body, until Kafka has the record
	done         chan result // one place: the sender never waits

	// Of the account of overdue results. The promise of the record fills in the first two.
	partition int32
	offset    int64 // -1 until the record is acknowledged
	ask       time.Time
	asked     int
}

// startAPI listens and serves, if the store belongs to the topic: with another one, offsets and ids of the store would mean
// nothing.
func startAPI(ctx context.Context, cfg apiConfig) (_ *api, err error) {
	if cfg.patience == 0 {
		cfg.patience = 10 * time.Second
	}
	if cfg.overdue == 0 {
		cfg.overdue = time.Second
	}
	a := &api{cfg: cfg, life: rand.Text(), waiting: map[string]*request{}, bodies: weir.Must(limit.New(limit.Config{Name: "bodies", Limit: allBodies}))}
	a.client, err = kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(cfg.brokers...), kgo.ClientID("linearizer-api"), kgo.DefaultProduceTopic(topic),
		kgo.ProducerBatchMaxBytes(1 << 20), kgo.RecordDeliveryTimeout(30 * time.Second),
		// The gate bounds what is under way. This is more than it could ever admit.
		kgo.MaxBufferedRecords(1 << 20),
	}, cfg.options...)...)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			a.client.Close()
		}
	}()
	if err := tie(ctx, a.client, cfg.store, cfg.log); err != nil {
		return nil, err
	}
	results, err := net.Listen("tcp", cfg.results)
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", cfg.addr)
	if err != nil {
		return nil, errors.Join(err, results.Close())
	}
	a.addr, a.origin = listener.Addr().String(), results.Addr().String()
	a.grpc = serveResults(results, a)
	asking, stop := context.WithCancel(context.Background())
	a.stop = stop
	a.stopped.Go(func() { a.askForOverdue(asking) })
	a.http = &http.Server{Handler: a.routes(), ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 30 * time.Second, ErrorLog: slog.NewLogLogger(cfg.log.Handler(), slog.LevelDebug)}
	go func() { _ = a.http.Serve(listener) }() // it ends with Shutdown or Close
	return a, nil
}

func (a *api) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/databases/{db}/batches", a.post)
	mux.HandleFunc("GET /v1/databases/{db}/batches/{id}", a.getBatch)
	mux.HandleFunc("GET /v1/databases/{db}/events", a.getEvents)
	mux.HandleFunc("GET /status", a.getStatus)
	mux.HandleFunc("GET /metrics", a.getMetrics)
	return mux
}

// close stops taking requests, gives those under way a moment, and ends.
func (a *api) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	err := a.http.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = a.http.Close()
	}
	a.stop()
	a.stopped.Wait()
	a.grpc.Stop()
	a.bodies.Close()
	a.client.Close() // promises that are open end with an error
	a.giveUp()
	return err
}

// giveUp ends the permits of requests whose results come too late for this process. Their clients have left, and may
// ask another one. Kafka may have such a record long before a processor answers.
func (a *api) giveUp() {
	a.mu.Lock()
	left := a.waiting
	a.waiting = map[string]*request{}
	a.mu.Unlock()
	for _, req := range left {
		req.permit.Done(weir.NoSample)
	}
}

// post takes a batch and answers with what became of it.
func (a *api) post(w http.ResponseWriter, r *http.Request) {
	database := r.PathValue("db")
	if err := checkName("the database's name", database, maxName); err != nil {
		answerProblem(w, http.StatusBadRequest, "not a name", err.Error())
		return
	}
	patience, err := a.patienceOf(r)
	if err != nil {
		answerProblem(w, http.StatusBadRequest, "not a preference", err.Error())
		return
	}
	// Before the slot, so that whoever sends slowly holds none. It is decoded afterwards: what is refused costs little.
	body, memory, err := a.readBody(w, r, database)
	defer func() { memory.Done(weir.NoSample) }() // unless the record has taken it over
	if err != nil {
		answerBadBatch(w, r, err)
		return
	}
	// The body is here. Left as it is, the deadline for it would end a longer wait for the result, as if the
	// client had gone.
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	permit, err := a.cfg.gate.Admit(r.Context(), weir.Work{Op: "POST batches", Tenant: database, Write: true})
	if err != nil {
		weirhttp.WriteRejection(w, r, weir.AsRejection(err))
		return
	}
	b, err := parseBatch(bytes.NewReader(body))
	if err != nil {
		permit.Cancel()
		answerBadBatch(w, r, err)
		return
	}
	req := &request{database: database, id: b.ID, digest: b.digest(), permit: permit, memory: memory, done: make(chan result, 1), offset: -1}
	memory = weir.Permit{}
	if err := a.publish(req, &b); err != nil {
		answerProblem(w, http.StatusInternalServerError, "the batch cannot be published", err.Error())
		return
	}
	a.await(w, r, req, patience)
}

// Of the bodies that Kafka has not got yet: those up to freeBody bytes count nothing, all others together are bounded.
// Slots alone do not bound them: while Kafka is away, each database may have some of the largest.
const (
	freeBody  = 16 << 10
	allBodies = 64 << 20
)

// readBody reads the body of a request. The permit is for the memory that it takes.
func (a *api) readBody(w http.ResponseWriter, r *http.Request, database string) (body []byte, memory weir.Permit, err error) {
	size := min(r.ContentLength, maxBatch) // what is longer is refused after so much
	if size < 0 {
		size = maxBatch
	}
	if size > freeBody {
		if memory, err = a.bodies.Admit(r.Context(), weir.Work{Op: "read a body", Tenant: database, Cost: size}); err != nil {
			return nil, memory, err
		}
	}
	body, err = io.ReadAll(http.MaxBytesReader(w, r.Body, maxBatch))
	return body, memory, err
}

// await answers with the result, or with where to ask for it. The request goes on when the client does not.
func (a *api) await(w http.ResponseWriter, r *http.Request, req *request, patience time.Duration) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case res := <-req.done:
		answerResult(w, res)
		return
	case <-timer.C:
	case <-r.Context().Done():
		// As a rule the client has gone. If it has not, an answer without a code would be 200.
	}
	w.Header().Set("Location", pathOf(req.database, req.id))
	w.Header().Set("Retry-After", "1")
	answerJSON(w, http.StatusAccepted, map[string]string{"status": "pending", "ask": pathOf(req.database, req.id)})
}

func pathOf(database, id string) string {
	return "/v1/databases/" + url.PathEscape(database) + "/batches/" + url.PathEscape(id)
}

// patienceOf is how long the client wants to wait: Prefer: wait=SECONDS, of RFC 7240.
func (a *api) patienceOf(r *http.Request) (time.Duration, error) {
	for _, line := range r.Header.Values("Prefer") {
		for part := range strings.SplitSeq(line, ",") {
			preference, _, _ := strings.Cut(part, ";") // parameters may follow, and nobody has defined any
			name, value, _ := strings.Cut(preference, "=")
			if !strings.EqualFold(strings.TrimSpace(name), "wait") {
				continue
			}
			seconds, err := strconv.ParseUint(strings.Trim(strings.TrimSpace(value), `"`), 10, 16)
			if err != nil || seconds > 600 {
				return 0, errors.New("Prefer: wait= takes whole seconds, from 0 to 600")
			}
			return time.Duration(seconds) * time.Second, nil
		}
	}
	return a.cfg.patience, nil
}

// publish writes the record. From here on, the request ends with its result, or with the record's failure.
func (a *api) publish(req *request, b *batch) error {
	a.mu.Lock()
	a.count++
	token := a.life + "." + strconv.FormatUint(a.count, 36)
	req.ask = time.Now().Add(a.cfg.overdue)
	a.waiting[token] = req
	a.mu.Unlock()
	rec := record{Version: version, Database: req.database, Origin: a.origin, Token: token, Batch: *b}
	value, err := rec.encode()
	if err != nil {
		req.memory.Done(weir.NoSample)
		a.finish(token, result{}, weir.Failed)
		return err
	}
	// Not under the client's context: it may leave, and the record is written all the same.
	p := weirkafka.Producer{Client: a.client}
	p.Publish(context.Background(), req.permit, &kgo.Record{Key: []byte(req.database), Value: value}, func(r *kgo.Record, err error) {
		req.memory.Done(weir.NoSample)
		if err != nil {
			// It is unknown whether the record is in the topic. The permit has ended.
			res := result{Status: unpublished, Reason: clip(err.Error())}
			a.finish(token, res, res.outcome())
			return
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		req.partition, req.offset = r.Partition, r.Offset
	})
	return nil
}

// unpublished is the status of a batch whose record was not acknowledged, or is in a topic that is not the store's. Nobody
// keeps it, because the batch may be applied all the same.
const unpublished status = "unpublished"

// receive implements receiver: results that processors deliver. Those that nobody waits for are of clients of
// an earlier life of this address, or came twice.
func (a *api) receive(some []delivery) {
	for _, d := range some {
		a.finish(d.Token, d.Result, d.Result.outcome())
	}
}

// outcome is what a result says of the processors' work: a conflict is work done, too.
func (r *result) outcome() weir.Outcome {
	switch r.Status {
	case lost, noBatch:
		return weir.Failed
	case unpublished:
		return weir.Overload
	}
	return weir.OK
}

// finish ends a request with its result: the permit, and the client's wait if it is still there.
func (a *api) finish(token string, res result, outcome weir.Outcome) {
	a.mu.Lock()
	req, ok := a.waiting[token]
	delete(a.waiting, token)
	a.mu.Unlock()
	if !ok {
		return
	}
	req.permit.Done(outcome)
	req.done <- res
}

// answerResult writes what became of a batch.
func answerResult(w http.ResponseWriter, res result) {
	switch res.Status {
	case applied:
		answerJSON(w, http.StatusCreated, res)
	case conflict:
		answerProblem(w, http.StatusConflict, "the precondition failed", fmt.Sprintf("the batch expects revision %d, and the database has %d", res.Expected, res.Revision), res)
	case reused:
		answerProblem(w, http.StatusUnprocessableEntity, "the id is taken", res.Reason, res)
	case unpublished:
		w.Header().Set("Retry-After", "1")
		answerProblem(w, http.StatusServiceUnavailable, "nobody says whether the batch will be applied", "it may be applied all the same; send it again with the same id: "+res.Reason, res)
	default:
		answerProblem(w, http.StatusInternalServerError, "the batch has no result", res.Reason, res)
	}
}

func answerBadBatch(w http.ResponseWriter, r *http.Request, err error) {
	if rejection := weir.AsRejection(err); rejection != nil {
		weirhttp.WriteRejection(w, r, rejection)
		return
	}
	if tooLarge := new(http.MaxBytesError); errors.As(err, &tooLarge) {
		answerProblem(w, http.StatusRequestEntityTooLarge, "too large", fmt.Sprintf("a batch has at most %d bytes", tooLarge.Limit))
		return
	}
	answerProblem(w, http.StatusBadRequest, "not a batch", clip(err.Error()))
}

// answerProblem writes a problem document, with the result if there is one.
func answerProblem(w http.ResponseWriter, code int, title, detail string, res ...result) {
	doc := map[string]any{"title": title, "status": code, "detail": detail}
	if len(res) == 1 {
		doc["result"] = res[0]
	}
	w.Header().Set("Content-Type", "application/problem+json")
	writeJSON(w, code, doc)
}

func answerJSON(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	writeJSON(w, code, v)
}

// writeTime is how long a client may take to read an answer.
const writeTime = 30 * time.Second

func writeJSON(w http.ResponseWriter, code int, v any) {
	var buf bytes.Buffer
	e := json.NewEncoder(&buf)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		code = http.StatusInternalServerError
		buf.Reset()
	}
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTime))
	w.WriteHeader(code)
	_, _ = w.Write(buf.Bytes()) // an error means that the client has gone
}
