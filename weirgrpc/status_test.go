package weirgrpc_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/weirgrpc"
)

func TestStatus(t *testing.T) {
	secret := errors.New("secret of the store")
	for _, tt := range []struct {
		rej      weir.Rejection
		want     codes.Code
		reason   string
		retry    time.Duration // of RetryInfo; 0: none
		quota    bool
		pushback string
	}{
		{weir.Rejection{Reason: weir.ReasonQuota, Gate: "api", Rule: "user=*", RetryAfter: 1500 * time.Microsecond, Retryable: true, Bucket: "secret"},
			codes.ResourceExhausted, "QUOTA", 1500 * time.Microsecond, true, "2"},
		{weir.Rejection{Reason: weir.ReasonLimit, Gate: "api", RetryAfter: time.Second, Retryable: true}, codes.Unavailable, "LIMIT", time.Second, false, "1000"},
		{weir.Rejection{Reason: weir.ReasonQueueFull, Gate: "api", Retryable: true}, codes.Unavailable, "QUEUE_FULL", 0, false, ""},
		{weir.Rejection{Reason: weir.ReasonQueueTimeout, Gate: "api", Retryable: true}, codes.Unavailable, "QUEUE_TIMEOUT", 0, false, ""},
		{weir.Rejection{Reason: weir.ReasonDeadline, Gate: "api", Cause: context.DeadlineExceeded}, codes.DeadlineExceeded, "DEADLINE", 0, false, "-1"},
		{weir.Rejection{Reason: weir.ReasonDeadline, Gate: "api", Value: 3, Limit: 2, RetryAfter: time.Second, Retryable: true},
			codes.Unavailable, "DEADLINE", time.Second, false, "1000"},
		{weir.Rejection{Reason: weir.ReasonShed, Gate: "api", RetryAfter: time.Second, Retryable: true}, codes.Unavailable, "SHED", time.Second, false, "1000"},
		{weir.Rejection{Reason: weir.ReasonThrottled, Gate: "api", Retryable: true}, codes.Unavailable, "THROTTLED", 0, false, ""},
		{weir.Rejection{Reason: weir.ReasonThrottled, Gate: "api", RetryAfter: time.Second}, codes.Unavailable, "THROTTLED", 0, false, "-1"},
		{weir.Rejection{Reason: weir.ReasonThrottled, Gate: "api", RetryAfter: time.Second, Retryable: true}, codes.Unavailable, "THROTTLED", time.Second, false, "1000"},
		{weir.Rejection{Reason: weir.ReasonTooLarge, Gate: "api", Value: 9, Limit: 3}, codes.ResourceExhausted, "TOO_LARGE", 0, false, "-1"},
		{weir.Rejection{Reason: weir.ReasonTooLarge, Gate: "api", Value: -1}, codes.InvalidArgument, "TOO_LARGE", 0, false, "-1"},
		{weir.Rejection{Reason: weir.ReasonBlocked, Gate: "api", Rule: "user=mallory"}, codes.PermissionDenied, "BLOCKED", 0, false, "-1"},
		{weir.Rejection{Reason: weir.ReasonStore, Gate: "api", RetryAfter: time.Second, Retryable: true, Cause: secret}, codes.Unavailable, "STORE", time.Second, false, "1000"},
		{weir.Rejection{Reason: weir.ReasonDraining, Gate: "api", Retryable: true}, codes.Unavailable, "DRAINING", 0, false, ""},
		{weir.Rejection{Reason: weir.ReasonCanceled, Gate: "api", Cause: context.Canceled}, codes.Canceled, "CANCELED", 0, false, "-1"},
		{weir.Rejection{Gate: "api", Retryable: true}, codes.Unavailable, "NONE", 0, false, ""},
	} {
		st := weirgrpc.Status(&tt.rej)
		var reason, gate, rule, retryable string
		var retry time.Duration
		quota := false
		for _, d := range st.Details() {
			switch d := d.(type) {
			case *errdetails.ErrorInfo:
				reason, gate, rule, retryable = d.Reason, d.Metadata["gate"], d.Metadata["rule"], d.Metadata["retryable"]
			case *errdetails.RetryInfo:
				retry = d.RetryDelay.AsDuration()
			case *errdetails.QuotaFailure:
				quota = true
			}
		}
		if st.Code() != tt.want || reason != tt.reason || retry != tt.retry || quota != tt.quota || gate != "api" || rule != tt.rej.Rule {
			t.Errorf("%v: %v %q after %v, quota %v, gate %q rule %q; want %v %q after %v, quota %v",
				tt.rej.Reason, st.Code(), reason, retry, quota, gate, rule, tt.want, tt.reason, tt.retry, tt.quota)
		}
		if ms, ok := weirgrpc.Pushback(&tt.rej); ms != tt.pushback || ok != (tt.pushback != "") {
			t.Errorf("%v: pushback %q, %v, want %q", tt.rej.Reason, ms, ok, tt.pushback)
		}
		if (retryable == "false") != (tt.pushback == "-1") {
			t.Errorf("%v: retryable is %q beside the pushback %q", tt.rej.Reason, retryable, tt.pushback)
		}
		if strings.Contains(fmt.Sprint(st.Message(), st.Details()), "secret") {
			t.Errorf("%v: the client reads %q, %v", tt.rej.Reason, st.Message(), st.Details())
		}
	}
	final := &weir.Rejection{Reason: weir.ReasonLimit, Gate: "api", Value: 8, Limit: 8, Cause: secret}
	if got := weirgrpc.Status(final).Message(); got != `weir: gate "api" refused: every slot is taken (8 of 8): overloaded, do not retry` {
		t.Errorf("while retries are common the message is %q", got)
	}
	if st := weirgrpc.Status(nil); st.Code() != codes.Unavailable {
		t.Errorf("no refusal: %v", st)
	}
	if _, ok := weirgrpc.Pushback(nil); ok {
		t.Error("no refusal has a pushback")
	}
	if got := (weirgrpc.Statuses{Overload: codes.ResourceExhausted}).Code(nil); got != codes.ResourceExhausted {
		t.Errorf("with another code: %v", got)
	}
}

// Every reason has a code, and any refusal makes a status that can be sent.
func FuzzStatus(f *testing.F) {
	f.Add(uint8(1), "api", "user=*", int64(1), 1.0, true)
	f.Add(uint8(9), "\xff", strings.Repeat("ü", 80), int64(math.MaxInt64), -1.0, false)
	f.Fuzz(func(t *testing.T, reason uint8, gate, rule string, after int64, value float64, retryable bool) {
		rej := &weir.Rejection{Reason: weir.Reason(reason), Gate: gate, Rule: rule, RetryAfter: time.Duration(after), Value: value, Retryable: retryable}
		st := weirgrpc.Status(rej)
		if st.Code() == codes.OK || len(st.Details()) == 0 {
			t.Errorf("%+v: %v with %v", rej, st, st.Details())
		}
		b, err := proto.Marshal(st.Proto())
		if err != nil {
			t.Errorf("%+v: %v", rej, err)
		}
		if len(b) > 2<<10 || !utf8.ValidString(st.Message()) {
			t.Errorf("%+v: %d bytes", rej, len(b))
		}
		if ms, ok := weirgrpc.Pushback(rej); (ms == "-1") == retryable || ok != (!retryable || after > 0) {
			t.Errorf("%+v: %q", rej, ms)
		}
	})
}

func TestClassify(t *testing.T) {
	quota := weirgrpc.Status(&weir.Rejection{Reason: weir.ReasonQuota}).Err()
	full := weirgrpc.Statuses{Overload: codes.ResourceExhausted}.Of(&weir.Rejection{Reason: weir.ReasonLimit}).Err()
	for _, tt := range []struct {
		err  error
		want weir.Outcome
	}{
		{nil, weir.OK},
		{status.Error(codes.InvalidArgument, ""), weir.OK},
		{status.Error(codes.Unavailable, ""), weir.Overload},
		{status.Error(codes.ResourceExhausted, ""), weir.Overload},
		{quota, weir.OK},
		{fmt.Errorf("wrapped: %w", quota), weir.OK},
		{full, weir.Overload},
		{weirgrpc.Status(&weir.Rejection{Reason: weir.ReasonTooLarge, Value: 9, Limit: 3}).Err(), weir.OK},
		{status.Error(codes.ResourceExhausted, "grpc: received message larger than max (5 vs. 4)"), weir.OK},
		{status.Error(codes.ResourceExhausted, "gRPC message exceeds maximum size 4: 5"), weir.OK},
		{status.Error(codes.Unavailable, "a queue larger than max"), weir.Overload},
		{status.Error(codes.Canceled, ""), weir.Abandoned},
		{status.Error(codes.DataLoss, ""), weir.Failed},
		{status.Error(17, ""), weir.Failed},
		{context.DeadlineExceeded, weir.Overload},
		{context.Canceled, weir.Abandoned},
		{&weir.Rejection{Reason: weir.ReasonBlocked}, weir.Failed},
		{noStatus{}, weir.Failed},
		{errors.New("x"), weir.Failed},
	} {
		if got := weirgrpc.Classify(tt.err); got != tt.want {
			t.Errorf("%v: %v, want %v", tt.err, got, tt.want)
		}
	}
	if got := weirgrpc.ClassifyStatus(nil); got != weir.OK {
		t.Errorf("no status: %v", got)
	}
}

// noStatus is an error that says it has a status and has none.
type noStatus struct{}

func (noStatus) Error() string              { return "none" }
func (noStatus) GRPCStatus() *status.Status { return nil }
