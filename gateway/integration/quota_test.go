//go:build integration

package integration

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/weir-go/weir/gateway/internal/await"
)

// answer is what a client learns from one request, and when.
type answer struct {
	status       int
	after        string        // Retry-After
	exact        time.Duration // the document's time
	limit        string        // RateLimit
	rule         string
	asked, heard time.Time // the gateway decided in between
}

// ask sends a request as a user, on a connection that is open already.
func (g *gateway) ask(t *testing.T, user string) answer {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, g.url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-User", user)
	a := answer{asked: time.Now()}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	a.heard, a.status, a.after, a.limit = time.Now(), res.StatusCode, res.Header.Get("Retry-After"), res.Header.Get("RateLimit")
	if a.status == http.StatusTooManyRequests {
		var doc struct {
			After int64 `json:"retry_after_ms"`
			Rule  string
		}
		if err := json.Unmarshal(body, &doc); err != nil {
			t.Fatalf("%v: %s", err, body)
		}
		a.exact, a.rule = time.Duration(doc.After)*time.Millisecond, doc.Rule
	}
	return a
}

// used asks until the quota is used up, and returns the refusal.
func (g *gateway) used(t *testing.T, user string, most int) answer {
	t.Helper()
	for range most + 1 {
		if a := g.ask(t, user); a.status != http.StatusOK {
			return a
		}
	}
	t.Fatalf("more than %d requests get through", most)
	return answer{}
}

// A client that comes back after the time that it was told is served; one that comes
// 20 ms sooner is not. When the gateway decided is known to lie between request and
// answer only, so a round that the machine has drawn out proves nothing and is
// repeated.
func TestRetryAfterIsTrue(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer up.Close()
	const early = 20 * time.Millisecond
	g := startDefault(t, strings.TrimPrefix(up.URL, "http://"), "--rate", "2/s", "--burst", "3", "--by", "header:X-User")

	const rounds = 20
	proved := 0
	for i := 0; i < rounds && proved < 3; i++ {
		user := "user" + strconv.Itoa(i)
		no := g.used(t, user, 20)
		if no.status != http.StatusTooManyRequests || no.exact <= 0 || no.exact > 500*time.Millisecond || no.after != "1" || no.rule != "user=*" {
			t.Fatalf("refused with %+v, want 429 and at most 500 ms", no)
		}
		if !strings.HasSuffix(no.limit, ";r=0;t=1") {
			t.Errorf("RateLimit %s, want none for 1 s", no.limit)
		}
		// At asked+exact at the latest the token may not be there yet, at
		// heard+exact it is. The answer is in whole milliseconds, rounded up.
		await.Moment(no.asked.Add(no.exact - early))
		soon := g.ask(t, user)
		if soon.heard.Before(no.asked.Add(no.exact - time.Millisecond)) {
			if soon.status != http.StatusTooManyRequests {
				t.Errorf("%v before the time, status %d", no.asked.Add(no.exact).Sub(soon.heard), soon.status)
			}
			proved++
		} else if soon.status == http.StatusOK {
			continue // it has come at about the time itself
		}
		await.Moment(no.heard.Add(no.exact))
		if then := g.ask(t, user); then.status != http.StatusOK {
			t.Errorf("told to come back in %v, refused %v later, for %v", no.exact, then.asked.Sub(no.heard), then.exact)
		}
	}
	if proved == 0 {
		t.Skipf("in none of %d rounds did request and answer lie within %v: the machine is too busy to tell", rounds, early)
	}
}

// Whole seconds are enough for a client that knows nothing but Retry-After, and what
// one user takes is nobody else's.
func TestRetryAfterInSeconds(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer up.Close()
	g := startDefault(t, strings.TrimPrefix(up.URL, "http://"), "--rate", "40/min", "--burst", "2", "--by", "header:X-User")
	no := g.used(t, "alice", 20)
	seconds, err := strconv.Atoi(no.after)
	if wait := time.Duration(seconds) * time.Second; err != nil || no.exact <= 0 || no.exact > 1500*time.Millisecond || wait < no.exact || wait-no.exact >= time.Second {
		t.Fatalf("refused with %+v, want at most 1.5 s, rounded up", no)
	}
	if bob := g.ask(t, "bob"); bob.status != http.StatusOK || strings.Contains(bob.limit, ";r=0") {
		t.Errorf("bob: %+v", bob)
	}
	await.Moment(no.heard.Add(time.Duration(seconds) * time.Second))
	if then := g.ask(t, "alice"); then.status != http.StatusOK {
		t.Errorf("refused for %v more after Retry-After", then.exact)
	}
	if s := g.gate(t, "quota"); s.Admitted < 4 {
		t.Errorf("%d admitted at the gate called quota", s.Admitted)
	}
}

// What weir explain says of a running gateway is what the next request meets, and
// saying it takes nothing.
func TestExplain(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer up.Close()
	g := startDefault(t, strings.TrimPrefix(up.URL, "http://"), "--rate", "1/h", "--burst", "3", "--by", "header:X-User")
	explain := func(user, want string, ok bool) {
		t.Helper()
		out, served := weirCommand(t, "explain", "--admin", g.admin, "--header", "X-User: "+user)
		if served != ok || !strings.Contains(out, want) {
			t.Errorf("%s: exit code 0: %v, want %v and %q:\n%s", user, served, ok, want, out)
		}
	}
	for left := 3; left > 0; left-- {
		explain("alice", strconv.Itoa(left)+" of 3 left", true)
		explain("alice", strconv.Itoa(left)+" of 3 left", true)
		if a := g.ask(t, "alice"); a.status != http.StatusOK {
			t.Fatalf("with %d left: %+v", left, a)
		}
	}
	explain("alice", "Refused by quota: 429, come back in ", false)
	if a := g.ask(t, "alice"); a.status != http.StatusTooManyRequests {
		t.Errorf("with nothing left: %+v", a)
	}
	explain("bob", "quota/user=bob", true)
	if s := g.gate(t, "quota"); s.Admitted != 3 {
		t.Errorf("%d admitted, want the 3 that were sent", s.Admitted)
	}
}

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
	g.accepts(t, admin)
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
identity: {user: header:X-User, trusted_proxies: [127.0.0.0/8]}
runtime_quotas: {file: q.json}
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
	t.Parallel()
	up := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer up.Close()
	addr := freeAddr(t)
	redis := startRedis(t, addr)
	secret := filepath.Join(t.TempDir(), "redis.password")
	writeFile(t, secret, []byte("hunter2\n"))
	conf := fmt.Sprintf(`upstreams: {app: {targets: [%s]}}
identity: {user: header:X-User, trusted_proxies: [127.0.0.0/8]}
stores:
  shared: {redis: "redis://%s", password_file: %s, timeout: 10s}
runtime_quotas: {store: shared}
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
	eventually(t, "eve is blocked at the other", func() bool { return b.let(t, "eve", 1) == 0 })
	t.Logf("in force at the other gateway after %v", time.Since(since))
	set(atB, "mallory")
	eventually(t, "mallory is blocked at the first", func() bool { return a.let(t, "mallory", 1) == 0 })

	setAtOnce(t, atA, atB)
	for _, g := range []*gateway{a, b} {
		eventually(t, "what was set at both at once is in force at each", func() bool { return g.let(t, "a5", 1)+g.let(t, "b5", 1) == 0 })
	}
	if out, ok := weirCommand(t, "explain", "--user", "a0", "--admin", atB); ok || !strings.Contains(out, "Refused by api: 403") || !strings.Contains(out, "set 20") {
		t.Errorf("explain at the other gateway, over its socket: %s", out)
	}

	redis.signal(t, syscall.SIGKILL)
	<-redis.done
	if out, ok := weirCommand(t, "quota", "set", "--user", "x", "--blocked", "--admin", atA); ok {
		t.Errorf("set without the server: %s", out)
	}
	eventually(t, "the outage is told", func() bool { return strings.Contains(a.out.String(), "cannot be read") })
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
	eventually(t, "the rules are written again", func() bool {
		return strings.Contains(a.out.String()+b.out.String(), "wrote the known ones again")
	})
	eventually(t, "quotas can be set again", func() bool {
		_, ok := weirCommand(t, "quota", "set", "--user", "zoe", "--blocked", "--admin", atB)
		return ok
	})
	eventually(t, "zoe is blocked at the first", func() bool { return a.let(t, "zoe", 1) == 0 })
	if eve := a.let(t, "eve", 1); eve != 0 {
		t.Error("eve gets in after all")
	}
}

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
identity: {user: header:X-User, trusted_proxies: [127.0.0.0/8]}
stores:
  shared: {redis: "redis://%s", password_file: %s, timeout: 10s%s}
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
		eventually(t, "alice is refused", func() bool { return g.let(t, "alice", 1) == 0 })
	}
	if out, ok := weirCommand(t, "quota", "reset", "--user", "alice", "--admin", strings.TrimPrefix(a.admin, "http://")); ok || !strings.Contains(out, "over the socket only") {
		t.Errorf("without the right to: %v %s", ok, out)
	}
	out, ok := weirCommand(t, "quota", "reset", "--user", "alice", "--admin", at)
	if want := "gate api, user=alice: bucket api/user=alice of rule user=* is full again (3/h, burst 3); it held -8999999999"; !ok || !strings.Contains(out, want) {
		t.Errorf("%v %s, want %s", ok, out, want)
	}
	for _, g := range []*gateway{a, b} {
		eventually(t, "alice is let in again", func() bool { return g.let(t, "alice", 1) == 1 })
	}
	if in := b.let(t, "bob", 1); in != 0 {
		t.Error("bob is let in too")
	}
	if log := a.out.String(); !strings.Contains(log, "quota bucket reset") || !strings.Contains(log, "uid ") {
		t.Errorf("no line in the log:\n%s", log)
	}

	// A value of somebody else's has to be deleted, and both the log and the reset say which.
	const key = "weir:{=api/user=carol}"
	tellRedis(t, addr, "SET "+key+" x")
	if in := a.let(t, "carol", 1); in != 0 {
		t.Error("carol, whose bucket is none, is let in")
	}
	eventually(t, "the log says what to delete", func() bool {
		return strings.Contains(a.out.String(), "delete it there") && strings.Contains(a.out.String(), `"key":"`+key+`"`)
	})
	if out, ok := weirCommand(t, "quota", "reset", "--user", "carol", "--admin", at); ok || !strings.Contains(out, "delete the key "+key+" there") {
		t.Errorf("%v %s", ok, out)
	}
	tellRedis(t, addr, "DEL "+key)
	if in := a.let(t, "carol", 1); in != 1 {
		t.Error("carol is not let in, and the value is gone")
	}
}

// tellRedis has a server that startRedis started carry out a command.
func tellRedis(t *testing.T, addr, command string) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintf(c, "AUTH hunter2\r\n%s\r\nQUIT\r\n", command)
	if answer, err := io.ReadAll(c); err != nil || strings.Contains(string(answer), "-") {
		t.Fatalf("%s: %q, %v", command, answer, err)
	}
}

// A stream of events costs its user what its last event says, as that of an LLM API does.
func TestStreamedUsage(t *testing.T) {
	t.Parallel()
	pool := startGunicorn(t, 1)
	g := startGateway(t, fmt.Sprintf(`upstreams: {model: {targets: ["http://%s"]}}
identity: {user: header:X-User, trusted_proxies: [127.0.0.0/8]}
gates:
  tokens: {quota: {limits: ["1000 a day"], debt: true, by: [user]}}
  slots: {limit: {count: requests}}
routes: [{match: [/], gates: [tokens, slots], upstream: model, cost: 100, settle_event: usage.total_tokens}]
`, pool.addr))
	for _, tt := range []struct{ tokens, left int }{{30, 900}, {600, 870}, {900, 270}, {1, -630}} { // left is with its estimate
		req, err := http.NewRequest(http.MethodGet, fmt.Sprintf("%s/chat?tokens=%d", g.url, tt.tokens), nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-User", "alice")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		res.Body.Close()
		if tt.left < 0 {
			if res.StatusCode != http.StatusTooManyRequests {
				t.Errorf("%s with a debt, want 429", res.Status)
			}
			break
		}
		if err != nil || strings.Count(string(body), "data: ") != 5 || !strings.HasSuffix(string(body), "data: [DONE]\n\n") {
			t.Errorf("%q, %v", body, err)
		}
		if got, want := res.Header.Get("RateLimit"), fmt.Sprintf(";r=%d;", tt.left); !strings.Contains(got, want) {
			t.Errorf("%d tokens: RateLimit: %s, want %s", tt.tokens, got, want)
		}
	}
}
