//go:build integration

package integration

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weir-go/weir/gateway/internal/await"
	"github.com/weir-go/weir/internal/testbed/freeport"
)

// startRedis starts a server with a password that keeps nothing on disk, at addr.
func startRedis(t *testing.T, addr string) *process {
	t.Helper()
	host, port, _ := net.SplitHostPort(addr)
	return start(t, addr, t.TempDir(), part(t, "redis-server"), "--bind", host, "--port", port, "--requirepass", "hunter2", "--save", "", "--appendonly", "no")
}

// sharing is a gateway with a quota of so many for each user, on that store.
func sharing(t *testing.T, upstream, redis string, burst int) *gateway {
	t.Helper()
	secret := filepath.Join(t.TempDir(), "redis.password")
	writeFile(t, secret, []byte("hunter2\n"))
	return startListening(t, "http", "h2c: true", fmt.Sprintf(`
upstreams: {app: {targets: [%s]}}
identity: {user: header:X-User}
stores:
  shared: {redis: "redis://%s", password_file: %s, timeout: 10s}
gates:
  api: {quota: {rate: 1/h, burst: %d, by: [user], store: shared, on_store_error: closed}}
  slots: {limit: {limit: 50}}
routes: [{match: [/], gates: [api, slots], upstream: app}]
`, upstream, redis, secret, burst))
}

// Two gateways with one store let through what one would, also over a reload; while the
// store is gone they do what on_store_error says, and when it is back they go on.
func TestGatewaysShareAQuota(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer up.Close()
	addr := freeAddr(t)
	redis := startRedis(t, addr)
	a, b := sharing(t, up.URL, addr, 40), sharing(t, up.URL, addr, 40)
	ask := func(user string, n int) (in int) {
		for i := range n {
			g := []*gateway{a, b}[i%2]
			switch status := g.ask(t, user).status; status {
			case http.StatusOK:
				in++
			case http.StatusTooManyRequests:
			default:
				t.Fatalf("answer %d; %s", status, g.out)
			}
		}
		return in
	}
	if in := ask("alice", 100); in != 40 {
		t.Errorf("%d of alice got in by both, want 40", in)
	}
	if in := ask("bob", 30); in != 30 {
		t.Errorf("%d of bob got in, want 30", in)
	}
	for _, g := range []*gateway{a, b} {
		g.rewrite(t, func(old string) string { return strings.Replace(old, "burst: 40", "burst: 20", 1) })
		eventually(t, "the reload", func() bool { return strings.Contains(g.out.String(), "configuration reloaded") })
	}
	if in := ask("bob", 40); in != 10 {
		t.Errorf("%d more of bob got in after the reload, want the 10 that were left", in)
	}

	redis.signal(t, syscall.SIGKILL)
	eventually(t, "refusals for want of the store", func() bool { return a.ask(t, "carol").status == http.StatusServiceUnavailable })
	eventually(t, "the store is down", func() bool {
		a.ask(t, "carol")
		out, ok := weirCommand(t, "status", "--admin", strings.TrimPrefix(a.admin, "http://"))
		return ok && strings.Contains(out, "shared  down")
	})
	if metrics := string(get(t, a.admin+"/metrics")); !strings.Contains(metrics, `weir_store_down{store="shared"} 1`) || strings.Contains(metrics, `weir_quota_store_errors_total{gate="api"} 0`) {
		t.Error("the metrics do not show it")
	}
	if out, ok := weirCommand(t, "check", a.config); !ok {
		t.Errorf("check needs the store: %s", out)
	}

	startRedis(t, addr)
	eventually(t, "decisions again", func() bool { return a.ask(t, "dora").status == http.StatusOK })
	for _, g := range []*gateway{a, b} {
		if strings.Contains(g.out.String(), "hunter2") {
			t.Error("the log has the password")
		}
	}
}

// A store may want TLS, and a certificate of the gateway.
func TestStoreOverTLS(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer up.Close()
	addr := freeAddr(t)
	host, port, _ := net.SplitHostPort(addr)
	theirs, ours := newCertificate(t, t.TempDir(), 1), newCertificate(t, t.TempDir(), 2)
	start(t, addr, t.TempDir(), part(t, "redis-server"), "--bind", host, "--port", "0", "--tls-port", port, "--save", "", "--appendonly", "no",
		"--tls-cert-file", theirs.cert, "--tls-key-file", theirs.key, "--tls-ca-cert-file", ours.cert, "--tls-auth-clients", "yes")
	with := func(tls string) *gateway {
		return startListening(t, "http", "h2c: true", fmt.Sprintf(`
upstreams: {app: {targets: [%s]}}
stores:
  shared: {redis: "rediss://%s", tls: %s, timeout: 10s}
gates:
  api: {quota: {rate: 1/h, burst: 3, store: shared, on_store_error: closed}}
routes: [{match: [/], gates: [api], upstream: app}]
`, up.URL, addr, tls))
	}
	known := with(fmt.Sprintf("{ca: %q, cert: %q, key: %q}", theirs.cert, ours.cert, ours.key))
	for i, want := range []int{200, 200, 200, 429} {
		if got := known.ask(t, "").status; got != want {
			t.Errorf("answer %d is %d, want %d", i+1, got, want)
		}
	}
	if got := with(fmt.Sprintf("{ca: %q}", theirs.cert)).ask(t, "").status; got != http.StatusServiceUnavailable {
		t.Errorf("without a certificate the answer is %d, want 503", got)
	}
}

// A password that is changed at the store and in its file is used without a reload.
func TestStorePasswordChanges(t *testing.T) {
	t.Parallel()
	up := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer up.Close()
	addr := freeAddr(t)
	host, port, _ := net.SplitHostPort(addr)
	redis := func(password string) *process {
		return start(t, addr, t.TempDir(), part(t, "redis-server"), "--bind", host, "--port", port, "--requirepass", password, "--save", "", "--appendonly", "no")
	}
	secret := filepath.Join(t.TempDir(), "redis.password")
	writeFile(t, secret, []byte("hunter2\n"))
	before := redis("hunter2")
	g := startListening(t, "http", "h2c: true", fmt.Sprintf(`
upstreams: {app: {targets: [%s]}}
stores:
  shared: {redis: "redis://%s", password_file: %s, timeout: 10s}
gates:
  api: {quota: {rate: 1/h, burst: 1000, store: shared, on_store_error: closed}}
routes: [{match: [/], gates: [api], upstream: app}]
`, up.URL, addr, secret))
	if got := g.ask(t, "").status; got != http.StatusOK {
		t.Fatalf("answer %d; %s", got, g.out)
	}
	before.stop(t)
	redis("hunter3")
	eventually(t, "refusals for want of the new password", func() bool { return g.ask(t, "").status == http.StatusServiceUnavailable })
	writeFile(t, secret, []byte("hunter3\n"))
	eventually(t, "decisions again", func() bool { return g.ask(t, "").status == http.StatusOK })
}

// Sentinels may want TLS, and a user of their own.
func TestStoreBehindSentinel(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer up.Close()
	master, sentinel := freeAddr(t), freeAddr(t)
	dir, program := t.TempDir(), part(t, "redis-server")
	id := newCertificate(t, dir, 1)
	_, masterPort, _ := net.SplitHostPort(master)
	_, sentinelPort, _ := net.SplitHostPort(sentinel)
	secured := func(port string) string {
		return fmt.Sprintf("bind 127.0.0.1\ndir %s\nport 0\ntls-port %s\ntls-replication yes\ntls-cert-file %s\ntls-key-file %s\ntls-ca-cert-file %s\ntls-auth-clients no\n",
			dir, port, id.cert, id.key, id.cert)
	}
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		writeFile(t, path, []byte(text))
		return path
	}
	start(t, master, dir, program, file("redis.conf", secured(masterPort)+"save \"\"\n"+
		"user weir on >hunter2 ~weir:* resetchannels -@all +eval +evalsha +get +set +pttl +time +info +ping +hello +client|setname +role\n"))
	start(t, sentinel, dir, program, file("sentinel.conf", secured(sentinelPort)+"sentinel monitor main 127.0.0.1 "+masterPort+" 1\n"+
		"user watch on >hunter3 allchannels -@all +sentinel|sentinels +sentinel|get-master-addr-by-name +subscribe +unsubscribe +hello +ping\n"), "--sentinel")
	ours, theirs := file("ours.password", "hunter2\n"), file("theirs.password", "hunter3\n")
	g := startListening(t, "http", "h2c: true", fmt.Sprintf(`
upstreams: {app: {targets: [%s]}}
stores:
  shared: {redis: "rediss://weir@%s", password_file: %s, tls: {ca: %s}, timeout: 10s, sentinel: {master: main, username: watch, password_file: %s}}
gates:
  api: {quota: {rate: 1/h, burst: 3, store: shared, on_store_error: closed}}
routes: [{match: [/], gates: [api], upstream: app}]
`, up.URL, sentinel, ours, id.cert, theirs))
	for i, want := range []int{200, 200, 200, 429} {
		if got := g.ask(t, "").status; got != want {
			t.Errorf("answer %d is %d, want %d", i+1, got, want)
		}
	}
}

// A cluster may want TLS at each of its nodes.
func TestStoreClusterOverTLS(t *testing.T) {
	t.Parallel()
	up := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer up.Close()
	addr := busAddr(t)
	host, port, _ := net.SplitHostPort(addr)
	id := newCertificate(t, t.TempDir(), 1)
	start(t, addr, t.TempDir(), part(t, "redis-server"), "--bind", host, "--port", "0", "--tls-port", port, "--save", "", "--appendonly", "no",
		"--cluster-enabled", "yes", "--tls-cluster", "yes", "--tls-cert-file", id.cert, "--tls-key-file", id.key, "--tls-ca-cert-file", id.cert, "--tls-auth-clients", "no")
	node, err := tls.Dial("tcp", addr, &tls.Config{RootCAs: id.pool})
	if err != nil {
		t.Fatal(err)
	}
	defer node.Close()
	say := func(line string) string {
		_ = node.SetDeadline(time.Now().Add(await.Patience))
		fmt.Fprintf(node, "%s\r\n", line)
		answer := make([]byte, 4096)
		n, err := node.Read(answer)
		if err != nil {
			t.Fatal(err)
		}
		return string(answer[:n])
	}
	for first := 0; first < 16384; first += 4096 { // a line has an end
		var slots strings.Builder
		for slot := first; slot < first+4096; slot++ {
			fmt.Fprintf(&slots, " %d", slot)
		}
		if answer := say("CLUSTER ADDSLOTS" + slots.String()); answer != "+OK\r\n" {
			t.Fatal(answer)
		}
	}
	eventually(t, "the cluster is whole", func() bool { return strings.Contains(say("CLUSTER INFO"), "cluster_state:ok") })
	g := startListening(t, "http", "h2c: true", fmt.Sprintf(`
upstreams: {app: {targets: [%s]}}
stores:
  shared: {redis: "rediss://%s", tls: {ca: %s}, timeout: 10s}
gates:
  api: {quota: {rate: 1/h, burst: 3, store: shared, on_store_error: closed}}
routes: [{match: [/], gates: [api], upstream: app}]
`, up.URL, addr, id.cert))
	for i, want := range []int{200, 200, 200, 429} {
		if got := g.ask(t, "").status; got != want {
			t.Errorf("answer %d is %d, want %d", i+1, got, want)
		}
	}
}

// busPorts are those of nodes of a cluster, which talk to the others 10,000 above.
var busPorts = freeport.Range{First: 14_500, Size: 400, Bus: 10_000}

// busAddr is a free address of a node of a cluster.
func busAddr(t *testing.T) string {
	t.Helper()
	addr, err := busPorts.Addr()
	if err != nil {
		t.Fatal(err)
	}
	return addr
}
