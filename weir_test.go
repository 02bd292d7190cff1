package weir_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/limit"
)

func newLimit(t *testing.T, name string, n int64) *limit.Limiter {
	t.Helper()
	l, err := limit.New(limit.Config{Name: name, Limit: n})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

func inFlight(ls ...*limit.Limiter) (n int64) {
	for _, l := range ls {
		n += l.Snapshot().InFlight
	}
	return n
}

func TestZeroPermitIsHarmless(t *testing.T) {
	var p weir.Permit
	p.Sample(weir.OK)
	p.SetCost("", 3)
	p.Cancel()
	p.Done(weir.OK)
	if p.Live() {
		t.Error("the zero permit is live")
	}
}

// Priorities out of range belong to the nearest class.
func TestClassOfPriority(t *testing.T) {
	for p, want := range map[weir.Priority]int{
		-128: 0, -2: 0, weir.Background: 0, weir.Normal: 1, weir.High: 2, weir.Critical: 3, 3: 3, 127: 3,
	} {
		if got := p.Class(); got != want {
			t.Errorf("%v is of class %d, want %d", p, got, want)
		}
	}
	if highest := weir.Critical.Class(); highest != weir.Classes-1 {
		t.Errorf("the highest class is %d of %d", highest, weir.Classes)
	}
	for class := range weir.Classes {
		if p := weir.PriorityOf(class); p.Class() != class || p < weir.Background || p > weir.Critical {
			t.Errorf("class %d is of priority %v", class, p)
		}
	}
}

func TestAllIsAllOrNothing(t *testing.T) {
	a, b, c := newLimit(t, "a", 2), newLimit(t, "b", 1), newLimit(t, "c", 2)
	all := weir.All(a, b, c)
	p, err := all.Admit(context.Background(), weir.Work{})
	if err != nil || inFlight(a, b, c) != 3 {
		t.Fatalf("%v, %d in flight", err, inFlight(a, b, c))
	}
	// b is full. It is not the last, so nothing waits for it, and a gets its
	// slot back.
	_, err = all.Admit(context.Background(), weir.Work{})
	if r := weir.AsRejection(err); r == nil || r.Gate != "b" || r.Reason != weir.ReasonLimit {
		t.Errorf("refused by %v", err)
	}
	if a.Snapshot().InFlight != 1 || a.Snapshot().Admitted != 1 {
		t.Errorf("a: %+v", a.Snapshot())
	}
	stale := p
	p.Sample(weir.OK)
	p.Done(weir.OK)
	p.Done(weir.OK)
	if inFlight(a, b, c) != 0 {
		t.Errorf("%d in flight", inFlight(a, b, c))
	}
	p, _ = all.Admit(context.Background(), weir.Work{})
	stale.Done(weir.OK)
	stale.Cancel()
	stale.Sample(weir.OK)
	if inFlight(a, b, c) != 3 {
		t.Error("a stale permit ended another's work")
	}
	p.Cancel()
	if inFlight(a, b, c) != 0 || a.Snapshot().Admitted != 1 {
		t.Error("cancelled work was counted")
	}
}

func TestAllWaitsOnlyInTheLast(t *testing.T) {
	a, last := newLimit(t, "a", 5), newLimit(t, "last", 1)
	all := weir.All(a, last).(weir.Arriver)
	first, _, err := all.Arrive(weir.Work{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	granted := make(chan weir.Permit, 1)
	wake := func(p weir.Permit, err error) {
		if err != nil {
			t.Error(err)
		}
		granted <- p
	}
	_, w, err := all.Arrive(weir.Work{}, wake)
	if err != weir.ErrWaiting || a.Snapshot().InFlight != 2 {
		t.Fatalf("%v, a has %d", err, a.Snapshot().InFlight)
	}
	if !w.Cancel() || w.Cancel() || a.Snapshot().InFlight != 1 {
		t.Errorf("cancelled, a has %d", a.Snapshot().InFlight)
	}
	if _, _, err = all.Arrive(weir.Work{}, wake); err != weir.ErrWaiting {
		t.Fatal(err)
	}
	first.Done(weir.OK)
	(<-granted).Done(weir.OK)
	if inFlight(a, last) != 0 {
		t.Errorf("%d in flight", inFlight(a, last))
	}
}

func TestAllFromManyGoroutines(t *testing.T) {
	a, b := newLimit(t, "a", 4), newLimit(t, "b", 3)
	all := weir.All(a, b)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 2000 {
				p, err := all.Admit(context.Background(), weir.Work{MaxWait: time.Millisecond})
				if err != nil {
					continue
				}
				if i%3 == 0 {
					go p.Sample(weir.OK)
				}
				p.Done(weir.OK)
				p.Done(weir.OK)
			}
		})
	}
	wg.Wait()
	if inFlight(a, b) != 0 {
		t.Errorf("%d in flight", inFlight(a, b))
	}
}

func TestAllEdges(t *testing.T) {
	if p, err := weir.All().Admit(context.Background(), weir.Work{}); err != nil || p.Live() {
		t.Error("no gates, no limit")
	}
	l := newLimit(t, "l", 1)
	if weir.All(l) != weir.Gate(l) {
		t.Error("one gate is itself")
	}
}

// A gate that somebody forgot to make is told by name, not by a nil pointer at the first piece of work.
func TestNilGates(t *testing.T) {
	l := newLimit(t, "l", 1)
	for want, f := range map[string]func(){
		"weir.All: gate 2 of 3 is nil": func() { weir.All(l, nil, l) },
		"weir.All: gate 1 of 1 is nil": func() { weir.All(nil) },
		"weir.Do: the gate is nil; All() admits everything": func() {
			_ = weir.Do(context.Background(), nil, weir.Work{}, func(context.Context) error { return nil })
		},
	} {
		func() {
			defer func() {
				if got := recover(); got != want {
					t.Errorf("panic %v, want %s", got, want)
				}
			}()
			f()
		}()
	}
}

func TestDoReleasesOnPanic(t *testing.T) {
	l := newLimit(t, "l", 1)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was swallowed")
			}
		}()
		_ = weir.Do(context.Background(), l, weir.Work{}, func(context.Context) error { panic("no") })
	}()
	if inFlight(l) != 0 {
		t.Error("the panic kept the slot")
	}
}

func TestDoPassesErrorsOn(t *testing.T) {
	l := newLimit(t, "l", 1)
	if err := weir.Do(context.Background(), l, weir.Work{}, func(context.Context) error { return io.EOF }); err != io.EOF {
		t.Errorf("the work's error: %v", err)
	}
	p, _ := l.TryAdmit(weir.Work{})
	defer p.Done(weir.OK)
	err := weir.Do(context.Background(), l, weir.Work{MaxWait: weir.NoWait}, func(context.Context) error { return nil })
	if !errors.Is(err, weir.ErrRejected) {
		t.Errorf("the gate's error: %v", err)
	}
}

type statusError int

func (s statusError) Error() string   { return "status" }
func (s statusError) HTTPStatus() int { return int(s) }

type codeError int

func (c codeError) Error() string { return "code" }
func (c codeError) GRPCCode() int { return int(c) }

type timeoutError struct{}

func (timeoutError) Error() string { return "slow" }
func (timeoutError) Timeout() bool { return true }

func TestClassify(t *testing.T) {
	tests := []struct {
		err  error
		want weir.Outcome
	}{
		{nil, weir.OK},
		{io.EOF, weir.Failed},
		{context.Canceled, weir.Abandoned},
		{fmt.Errorf("call: %w", context.DeadlineExceeded), weir.Overload},
		{os.ErrDeadlineExceeded, weir.Overload},
		{timeoutError{}, weir.Overload},
		{statusError(503), weir.Overload},
		{statusError(404), weir.OK},
		{statusError(500), weir.Failed},
		{codeError(8), weir.Overload},
		{codeError(5), weir.OK},
		{codeError(1), weir.Abandoned},
		{&weir.Rejection{Reason: weir.ReasonQueueFull}, weir.Overload},
		{&weir.Rejection{Reason: weir.ReasonBlocked}, weir.Failed},
		{&weir.Rejection{Reason: weir.ReasonCanceled, Cause: context.Canceled}, weir.Abandoned},
	}
	for _, tt := range tests {
		if got := weir.Classify(tt.err); got != tt.want {
			t.Errorf("%v: %v, want %v", tt.err, got, tt.want)
		}
	}
}

func TestClassifyCodes(t *testing.T) {
	for status, want := range map[int]weir.Outcome{
		101: weir.NoSample, 200: weir.OK, 304: weir.OK, 400: weir.OK, 408: weir.Overload, 429: weir.Overload,
		499: weir.Abandoned, 500: weir.Failed, 501: weir.Failed, 503: weir.Overload, 504: weir.Overload, 0: weir.Failed, -1: weir.Failed,
	} {
		if got := weir.ClassifyHTTP(status); got != want {
			t.Errorf("HTTP %d: %v, want %v", status, got, want)
		}
	}
	for code, want := range map[int]weir.Outcome{
		0: weir.OK, 1: weir.Abandoned, 2: weir.Failed, 4: weir.Overload, 8: weir.Overload, 12: weir.Failed,
		13: weir.Failed, 14: weir.Overload, 15: weir.Failed, 16: weir.OK, 99: weir.Failed,
	} {
		if got := weir.ClassifyGRPC(code); got != want {
			t.Errorf("gRPC %d: %v, want %v", code, got, want)
		}
	}
}

func TestRejectionSaysWhatHappened(t *testing.T) {
	r := &weir.Rejection{Gate: "db", Rule: "writes", Reason: weir.ReasonQueueFull, Value: 256, Limit: 256,
		RetryAfter: 120 * time.Millisecond, Signal: "cpu", Cause: io.ErrUnexpectedEOF}
	want := `weir: gate "db" refused: the wait room is full, rule "writes" (256 of 256), bound by cpu; retry after 120ms: unexpected EOF`
	if got := r.Error(); got != want {
		t.Errorf("\n%s\n%s", got, want)
	}
	second := &weir.Rejection{Gate: "api", Rule: "user=*", Window: 2, Reason: weir.ReasonQuota, Value: 1000, Limit: 1000}
	if got, want := second.Error(), `weir: gate "api" refused: quota used up, rule "user=*", window 2 (1000 of 1000)`; got != want {
		t.Errorf("\n%s\n%s", got, want)
	}
	late := &weir.Rejection{Gate: "db", Reason: weir.ReasonQueueTimeout, Value: 0.0502928, Limit: 0.05}
	if got, want := late.Error(), `weir: gate "db" refused: the wait is too long (50.3ms of 50ms)`; got != want {
		t.Errorf("\n%s\n%s", got, want)
	}
	for value, want := range map[float64]string{8: `weir: gate "api" refused: every slot is taken (8 of 8)`, 2: `weir: gate "api" refused: not enough slots are free (2 of 8)`} {
		full := &weir.Rejection{Gate: "api", Reason: weir.ReasonLimit, Value: value, Limit: 8}
		if got := full.Error(); got != want {
			t.Errorf("\n%s\n%s", got, want)
		}
	}
	err := fmt.Errorf("outer: %w", r)
	if !errors.Is(err, weir.ErrRejected) || !errors.Is(err, io.ErrUnexpectedEOF) || weir.AsRejection(err) != r {
		t.Error("not found through a wrapper")
	}
	if weir.AsRejection(io.EOF) != nil {
		t.Error("found where there is none")
	}
}

func TestNames(t *testing.T) {
	for p := weir.Background; p <= weir.Critical; p++ {
		if got, ok := weir.ParsePriority(p.String()); !ok || got != p {
			t.Errorf("%v does not come back", p)
		}
	}
	for _, s := range []string{"", "urgent", "priority(7)", "Normal"} {
		if _, ok := weir.ParsePriority(s); ok {
			t.Errorf("%q is not a priority", s)
		}
	}
	seen := map[string]bool{}
	for _, r := range weir.Reasons() {
		if s := r.String(); s == "" || seen[s] || strings.Contains(s, "(") {
			t.Errorf("reason %d is called %q", r, s)
		} else {
			seen[s] = true
		}
		if text := (&weir.Rejection{Reason: r}).Error(); strings.HasSuffix(text, ": ") {
			t.Errorf("reason %v has no words: %s", r, text)
		}
	}
	if weir.Reason(200).String() != "reason(200)" || weir.Outcome(200).String() != "outcome(200)" || weir.Priority(9).String() != "priority(9)" {
		t.Error("unknown values have no name")
	}
}

func TestMust(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	weir.Must(limit.New(limit.Config{Limit: -1}))
}

// Snapshots can be read back from JSON: each name is decoded to what it was.
func TestNamesAreReadBack(t *testing.T) {
	s := weir.Snapshot{WaitingByClass: map[weir.Priority]int64{}, Rejected: map[weir.Reason]uint64{}, Outcomes: map[weir.Outcome]uint64{}}
	for class := range weir.Classes {
		s.WaitingByClass[weir.PriorityOf(class)] = int64(class)
	}
	for i, r := range weir.Reasons() {
		s.Rejected[r] = uint64(i)
	}
	for i, o := range weir.Outcomes() {
		s.Outcomes[o] = uint64(i)
	}
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	var back weir.Snapshot
	if err := json.Unmarshal(text, &back); err != nil || !reflect.DeepEqual(back, s) {
		t.Errorf("%v: %+v, want %+v", err, back, s)
	}
	for _, text := range []string{`{"rejected":{"bored":1}}`, `{"outcomes":{"":1}}`, `{"waiting_by_class":{"priority(7)":1}}`} {
		if err := json.Unmarshal([]byte(text), &back); err == nil || !strings.Contains(err.Error(), "is not known") {
			t.Errorf("%s: %v, want an error", text, err)
		}
	}
}
