package weirhttp

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/limit"
)

// nullWriter costs nothing, so that only the middleware is measured.
type nullWriter struct{ h http.Header }

func (w *nullWriter) Header() http.Header         { return w.h }
func (w *nullWriter) Write(p []byte) (int, error) { return len(p), nil }
func (w *nullWriter) WriteHeader(int)             {}
func (w *nullWriter) Flush()                      {}

// BenchmarkMiddleware measures what the middleware adds to a handler that
// writes a short answer, without and with the options that cost extra.
func BenchmarkMiddleware(b *testing.B) {
	answer := []byte("hello")
	write := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write(answer) })
	derive := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, cancel := context.WithCancel(r.Context())
		cancel()
		w.Write(answer)
	})
	long := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write(make([]byte, 16<<10)) })
	gate := weir.Must(limit.New(limit.Config{Name: "bench", Limit: 1 << 20}))
	b.Cleanup(gate.Close)
	for _, bm := range []struct {
		name string
		h    http.Handler
	}{
		{"bare", write},
		{"guarded", Middleware(gate, WithYield(false))(write)},
		{"guarded/yield", Middleware(gate)(write)},
		{"derive/bare", derive},
		{"derive/guarded", Middleware(gate, WithYield(false))(derive)},
		{"16KiB/bare", long},
		{"16KiB/guarded", Middleware(gate, WithYield(false))(long)},
	} {
		b.Run(bm.name, func(b *testing.B) {
			w := &nullWriter{http.Header{}}
			r := httptest.NewRequest("GET", "/", nil)
			b.ReportAllocs()
			for b.Loop() {
				bm.h.ServeHTTP(w, r)
			}
		})
	}
}

// BenchmarkRefusal measures a refused request, answer included.
func BenchmarkRefusal(b *testing.B) {
	gate := weir.Must(limit.New(limit.Config{Name: "bench", Limit: 1, Queue: limit.Queue{Len: -1}}))
	b.Cleanup(gate.Close)
	p, err := gate.TryAdmit(weir.Work{})
	if err != nil {
		b.Fatal(err)
	}
	defer p.Done(weir.NoSample)
	h := Middleware(gate)(http.NotFoundHandler())
	w := &nullWriter{http.Header{}}
	r := httptest.NewRequest("GET", "/", nil)
	b.ReportAllocs()
	for b.Loop() {
		h.ServeHTTP(w, r)
	}
}

// BenchmarkServer measures whole requests over the loopback interface.
func BenchmarkServer(b *testing.B) {
	answer := []byte("hello")
	write := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write(answer) })
	gate := weir.Must(limit.New(limit.Config{Name: "bench", Limit: 1 << 20}))
	b.Cleanup(gate.Close)
	for _, bm := range []struct {
		name string
		h    http.Handler
	}{
		{"bare", write},
		{"guarded", Middleware(gate)(write)},
	} {
		b.Run(bm.name, func(b *testing.B) {
			srv := serve(b, "HTTP/1.1", bm.h)
			for b.Loop() {
				if err := plainGet(nil, srv.Client(), srv.URL); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
