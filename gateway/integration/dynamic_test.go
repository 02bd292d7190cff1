//go:build integration

package integration

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// startChangeable runs weir with a socket at which quotas can be set, and returns it
// and the socket. Given a name it starts on the file of before.
func startChangeable(t *testing.T, file, conf string) (*gateway, string) {
	t.Helper()
	if file == "" {
		file = filepath.Join(t.TempDir(), "weir.yaml")
	}
	g := &gateway{addr: freeAddr(t), config: file}
	admin := freeAddr(t)
	g.url, g.admin = "http://"+g.addr, "http://"+admin
	socket := filepath.Join(filepath.Dir(file), "s")
	writeFile(t, file, fmt.Appendf(nil, "listeners: [{address: %s}]\nadmin: {address: %s, socket: s}\n%s", g.addr, admin, conf))
	g.process = start(t, g.addr, t.TempDir(), binary, "run", file)
	return g, "unix:" + socket
}

// let counts how many of n requests of a user a gateway lets through.
func (g *gateway) let(t *testing.T, user string, n int) (in int) {
	t.Helper()
	for range n {
		if g.ask(t, user).status == http.StatusOK {
			in++
		}
	}
	return in
}

// What is set on the command line is in force when the command returns, and outlives
// the gateway, even if that is killed.
func TestQuotaSetOutlivesTheGateway(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer up.Close()
	conf := fmt.Sprintf(`upstreams: {app: {targets: [%s]}}
identity: {user: header:X-User, trusted: [127.0.0.0/8]}
quotas: {file: q.json}
gates:
  api:
    quota:
      rate: 10/h
      by: [user]
routes: [{match: [/], gates: [api], upstream: app}]
`, up.URL)
	g, socket := startChangeable(t, "", conf)
	quota := func(want string, ok bool, args ...string) {
		t.Helper()
		out, done := weirCommand(t, append([]string{"quota"}, args...)...)
		if done != ok || !strings.Contains(out, want) {
			t.Errorf("weir quota %v: %v %s, want %q", args, done, out, want)
		}
	}
	if in := g.let(t, "alice", 12); in != 10 {
		t.Errorf("by the file: %d, want 10", in)
	}
	quota("now 3/h", true, "set", "--user", "bob", "--rate", "3/h", "--admin", socket)
	quota("now blocked", true, "set", "--user", "eve", "--blocked", "--admin", socket)
	quota("over the socket only", false, "set", "--user", "bob", "--exempt", "--admin", strings.TrimPrefix(g.admin, "http://"))
	if bob, eve := g.let(t, "bob", 6), g.let(t, "eve", 2); bob != 3 || eve != 0 {
		t.Errorf("bob %d, eve %d, want 3 and 0", bob, eve)
	}
	if log := g.out.String(); !strings.Contains(log, "quota changed") || !strings.Contains(log, "uid ") {
		t.Errorf("no audit line:\n%s", log)
	}
	g.signal(t, syscall.SIGKILL)
	<-g.done
	g, socket = startChangeable(t, g.config, conf)
	if bob, eve := g.let(t, "bob", 6), g.let(t, "eve", 2); bob != 3 || eve != 0 {
		t.Errorf("after a crash: bob %d, eve %d, want 3 and 0", bob, eve)
	}
	quota("weir.yaml:9", true, "describe", "--admin", socket)
	quota("now as the file says", true, "delete", "--user", "eve", "--admin", socket)
	if eve := g.let(t, "eve", 2); eve != 2 {
		t.Errorf("eve: %d", eve)
	}
}

// setAtOnce blocks a0 to a5 at one gateway and b0 to b5 at another, by commands that run
// at the same time.
func setAtOnce(t *testing.T, atA, atB string) {
	t.Helper()
	var all sync.WaitGroup
	for name, at := range map[string]string{"a": atA, "b": atB} {
		all.Go(func() {
			for i := range 6 {
				cmd := exec.CommandContext(t.Context(), binary, "quota", "set", "--user", fmt.Sprint(name, i), "--blocked", "--admin", at)
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Errorf("%s%d: %v %s", name, i, err, out)
				}
			}
		})
	}
	all.Wait()
}

// What is set at one gateway is in force at the other within two seconds; without the
// server both keep what they know, and a server that has forgotten is told again.
func TestQuotasSetForTwoGateways(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer up.Close()
	addr := freeAddr(t)
	redis := startRedis(t, addr)
	secret := filepath.Join(t.TempDir(), "redis.password")
	writeFile(t, secret, []byte("hunter2\n"))
	conf := fmt.Sprintf(`upstreams: {app: {targets: [%s]}}
identity: {user: header:X-User, trusted: [127.0.0.0/8]}
stores:
  shared: {redis: "redis://%s", password_file: %s}
quotas: {store: shared}
gates: {api: {quota: {rate: 10000/h, by: [user]}}}
routes: [{match: [/], gates: [api], upstream: app}]
`, up.URL, addr, secret)
	a, atA := startChangeable(t, "", conf)
	b, atB := startChangeable(t, "", conf)
	set := func(at, user string) {
		t.Helper()
		if out, ok := weirCommand(t, "quota", "set", "--user", user, "--blocked", "--admin", at); !ok {
			t.Fatalf("%s", out)
		}
	}
	set(atA, "eve")
	since := time.Now()
	eventually(t, 10*time.Second, "eve is blocked at the other", func() bool { return b.let(t, "eve", 1) == 0 })
	t.Logf("in force at the other gateway after %v", time.Since(since))
	set(atB, "mallory")
	eventually(t, 10*time.Second, "mallory is blocked at the first", func() bool { return a.let(t, "mallory", 1) == 0 })

	setAtOnce(t, atA, atB)
	for _, g := range []*gateway{a, b} {
		eventually(t, 10*time.Second, "what was set at both at once is in force at each", func() bool { return g.let(t, "a5", 1)+g.let(t, "b5", 1) == 0 })
	}
	if out, ok := weirCommand(t, "explain", "--user", "a0", "--admin", atB); ok || !strings.Contains(out, "Refused by api: 403") || !strings.Contains(out, "set 20") {
		t.Errorf("explain at the other gateway, over its socket: %s", out)
	}

	redis.signal(t, syscall.SIGKILL)
	<-redis.done
	if out, ok := weirCommand(t, "quota", "set", "--user", "x", "--blocked", "--admin", atA); ok {
		t.Errorf("set without the server: %s", out)
	}
	eventually(t, 10*time.Second, "the outage is told", func() bool { return strings.Contains(a.out.String(), "cannot be read") })
	if out, ok := weirCommand(t, "quota", "describe", "--admin", atA); !ok || !strings.Contains(out, "they cannot be read now") || !strings.Contains(out, "user=eve") {
		t.Errorf("describe without the server: %s", out)
	}
	if metrics := string(get(t, a.admin+"/metrics")); !strings.Contains(metrics, `weir_quota_dynamic_rules{gate="api",in_force="yes"} 14`) || strings.Contains(metrics, `weir_quota_dynamic_failures_total{kind="read"} 0`) {
		t.Errorf("the metrics do not show it")
	}
	for _, g := range []*gateway{a, b} {
		if eve, alice := g.let(t, "eve", 1), g.let(t, "alice", 1); eve != 0 || alice != 1 {
			t.Errorf("without the server: eve %d, alice %d, want 0 and 1", eve, alice)
		}
	}
	startRedis(t, addr) // which has kept nothing
	eventually(t, 20*time.Second, "the rules are written again", func() bool {
		return strings.Contains(a.out.String()+b.out.String(), "written again")
	})
	eventually(t, 20*time.Second, "quotas can be set again", func() bool {
		_, ok := weirCommand(t, "quota", "set", "--user", "zoe", "--blocked", "--admin", atB)
		return ok
	})
	eventually(t, 10*time.Second, "zoe is blocked at the first", func() bool { return a.let(t, "zoe", 1) == 0 })
	if eve := a.let(t, "eve", 1); eve != 0 {
		t.Error("eve gets in after all")
	}
}
