//go:build integration

package integration

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// Whom an upstream has charged far too much by mistake is let in again by a reset, at
// every gateway that shares the store, also where refusals are remembered; nobody else gets
// anything by it, and the log says what happened.
func TestQuotasReset(t *testing.T) {
	for kind, settings := range map[string]string{"plain": "", "leased": ", lease: {tokens: 10, for: 100ms}"} {
		t.Run(kind, func(t *testing.T) { resetShared(t, settings) })
	}
}

func resetShared(t *testing.T, settings string) {
	var mistaken atomic.Bool
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if mistaken.CompareAndSwap(true, false) {
			w.Header().Set("X-Actual", "900000000000")
		}
	}))
	defer up.Close()
	addr := freeAddr(t)
	startRedis(t, addr)
	secret := filepath.Join(t.TempDir(), "redis.password")
	writeFile(t, secret, []byte("hunter2\n"))
	conf := fmt.Sprintf(`upstreams: {app: {targets: [%s]}}
identity: {user: header:X-User, trusted: [127.0.0.0/8]}
stores:
  shared: {redis: "redis://%s", password_file: %s, timeout: 2s%s}
gates: {api: {quota: {rate: 3/h, by: [user], store: shared, on_store_error: closed}}}
routes: [{match: [/], gates: [api], upstream: app, settle: header:X-Actual}]
`, up.URL, addr, secret, settings)
	a, at := startChangeable(t, "", conf)
	b, _ := startChangeable(t, "", conf)
	if in := b.let(t, "bob", 4); in != 3 {
		t.Errorf("%d of bob let in, want 3", in)
	}
	mistaken.Store(true)
	if in := a.let(t, "alice", 1); in != 1 {
		t.Fatal("alice is not let in")
	}
	for _, g := range []*gateway{a, b} {
		eventually(t, 10*time.Second, "alice is refused", func() bool { return g.let(t, "alice", 1) == 0 })
	}
	if out, ok := weirCommand(t, "quota", "reset", "--user", "alice", "--admin", strings.TrimPrefix(a.admin, "http://")); ok || !strings.Contains(out, "over the socket only") {
		t.Errorf("without the right to: %v %s", ok, out)
	}
	out, ok := weirCommand(t, "quota", "reset", "--user", "alice", "--admin", at)
	if want := "gate api, user=alice: bucket api/user=alice of rule user=* is full again (3/h, burst 3); it held -8999999999"; !ok || !strings.Contains(out, want) {
		t.Errorf("%v %s, want %s", ok, out, want)
	}
	for _, g := range []*gateway{a, b} {
		eventually(t, 10*time.Second, "alice is let in again", func() bool { return g.let(t, "alice", 1) == 1 })
	}
	if in := b.let(t, "bob", 1); in != 0 {
		t.Error("bob is let in too")
	}
	if log := a.out.String(); !strings.Contains(log, "quota bucket reset") || !strings.Contains(log, "uid ") {
		t.Errorf("no line in the log:\n%s", log)
	}
}
