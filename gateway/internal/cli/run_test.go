package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir/gateway/internal/await"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/gateway/internal/server"
	"github.com/weir-go/weir/internal/testbed/freeport"
	"github.com/weir-go/weir/policy"
)

// logFile is where a gateway under test logs.
func logFile(t *testing.T) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func logged(t *testing.T, f *os.File) string {
	t.Helper()
	data, err := os.ReadFile(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// ports are those of this package's tests.
var ports = freeport.Range{First: 30_000, Size: 1_000}

// freeAddr returns an address that nobody listens on.
func freeAddr(t *testing.T) string {
	t.Helper()
	addr, err := ports.Addr()
	if err != nil {
		t.Fatal(err)
	}
	return addr
}

func TestRunMistakes(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	bad := write(t, "bad.yaml", "upstreams: 5\n")
	f := func(code int, want string, args ...string) {
		t.Helper()
		_, _, err := run(NewRootCommand("test"), "", append([]string{"run"}, args...)...)
		got := 1
		var exit *ExitError
		if errors.As(err, &exit) {
			got = exit.Code
		}
		if err == nil || got != code || !strings.Contains(err.Error(), want) {
			t.Errorf("run %v: code %d, %v; want code %d and %q", args, got, err, code, want)
		}
	}
	const up = "--upstream=http://127.0.0.1:1"
	f(2, "what should be guarded?")
	f(2, "--limit 0 admits nothing", up, "--limit=0")
	f(2, "--limit -5 admits nothing", up, "--limit=-5")
	f(2, "--limit", up, "--limit=many")
	f(2, "--timeout -1s is in the past", up, "--timeout=-1s")
	f(2, "set them in", "a.yaml", "--timeout=1s")
	f(2, "set them under identity in a.yaml", "a.yaml", "--tenant=header:X-Tenant")
	f(2, `--tenant: "X-Tenant" is not a source; did you mean header:X-Tenant?`, up, "--tenant=X-Tenant")
	f(2, `--tenant: "headr:X" is not a source; did you mean header:?`, up, "--tenant=headr:X")
	f(2, "--tenant: no route has the wildcard {db}", up, "--tenant=path:db")
	f(2, "--priority: an address is not a priority", up, "--priority=peer")
	f(2, `--trusted-proxies: "10.0.0.1" is not a network in CIDR notation; write 10.0.0.1/32`, up, "--trusted=10.0.0.1")
	f(2, "--limit 0 admits nothing; it is how many requests may be in progress at a time, at least 1. Leave it out to let the gateway find it\n"+
		"--timeout -1s is in the past; it is how long clients wait for an answer, for instance 1s; leave it out if nobody knows\n"+
		"listen address \"x\" has no port; write host:port, for instance 127.0.0.1:8080\n"+
		`--tenant: "X-T" is not a source; did you mean header:X-T? write header:NAME, path:NAME, address, cert:NAME or const:VALUE`+"\n"+
		`--user: "" is not a header name; write letters, digits and dashes, such as header:X-Tenant`,
		up, "--limit=0", "--timeout=-1s", "--listen=x", "--tenant=X-T", "--user=header:")
	f(2, "is not an http, https, h2c or unix URL", "--upstream=127.0.0.1:3000")
	f(2, "has no port", up, "--listen=localhost")
	f(2, `log level "loud" is unknown; write debug, info, warn or error`, up, "--log-level=loud", "--listen=127.0.0.1:0", "--admin=off")
	f(2, "given twice", "a.yaml", "--config=b.yaml")
	for _, flag := range []string{"--by", "--tenant", "--user", "--priority", "--trusted-proxies", "--kafka", "--listen", "--admin"} {
		f(2, flag+" is empty; write a value, or leave the flag out", up, "--rate=10/s", flag, "")
	}
	f(2, "set them in", "a.yaml", "--limit=3")
	f(2, "set them in", "a.yaml", "--timeout=0")
	f(2, "write access_log: {to: stdout} in a.yaml", "a.yaml", "--access-log=stdout")
	f(2, "there is no flag --upstraem; did you mean --upstream? See weir run --help", "--upstraem=x")
	f(2, "there is no flag --limitt; did you mean --limit?", up, "--limitt=5")
	f(2, "there is no flag --frobnicate; see weir run --help", up, "--frobnicate")
	f(2, "there is no flag -x; see", up, "-x")
	f(2, "--limit needs a value: requests in progress at a time", up, "--limit")
	f(2, `--timeout "5": 5 has no unit; write 5ms, 5s or 5m; see weir run --help`, up, "--timeout", "5")
	f(2, `--timeout "1 s": "1 s" has a space; write 1s`, up, "--timeout=1 s")
	f(2, `--timeout "soon": "soon" is not a duration`, up, "--timeout=soon")
	f(2, "--timeout 0s says that nobody waits", up, "--timeout=0s")
	f(2, "both connect to 127.0.0.1:8090; choose another port", up, "--listen=127.0.0.1:8090")
	f(2, "both connect to 127.0.0.1:9; choose another port", up, "--listen=127.0.0.1:9", "--admin=127.0.0.1:9")
	f(2, `--upstream "http://127.0.0.1:2": it is http://127.0.0.1:1 already; more than one needs a file`, "--upstream=http://127.0.0.1:1", "--upstream=http://127.0.0.1:2")
	f(2, "it is not a whole number; see weir run --help", up, "--limit=many")
	f(2, "write weir run --upstream http://127.0.0.1:1", "http://127.0.0.1:1")
	f(2, `--kafka: broker "localhost" has no port; write localhost:9092`, "--kafka=localhost")
	f(2, "there is no flag --bootstrap-server; did you mean --kafka? See weir run --help", "--bootstrap-server=127.0.0.1:9092")
	f(1, "is a directory; name a file in it", t.TempDir())
	f(2, "--kafka is empty; write a value, or leave the flag out", "--kafka=")
	f(2, "--kafka: broker 127.0.0.1:19092 is this gateway itself", "--kafka=127.0.0.1:19092")
	f(2, "--kafka goes with --admin and --log-level alone", "--kafka=127.0.0.1:9092", up)
	f(2, "--kafka goes with --admin and --log-level alone", "--kafka=127.0.0.1:9092", "--listen=:9092")
	f(2, "--kafka is for running without a file", "a.yaml", "--kafka=127.0.0.1:9092")
	f(2, "too many arguments", "a.yaml", "b.yaml")
	f(1, "choose another with --listen", up, "--admin=off", "--listen="+taken.Addr().String())
	f(1, "choose another with --admin", up, "--listen=127.0.0.1:0", "--admin="+taken.Addr().String())
	f(1, "weir init", filepath.Join(t.TempDir(), "none.yaml"))
	f(1, "bad.yaml:1", bad)
	f(2, "only weir check reads the standard input (-)", "-")
}

// --limit auto is the default, written out, and --limit takes numbers.
func TestRunLimit(t *testing.T) {
	for text, want := range map[string]int64{"auto": 0, "20": 20} {
		o := runOptions{Upstream: "http://127.0.0.1:1", LimitSet: true}
		if err := (limitFlag{&o.Limit, &o.LimitAuto}).Set(text); err != nil {
			t.Fatal(err)
		}
		if cfg, err := o.load(); err != nil || cfg.Gates["upstream"].Limit.Limit != want {
			t.Errorf("%s: %+v, %v", text, cfg, err)
		}
	}
}

// Commands and flags of other products are told ours.
func TestForeignCommands(t *testing.T) {
	for args, want := range map[string]string{"-t": "write weir check FILE", "test": "did you mean check?", "run --backend=x": "did you mean --upstream?"} {
		if _, _, err := run(NewRootCommand("test"), "", strings.Fields(args)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}

// What clients wait is told to the gates as the deadline of each request.
func TestRunTimeout(t *testing.T) {
	o := runOptions{Upstream: "http://127.0.0.1:1", Timeout: time.Second}
	cfg, err := o.load()
	if err != nil || len(cfg.Routes) != 1 || cfg.Routes[0].Timeout != policy.Duration(time.Second) {
		t.Errorf("%+v: %v", cfg, err)
	}
}

// Without a file clients of Kafka bootstrap at 19092, and the node N is at 19100+N.
func TestRunKafka(t *testing.T) {
	o := runOptions{Kafka: []string{"10.0.0.1:9092", "10.0.0.2:9092"}, Admin: "off"}
	cfg, err := o.load()
	if err != nil {
		t.Fatal(err)
	}
	k := cfg.Kafka["kafka"]
	first, last := k.Nodes.Range()
	if k.Listen.Address != "127.0.0.1:19092" || first != 19100 || last != 19199 || len(k.Bootstrap) != 2 || cfg.Admin.Enabled() || cfg.ServesHTTP() {
		t.Errorf("%+v", cfg)
	}
	if q := k.Quotas; !cfg.Quotas.InMemory || len(cfg.Gates) != 4 || cfg.Gates[q.Mutations].Quota == nil || !cfg.Gates[q.Mutations].Quota.Debt || cfg.Gates[q.Connections].Quota.Queue.Len == 0 {
		t.Errorf("quotas that clients set: %+v, gates %+v", q, cfg.Gates)
	}
	p, err := policy.Compile(cfg.Policy(), policy.Options{})
	if err != nil {
		t.Fatal(err)
	}
	p.Close()
}

// Who is asking is the same with flags as with a file.
func TestRunIdentity(t *testing.T) {
	o := runOptions{Upstream: "http://127.0.0.1:1", Identity: policy.IdentitySpec{
		Tenant: "header:X-Tenant", User: "header:X-User", Priority: "header:X-Priority", Trusted: []string{"10.0.0.0/8"},
	}}
	cfg, err := o.load()
	if err != nil || !reflect.DeepEqual(cfg.Identity, o.Identity) {
		t.Errorf("%+v: %v", cfg, err)
	}
}

// The life of a gateway: start, serve, reload by signal, stop by signal.
func TestRunGateway(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }))
	defer up.Close()
	addr, admin := freeAddr(t), freeAddr(t)
	text := "upstreams: {app: {targets: [\"" + up.URL + "\"]}}\n" +
		"listeners: [{address: \"" + addr + "\"}]\nadmin: {address: \"" + admin + "\"}\n" +
		"gates: {api: {limit: {limit: 3}}}\nroutes: [{match: [/], gates: [api], upstream: app}]\n" +
		"shutdown: {lame_duck: 0s}\n"
	file := write(t, "weir.yaml", text)
	signals, log := make(chan os.Signal), logFile(t)
	ended := make(chan error, 1)
	go func() {
		ended <- runGateway(context.Background(), runOptions{File: file, LogTo: log, Signals: signals, Version: "test"})
	}()
	ask := func(url, want string) bool {
		res, err := http.Get(url)
		if err != nil {
			return false
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		return err == nil && res.StatusCode == http.StatusOK && strings.Contains(string(body), want)
	}
	eventually := func(what string, ok func() bool) {
		t.Helper()
		if !await.Holds(await.Patience, ok) {
			t.Fatalf("not within %v: %s\n%s", await.Patience, what, logged(t, log))
		}
	}
	eventually("it serves", func() bool { return ask("http://"+addr, "hello") })
	if !ask("http://"+admin+"/metrics", `weir_gate_limit{gate="api"} 3`) {
		t.Error("the metrics do not show the limit")
	}
	if out, _, err := run(NewRootCommand("test"), "", "status", "--admin", admin); err != nil || !strings.Contains(out, "api ") || !strings.Contains(out, "fixed") {
		t.Errorf("weir status: %v\n%s", err, out)
	}
	if err := os.WriteFile(file, []byte(strings.Replace(text, "limit: 3", "limit: 7", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	signals <- syscall.SIGHUP
	eventually("the new limit holds", func() bool { return ask("http://"+admin+"/metrics", `weir_gate_limit{gate="api"} 7`) })
	signals <- syscall.SIGTERM
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("ended with %v", err)
		}
	case <-time.After(await.Patience):
		t.Fatal("does not end")
	}
	start := `"msg":"weir starts","version":"test","config":"` + file + `","upstreams":"app ` + up.URL + `","gates":"api enforce limit 3"`
	if text := logged(t, log); !strings.Contains(text, start) {
		t.Errorf("the log does not say what has started (%s):\n%s", start, text)
	}
	if text := logged(t, log); !strings.Contains(text, `"msg":"stopped"`) {
		t.Errorf("the log, no terminal, is not JSON with the end in it:\n%s", text)
	}
}

// A signal to stop is heard while a reload takes its time. Signals to reload meanwhile make one more reload.
func TestSignalsDuringReload(t *testing.T) {
	cfg, err := config.ForUpstream("http://127.0.0.1:1", "127.0.0.1:0", 1)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Admin.Address, cfg.Shutdown.LameDuck = "off", 0
	var load func() (*config.Config, error)
	opts := server.Options{Logger: slog.New(slog.DiscardHandler), Load: func() (*config.Config, error) { return load() }}
	srv, err := server.New(cfg, opts)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		var loads, stops atomic.Int32
		signals, ended, slow := make(chan os.Signal, 4), make(chan struct{}), make(chan struct{})
		load = func() (*config.Config, error) {
			loads.Add(1)
			<-slow
			return nil, errors.New("too late")
		}
		go (&runOptions{Signals: signals}).handleSignals(ended, srv, func() { stops.Add(1) })
		for range 3 {
			signals <- syscall.SIGHUP
			synctest.Wait()
		}
		signals <- syscall.SIGTERM
		synctest.Wait()
		if loads.Load() != 1 || stops.Load() != 1 {
			t.Errorf("during the reload: %d reloads and %d stops, want one of each", loads.Load(), stops.Load())
		}
		close(slow)
		synctest.Wait()
		if n := loads.Load(); n != 2 {
			t.Errorf("%d reloads, want one more for the signals during the first", n)
		}
		close(ended)
	})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := srv.Run(ctx); err != nil { // closes the listener
		t.Error(err)
	}
}

// A signal after the end of a run does not end the process, which has its exit code already. Without a handler it
// would end this one. Windows has no such signals.
func TestSignalAfterTheEnd(t *testing.T) {
	if _, _, err := run(NewRootCommand("test"), "", "run", write(t, "bad.yaml", "upstreams: 5\n")); err == nil {
		t.Fatal("a bad file runs")
	}
	self, err := os.FindProcess(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	_ = self.Signal(syscall.SIGTERM)
}

func TestCommandLineMistakes(t *testing.T) {
	f := func(want string, args ...string) {
		t.Helper()
		_, _, err := run(NewRootCommand("test"), "", args...)
		var exit *ExitError
		if !errors.As(err, &exit) || exit.Code != exitUsage || !strings.Contains(err.Error(), want) {
			t.Errorf("weir %v: %v, want exit code 2 and %q", args, err, want)
		}
	}
	f("did you mean check?", "chek", "weir.yaml")
	f("see weir --help", "frobnicate")
	f(`there is no command "st"; did you mean set or list?`, "quota", "st")
	f("did you mean import?", "kafka", "imprt")
	f("see weir quota --help", "quota", "frobnicate")
	f(`there is no command "get"; did you mean set?`, "quota", "get", "--user", "alice")
	f("did you mean check?", "chek", "--json", "weir.yaml")
	f("there is no flag --user; see weir quota --help", "quota", "--user", "alice")
	f("see weir --help", "help", "frobnicate")
	f("did you mean check?", "help", "chek")
	if out, _, err := run(NewRootCommand("test"), "", "help", "completion", "bash"); err != nil || !strings.Contains(out, "prints a script") {
		t.Errorf("weir help completion bash: %v\n%s", err, out)
	}
	f("--json and --watch do not go together; leave one out", "status", "--watch", "--json")
	f("--json and --top do not go together", "status", "--top=3", "--json")
	f("--json and --plot do not go together", "sim", "S1", "--plot", "--json")
	f("capacity -5: must be from 40", "demo", "--capacity=-5")
	f("weir check needs a file; write weir check FILE...", "check")
	f("weir sim needs a file", "sim")
	f("too many arguments; write weir init [FILE]", "init", "a", "b")
	f("too many arguments", "schema", "a")
	f("cannot be 0", "demo", "--capacity=0")
	f("it is not a number", "demo", "--capacity=x")
	f("it is not a whole number", "sim", "S1", "--seed=x")
	f("--seed 7 is given twice; the same seed gives the same run", "sim", "S1", "--seed=7,8", "--seed=7")
	f("--limit 20 is given twice; the same limit gives the same row", "sim", "S1", "--limit=auto,20,20")
}

// Each line of an error says who speaks.
func TestComplaints(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "one": "weir: one\n", "one\ntwo\n": "weir: one\nweir: two\n", "\x1b[31mred\u009b\r\tgrün\n": "weir: \\x1b[31mred\\u009b\\r\tgrün\n",
	} {
		var out strings.Builder
		if complain(&out, errors.New(text)); out.String() != want {
			t.Errorf("%q: %q, want %q", text, out.String(), want)
		}
	}
}

// Help that nobody gets to read is an error, as any other output is.
func TestHelpThatIsNotWritten(t *testing.T) {
	reader, out := io.Pipe()
	_ = reader.Close()
	for _, args := range []string{"--help", "", "help run", "quota", "sim --help"} {
		root := NewRootCommand("test")
		root.SetArgs(strings.Fields(args))
		root.SetOut(out)
		if err := execute(root); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("weir %s: %v, want the error of writing", args, err)
		}
	}
}

func TestVersion(t *testing.T) {
	if out, _, err := run(NewRootCommand("v1.2.3"), "", "--version"); err != nil || !strings.HasPrefix(out, "weir v1.2.3 go") {
		t.Errorf("--version: %q, %v", out, err)
	}
	if out, _, err := run(NewRootCommand("v1.2.3"), "", "version"); err != nil || !strings.HasPrefix(out, "weir v1.2.3 go") {
		t.Errorf("%q, %v", out, err)
	}
	if versionOf("") == "" {
		t.Error("a build without a version has none at all")
	}
}

func TestLogFormat(t *testing.T) {
	f := func(format, want string) {
		t.Helper()
		file := logFile(t)
		cfg, err := config.ForUpstream("http://127.0.0.1:1", "", 1)
		if err != nil {
			t.Fatal(err)
		}
		cfg.Log.Format = format
		text := new(atomic.Bool)
		text.Store(isText(file, cfg.Log.Format))
		newLogger(file, text, nil).With("y", 1).WithGroup("z").Warn("x", "y", 2)
		if text := logged(t, file); !strings.HasPrefix(text, want) {
			t.Errorf("%s: %q, want %q…", format, text, want)
		}
	}
	f("auto", "{")
	f("json", "{")
	f("text", "time=")
}

// A warning about what was typed names the flags, and no place in a file.
func TestWarningsAboutFlags(t *testing.T) {
	o := runOptions{Upstream: "http://127.0.0.1:1", Listen: "127.0.0.1:1", Timeout: 1, TimeoutSet: true, Identity: policy.IdentitySpec{Trusted: []string{"0.0.0.0/0"}}}
	said := func(admin string) string {
		o.Admin = admin
		cfg, err := o.load()
		if err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		warn(slog.New(slog.NewTextHandler(&log, nil)), cfg)
		return log.String()
	}
	for _, want := range []string{
		`mistake" setting=--upstream warning="--upstream is this gateway itself, by --listen; write`,
		`mistake" setting=--timeout warning="--timeout is 1ns: hardly any`,
		`mistake" setting=--trusted-proxies warning="--trusted-proxies has 0.0.0.0/0, so`,
		`mistake" setting=--admin warning="--admin 0.0.0.0:2 can be`,
	} {
		if got := said("0.0.0.0:2"); !strings.Contains(got, want) {
			t.Errorf("the log says\n%s\nwant %s", got, want)
		}
	}
	o.Listen = "127.0.0.1:2"
	if got, want := said("127.0.0.1:1"), `"--upstream is this gateway itself, by --admin; write`; !strings.Contains(got, want) {
		t.Errorf("the log says\n%s\nwant %s", got, want)
	}
}

// TestWarningsInTheLog: what check warns of is logged when it comes into force, the first of many.
func TestWarningsInTheLog(t *testing.T) {
	var text strings.Builder
	text.WriteString(config.Minimum + "  gates:\n")
	for i := range 50 {
		fmt.Fprintf(&text, "    g%d: {limit: 1}\n", i)
	}
	cfg, err := config.Parse("weir.yaml", []byte(text.String()))
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	warn(slog.New(slog.NewTextHandler(&log, nil)), cfg)
	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	if want := `level=WARN msg="the configuration has what is probably a mistake" at=weir.yaml:5:7 setting=routes[0] warning="routes[0] (/) passes no gate: nothing is limited there"`; len(lines) != mostAnnounced+1 || !strings.HasSuffix(lines[0], want) || !strings.Contains(lines[mostAnnounced], "weir check lists all of it") {
		t.Errorf("%d lines, %s; want %d, %s", len(lines), lines[0], mostAnnounced+1, want)
	}
}
