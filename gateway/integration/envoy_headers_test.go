//go:build integration

package integration

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/weir-go/weir/gateway/internal/await"
)

const headerGates = `
identity: {user: header:X-User, tenant: "header:X-Envoy-Tenant", priority: header:X-Priority, trusted_proxies: [10.0.0.0/8]}
gates:
  api: {limit: {limit: 8, queue: {len: -1}}}
  rate: {quota: {rate: 1000/s, burst: 1000}}
routes:
  - {match: [/], gates: [api], timeout: 1h}
  - {match: [/answer], gates: [rate]}
shutdown: {grace: 1m, lame_duck: 0s}
`

// Envoy checks the number and the size of headers again after a change, and fails a request beyond its bounds. weir refuses such a
// request before, so none of them holds a slot. What weir adds to an answer does it no harm.
func TestEnvoyManyHeaders(t *testing.T) {
	t.Parallel()
	b := &behindEnvoy{}
	b.stand(t, headerGates, func(w http.ResponseWriter, r *http.Request) {
		n, _ := strconv.Atoi(r.URL.Query().Get("headers"))
		for i := range n {
			w.Header().Set(fmt.Sprint("H", i), "1")
		}
	})
	count := map[int]int{}
	for n := 80; n <= 97; n++ {
		header := http.Header{}
		for i := range n {
			header.Set(fmt.Sprint("H", i), "1")
		}
		code := b.status(t, "/", header)
		if count[code]++; code != http.StatusOK && code != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("with %d headers: %d", n, code)
		}
	}
	for size := 60_800; size <= 61_220; size += 20 {
		code := b.status(t, "/", http.Header{"H": {strings.Repeat("x", size)}})
		if count[code]++; code != http.StatusOK && code != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("with a header of %d bytes: %d", size, code)
		}
	}
	if count[http.StatusOK] < 10 || count[http.StatusRequestHeaderFieldsTooLarge] < 10 {
		t.Errorf("statuses %v", count)
	}
	for n := 80; n <= 98; n++ { // one more is too many for Envoy itself
		if code := b.status(t, fmt.Sprint("/answer?headers=", n), nil); code != http.StatusOK {
			t.Errorf("with an answer of %d headers: %d", n, code)
		}
	}
	b.idle(t)
	if metrics := string(get(t, b.admin+"/metrics")); !strings.Contains(metrics, `weir_ext_proc_streams_total{end="early"} 0`) {
		t.Errorf("streams ended before their answer:\n%s", metrics)
	}
}

// A stranger's identity does not reach the service, whatever its name. By default Envoy lets a processor change no x-envoy-*.
func TestEnvoyIdentityOfStrangers(t *testing.T) {
	t.Parallel()
	b := &behindEnvoy{}
	got := make(chan http.Header, 1)
	b.stand(t, headerGates, func(_ http.ResponseWriter, r *http.Request) { got <- r.Header })
	if code := b.status(t, "/", http.Header{"X-User": {"eve"}, "X-Envoy-Tenant": {"gold"}}); code != http.StatusOK {
		t.Fatal(code)
	}
	if h := <-got; h.Get("X-User") != "" || h.Get("X-Envoy-Tenant") != "" || h.Get("X-Priority") != "normal" {
		t.Errorf("a stranger is %q of %q to the service, with the priority %q", h.Get("X-User"), h.Get("X-Envoy-Tenant"), h.Get("X-Priority"))
	}
}

// status sends a request with these headers, and returns the status of its answer.
func (b *behindEnvoy) status(t *testing.T, path string, header http.Header) int {
	t.Helper()
	r, err := http.NewRequest("GET", b.url+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header = header
	client := http.Client{Timeout: await.Patience}
	res, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, res.Body)
	return res.StatusCode
}
