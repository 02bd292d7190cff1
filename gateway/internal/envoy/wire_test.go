package envoy

import (
	"testing"

	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/proto"
)

// Whatever comes is read or refused. What protobuf reads is read here, too, as the same phase.
func FuzzRequest(f *testing.F) {
	for _, m := range []*extproc.ProcessingRequest{
		asks("x-tenant", "acme"), says(true, ":status", "200"), {},
		{Request: &extproc.ProcessingRequest_ResponseTrailers{ResponseTrailers: &extproc.HttpTrailers{Trailers: headers("grpc-status", "0")}}},
		{Request: &extproc.ProcessingRequest_RequestBody{RequestBody: &extproc.HttpBody{Body: []byte("x")}}, ObservabilityMode: true},
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var got request
		err := got.ReadWire(b)
		var want extproc.ProcessingRequest
		if proto.Unmarshal(b, &want) != nil {
			return
		}
		if err != nil {
			t.Fatalf("%v, and protobuf reads %v", err, &want)
		}
		if len(want.ProtoReflect().GetUnknown()) > 0 {
			return // a field of another type may look like one of ours
		}
		phases := map[bool]phase{
			want.GetRequestHeaders() != nil: requestHeaders, want.GetResponseHeaders() != nil: responseHeaders,
			want.GetRequestTrailers() != nil: requestTrailers, want.GetResponseTrailers() != nil: responseTrailers,
			want.GetRequestBody() != nil: requestBody, want.GetResponseBody() != nil: responseBody,
		}
		if want.Request == nil {
			phases[true] = 0
		}
		if got.phase != phases[true] || got.observing != want.ObservabilityMode {
			t.Errorf("phase %d, observed %v, of %v", got.phase, got.observing, &want)
		}
	})
}
