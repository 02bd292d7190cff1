package server

import (
	"bufio"
	"io"
	"net/http"
	"testing"

	"github.com/weir-go/weir"
)

// The head of an answer is what counts: also of one that becomes a stream. An
// upgrade says nothing.
func TestOutcomesOfStreams(t *testing.T) {
	const long = 3 << 20
	up := upstreamOf(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/download":
			_, _ = w.Write(make([]byte, long)) // a client that leaves is no matter
		case "/events":
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: 1\n\n")
		case "/upgrade":
			w.Header().Set("Connection", "Upgrade")
			w.Header().Set("Upgrade", "echo")
			w.WriteHeader(http.StatusSwitchingProtocols)
		}
	})
	g := start(t, baseConfig(t, up.URL), Options{})
	f := func(path string, want weir.Outcome, fetch func()) {
		t.Helper()
		before, moved := g.gate().Outcomes, g.streams.Snapshot().Moved
		fetch()
		g.idle()
		if g.streams.Snapshot().Moved != moved+1 {
			t.Errorf("%s has not become a stream", path)
		}
		after := g.gate().Outcomes
		for _, o := range weir.Outcomes() {
			n := after[o] - before[o]
			if o == want && n != 1 || o != want && n != 0 {
				t.Errorf("%s: %d more of %v, want 1 %v alone", path, n, o, want)
			}
		}
	}
	f("/download", weir.OK, func() {
		if _, body := get(t, g.url+"/download"); len(body) != long {
			t.Errorf("%d bytes, want %d", len(body), long)
		}
	})
	f("/events", weir.OK, func() { get(t, g.url+"/events") })
	f("/upgrade", weir.NoSample, func() {
		c := dial(t, g.Addr(), "GET /upgrade HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil || res.StatusCode != http.StatusSwitchingProtocols {
			t.Errorf("%v, %v", res, err)
		}
		_ = c.Close() // it is read to the end
	})
}
