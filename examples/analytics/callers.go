package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weir-go/weir/internal/hist"
	"github.com/weir-go/weir/internal/loadgen"
	"github.com/weir-go/weir/weirgrpc"
)

// caller is a kind of client, with a deadline of its own.
type caller struct {
	name     string
	patience time.Duration
	share    float64 // of what the database can do, in calm
	wave     float64 // how many times as often it calls in the wave
	most     float64 // calls a second in calm, on a fast machine
	method   string
}

var (
	reports = caller{"reports", 30 * time.Second, 0.25, 10, 25, reportMethod}
	callers = []caller{{"api", time.Second, 0.10, 1, 150, queryMethod}, {"charts", 3 * time.Second, 0.20, 1, 60, queryMethod}, reports}
)

// plan is the load: the same for each run.
type plan struct {
	customers             int
	calibrate             time.Duration // for each caller
	warm, calm, wave, end time.Duration
	patience              time.Duration // of all callers, 0 for their own
	rates                 map[string]float64
}

var (
	fullPlan  = &plan{customers: 400, calibrate: 2 * time.Second, warm: 10 * time.Second, calm: 20 * time.Second, wave: 30 * time.Second, end: 15 * time.Second}
	quickPlan = &plan{customers: 100, calibrate: time.Second / 2, warm: time.Second, calm: time.Second, wave: time.Second, end: time.Second, patience: 5 * time.Minute}
)

// measureOut sets the rates by what the database can do.
func (p *plan) measureOut(capacity map[string]float64) {
	p.rates = map[string]float64{}
	for _, c := range callers {
		p.rates[c.name] = min(c.share*capacity[c.name], c.most)
	}
}

// phases are those of one caller.
func (p *plan) phases(c caller) []loadgen.Phase {
	r := p.rates[c.name]
	return []loadgen.Phase{{Rate: r, For: p.warm + p.calm}, {Rate: r * c.wave, For: p.wave}, {Rate: r, For: p.end}}
}

func (p *plan) patienceOf(c caller) time.Duration {
	if p.patience > 0 {
		return p.patience
	}
	return c.patience
}

// lane is one caller's load, and what came of it.
type lane struct {
	caller
	run   string
	conn  *grpc.ClientConn
	meter *loadgen.Meter

	mu      sync.Mutex
	refused []refusals // by the second in which the calls were due
	reasons map[string]int
	bare    int // refusals without details
}

// refusals are those of a second.
type refusals struct {
	all  hist.Histogram // how long until the caller had them
	door hist.Histogram // of them, those whose call had not waited for a slot
}

// send sends a system the load of all callers, and waits for the last answer.
func send(ctx context.Context, s setup, p *plan, sys *system) (*result, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := &result{setup: s, plan: p}
	var number atomic.Int64
	for i, c := range callers {
		conn, err := grpc.NewClient(sys.addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDisableRetry())
		if err != nil {
			return nil, err
		}
		defer conn.Close()
		l := &lane{caller: c, run: s.name, conn: conn, reasons: map[string]int{}}
		l.patience = p.patienceOf(c)
		l.refused = make([]refusals, int((p.warm+p.calm+p.wave+p.end)/time.Second)+1)
		begun := time.Now()
		load := loadgen.Load{Phases: p.phases(c), Patience: l.patience, Seed: uint64(i + 1), Send: func(ctx context.Context) loadgen.Answer {
			return l.call(ctx, begun, int(number.Add(1)), p.customers)
		}}
		if l.meter, err = load.Start(ctx); err != nil {
			return nil, err
		}
		r.lanes = append(r.lanes, l)
	}
	if err := sys.wave(ctx, p, r); err != nil {
		return nil, err
	}
	for _, l := range r.lanes {
		<-l.meter.Done()
	}
	return r, context.Cause(ctx)
}

// call makes one call, and says what came of it.
func (l *lane) call(ctx context.Context, begun time.Time, number, customers int) loadgen.Answer {
	until, _ := ctx.Deadline()
	due := until.Add(-l.patience)
	text, err := json.Marshal(ask(l.name, customers, rand.New(rand.NewPCG(uint64(number), 2))))
	if err != nil {
		return loadgen.Failed
	}
	ctx = metadata.AppendToOutgoingContext(ctx, callerKey, l.name, callKey, strconv.Itoa(number))
	err = l.conn.Invoke(ctx, l.method, wrapperspb.String(string(text)), new(wrapperspb.Int64Value))
	took := time.Since(due)
	answer, name := l.classify(status.Convert(err), due.Sub(begun), took)
	calls.WithLabelValues(l.run, l.name, name).Observe(min(took, l.patience).Seconds())
	return answer
}

// classify tells a refusal from a time-out by its details.
func (l *lane) classify(st *status.Status, due, took time.Duration) (loadgen.Answer, string) {
	var reason string
	for _, d := range st.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.Domain == weirgrpc.Domain {
			reason = info.Reason
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case st.Code() == codes.OK:
		return loadgen.OK, "ok"
	case reason != "":
		l.reasons[reason]++
		i := min(max(0, int(due/time.Second)), len(l.refused)-1)
		l.refused[i].all.Record(took)
		if reason != "QUEUE_TIMEOUT" && took < time.Second/4 {
			l.refused[i].door.Record(took)
		}
		return loadgen.Refused, "refused"
	case st.Code() == codes.DeadlineExceeded:
		return loadgen.GaveUp, "late"
	case st.Code() == codes.ResourceExhausted, st.Code() == codes.Unavailable:
		l.bare++
	}
	l.reasons[st.Code().String()+": "+st.Message()]++
	return loadgen.Failed, "failed"
}

// wave makes one pod slow for the time of the wave, and counts what the pods get in it.
func (s *system) wave(ctx context.Context, p *plan, r *result) error {
	for _, on := range []bool{true, false} {
		after := p.wave
		if on {
			after = p.warm + p.calm
		}
		if err := loadgen.Pause(ctx, after); err != nil {
			return err
		}
		if err := s.slow(ctx, on); err != nil {
			return err
		}
		counts, err := s.podCounts(ctx)
		if err != nil {
			return err
		}
		for i, c := range counts {
			if on {
				r.wavePods = append(r.wavePods, c)
				continue
			}
			before := r.wavePods[i]
			r.wavePods[i] = podCounts{c.Calls - before.Calls, c.Refused - before.Refused, c.Retries - before.Retries, c.SameAgain - before.SameAgain}
		}
	}
	return nil
}

// slow tells the second pod whether its queries are slow.
func (s *system) slow(ctx context.Context, on bool) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, fmt.Sprintf("http://%s/slow?on=%v", s.admins[1], on), nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}
