package weirgrpc_test

import (
	"encoding/base64"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/weirgrpc"
)

func TestStatusInHeaders(t *testing.T) {
	h := http.Header{"Content-Type": {"text/plain"}, "Grpc-Message": {"old"}, "Grpc-Status-Details-Bin": {"old"}}
	weirgrpc.SetStatus(h, status.New(codes.NotFound, ""))
	if len(h) != 2 || h.Get("Content-Type") != "application/grpc" || h.Get("Grpc-Status") != "5" {
		t.Errorf("%v", h)
	}
	weirgrpc.SetStatus(h, status.New(codes.NotFound, "100 % ü\n"))
	if got := h.Get("Grpc-Message"); got != "100 %25 %C3%BC%0A" {
		t.Errorf("message %q", got)
	}
	weirgrpc.Statuses{}.SetRefusal(h, &weir.Rejection{Gate: "api", Reason: weir.ReasonQuota, RetryAfter: 1500 * time.Microsecond, Retryable: true})
	if h.Get("Grpc-Retry-Pushback-Ms") != "2" || strings.HasSuffix(h.Get("Grpc-Status-Details-Bin"), "=") {
		t.Errorf("%v", h)
	}
	st, ok := weirgrpc.StatusOf(h)
	if !ok || st.Code() != codes.ResourceExhausted || len(st.Details()) != 3 || weirgrpc.ClassifyStatus(st) != weir.OK {
		t.Errorf("read back: %v with %v", st, st.Details())
	}
}

func TestStatusOfNonsense(t *testing.T) {
	quota := weirgrpc.Status(&weir.Rejection{Gate: "api", Reason: weir.ReasonQuota})
	details := func(message string) string {
		p := quota.Proto()
		p.Message = message
		b, err := proto.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		return base64.RawStdEncoding.EncodeToString(b)
	}
	for _, tt := range []struct {
		h    http.Header
		ok   bool
		want codes.Code
		as   weir.Outcome
	}{
		{http.Header{}, false, codes.OK, weir.OK},
		{http.Header{"Grpc-Status": {"0"}}, true, codes.OK, weir.OK},
		{http.Header{"Grpc-Status": {"14"}}, true, codes.Unavailable, weir.Overload},
		{http.Header{"Grpc-Status": {"17"}}, true, 17, weir.Failed},
		{http.Header{"Grpc-Status": {"x"}}, true, codes.Unknown, weir.Failed},
		{http.Header{"Grpc-Status": {""}}, true, codes.Unknown, weir.Failed},
		{http.Header{"Grpc-Status": {"-1"}}, true, codes.Unknown, weir.Failed},
		{http.Header{"Grpc-Status": {"99999999999"}}, true, codes.Unknown, weir.Failed},
		{http.Header{"Grpc-Status": {"8"}, "Grpc-Status-Details-Bin": {"%%"}}, true, codes.ResourceExhausted, weir.Overload},
		{http.Header{"Grpc-Status": {"8"}, "Grpc-Status-Details-Bin": {details("whole")}}, true, codes.ResourceExhausted, weir.OK},
		{http.Header{"Grpc-Status": {"8"}, "Grpc-Status-Details-Bin": {details(strings.Repeat("long", 4<<10))}}, true, codes.ResourceExhausted, weir.Overload},
		{http.Header{"Grpc-Status": {"14"}, "Grpc-Status-Details-Bin": {details("of another code")}}, true, codes.Unavailable, weir.Overload},
		{http.Header{"Grpc-Status": {"8"}, "Grpc-Status-Details-Bin": {strings.Repeat("A", 1<<20)}}, true, codes.ResourceExhausted, weir.Overload},
	} {
		st, ok := weirgrpc.StatusOf(tt.h)
		if ok != tt.ok || st.Code() != tt.want || weirgrpc.ClassifyStatus(st) != tt.as {
			t.Errorf("%.60v: %v, %v", tt.h, st, ok)
		}
	}
}

// A written status can be read again, and is valid in a header.
func FuzzStatusInHeaders(f *testing.F) {
	f.Add(uint8(1), "api", "user=*", int64(1))
	f.Fuzz(func(t *testing.T, reason uint8, gate, rule string, after int64) {
		h := http.Header{}
		rej := &weir.Rejection{Reason: weir.Reason(reason), Gate: gate, Rule: rule, RetryAfter: time.Duration(after)}
		weirgrpc.Statuses{}.SetRefusal(h, rej)
		for name, values := range h {
			if strings.ContainsFunc(values[0], func(r rune) bool { return r < ' ' || r > '~' }) {
				t.Errorf("%s: %q", name, values[0])
			}
		}
		want := weirgrpc.Status(rej)
		st, ok := weirgrpc.StatusOf(h)
		if !ok || st.Code() != want.Code() || st.Message() != want.Message() || len(st.Details()) != len(want.Details()) {
			t.Fatalf("%v, want %v", st, want)
		}
		for i, d := range st.Details() {
			if !proto.Equal(d.(proto.Message), want.Details()[i].(proto.Message)) {
				t.Errorf("detail %v, want %v", d, want.Details()[i])
			}
		}
	})
}
