package proxy

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/weirhttp"
)

// refuser is a server of HTTP/2 that refuses requests once it has so many bytes of their body, without having begun them.
type refuser struct {
	times  int32 // how many requests
	after  int
	goAway bool
	count  atomic.Int32
	body   atomic.Pointer[[]byte] // of the request that was answered
}

// serve serves one connection until it ends.
func (s *refuser) serve(c net.Conn) {
	defer c.Close()
	if _, err := io.ReadFull(c, make([]byte, len(http2.ClientPreface))); err != nil {
		return
	}
	f := http2.NewFramer(c, c)
	_ = f.WriteSettings()
	bodies, over := make(map[uint32][]byte), make(map[uint32]bool)
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return
		}
		data, ok := frame.(*http2.DataFrame)
		if !ok || over[data.StreamID] {
			continue
		}
		body := append(bodies[data.StreamID], data.Data()...)
		bodies[data.StreamID] = body
		switch {
		case s.count.Load() < s.times && len(body) >= s.after:
			s.count.Add(1)
			over[data.StreamID] = true
			if s.goAway {
				_ = f.WriteGoAway(data.StreamID-1, http2.ErrCodeNo, nil)
			} else {
				_ = f.WriteRSTStream(data.StreamID, http2.ErrCodeRefusedStream)
			}
		case data.StreamEnded():
			s.body.Store(&body)
			var header bytes.Buffer
			_ = hpack.NewEncoder(&header).WriteField(hpack.HeaderField{Name: ":status", Value: "200"})
			_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: data.StreamID, BlockFragment: header.Bytes(), EndHeaders: true, EndStream: true})
		}
	}
}

// A request that a server has not begun is sent again while its body is known. If that does not help, its client is told,
// and the target is not to blame.
func TestUnbegun(t *testing.T) {
	for _, tt := range []struct {
		name        string
		times       int32
		after, size int
		goAway      bool
		want        int
		outcome     weir.Outcome
	}{
		{"refused once", 1, 100, 100, false, http.StatusOK, weir.OK},
		{"refused some times, with a part of the body", 3, 1, 1000, false, http.StatusOK, weir.OK},
		{"left out by a GOAWAY", 1, 100, 100, true, http.StatusOK, weir.OK},
		{"refused after more than is kept", 1, keptBody + 1, keptBody + 1000, false, http.StatusServiceUnavailable, weir.Overload},
		{"always refused", 1000, 100, 100, false, http.StatusServiceUnavailable, weir.Overload},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &refuser{times: tt.times, after: tt.after, goAway: tt.goAway}
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			go func() {
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					go s.serve(c)
				}
			}()
			u := makeUpstream(t, config.Upstream{Targets: []string{"h2c://" + l.Addr().String()}}, io.Discard, nil)
			defer u.ReplacedBy(nil)
			body := strings.Repeat("0123456789", tt.size/10+1)
			gate, w := newSampled(), httptest.NewRecorder()
			r := httptest.NewRequest(http.MethodPost, "/", iotest.OneByteReader(strings.NewReader(body)))
			weirhttp.NewGuard().Serve(w, r, gate, weir.Work{}, func(w http.ResponseWriter, r *http.Request, q *weirhttp.Request) {
				u.Serve(w, r, &Call{Request: q})
			})
			if w.Code != tt.want || gate.outcome != tt.outcome {
				t.Errorf("%d %s, %v; want %d, %v", w.Code, w.Body, gate.outcome, tt.want, tt.outcome)
			}
			if got := s.body.Load(); tt.want == http.StatusOK && (got == nil || string(*got) != body) {
				t.Error("the body that was served is another one")
			}
			for kind, n := range u.Stats()[0].Failures {
				if n != 0 {
					t.Errorf("%d failures of %s", n, kind)
				}
			}
			if n, most := s.count.Load(), int32(1+mostRepeats); n > most {
				t.Errorf("it was sent %d times, at most %d are right", n, most)
			}
		})
	}
}

// Another failure is no refusal: the server may have begun.
func TestBegun(t *testing.T) {
	for _, text := range []string{
		"stream error: stream ID 1; INTERNAL_ERROR; received from peer",
		"http2: Transport: cannot retry err [stream error: stream ID 1; PROTOCOL_ERROR; received from peer] after Request.Body was written; define Request.GetBody to avoid this error",
		"http2: server sent GOAWAY and closed the connection; LastStreamID=1, ErrCode=NO_ERROR, debug=\"\"",
		"EOF",
	} {
		if unbegun(errors.New(text)) {
			t.Error(text)
		}
	}
}
