//go:build integration

package integration

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/await"
	"github.com/weir-go/weir/internal/testbed/freeport"
	testbed "github.com/weir-go/weir/internal/testbed/process"
)

// binary is the gateway under test, built once.
var binary string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "weir-integration-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "weir")
	if err := build(binary); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// build builds the gateway as it is published, for this machine unless env says otherwise.
func build(file string, env ...string) error {
	cmd := exec.Command("../../scripts/build", file, "-ldflags", "-s -w -buildid=")
	cmd.Env = append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("scripts/build: %w\n%s", err, out)
	}
	return nil
}

// What is published stays below 30 MB, and the test leaves some of that for the next dependency.
// Far above it, something calls methods by name and the linker keeps them all, which costs 13 MB;
// scripts/build says how to find it.
func TestBinaryIsSmall(t *testing.T) {
	t.Parallel()
	file := binary
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		file = filepath.Join(t.TempDir(), "weir")
		if err := build(file, "GOOS=linux", "GOARCH=amd64"); err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	const most = 28_000_000
	t.Logf("linux/amd64: %d bytes, at most %d", info.Size(), most)
	if info.Size() > most {
		t.Errorf("linux/amd64: %d bytes, above %d", info.Size(), most)
	}
}

// gateway is a running weir.
type gateway struct {
	*process
	addr   string
	url    string
	admin  string
	config string // its file, if it has one
}

// startGateway runs weir on a configuration file. conf is the part after the
// listeners and the admin address; see [gatewayConfig].
func startGateway(t *testing.T, conf string) *gateway {
	t.Helper()
	return startListening(t, "http", "h2c: true", conf)
}

// startListening is startGateway with settings for its listener, as YAML.
func startListening(t *testing.T, scheme, listener, conf string) *gateway {
	t.Helper()
	addr, admin := freeAddr(t), freeAddr(t)
	g := &gateway{addr: addr, url: scheme + "://" + addr, admin: "http://" + admin, config: filepath.Join(t.TempDir(), "weir.yaml")}
	writeFile(t, g.config, fmt.Appendf(nil, "listeners:\n  - address: %s\n    %s\nadmin: {address: %s}\n%s", addr, listener, admin, conf))
	g.process = start(t, addr, t.TempDir(), binary, "run", "--config", g.config)
	g.accepts(t, admin)
	return g
}

// startDefault runs weir without a file.
func startDefault(t *testing.T, upstream string, args ...string) *gateway {
	t.Helper()
	addr, admin := freeAddr(t), freeAddr(t)
	g := &gateway{addr: addr, url: "http://" + addr, admin: "http://" + admin}
	args = append([]string{"run", "--upstream", "http://" + upstream, "--listen", addr, "--admin", admin}, args...)
	g.process = start(t, addr, t.TempDir(), binary, args...)
	g.accepts(t, admin)
	return g
}

// rewrite replaces the end of the configuration file at once, the way editors
// and mounted volumes do.
func (g *gateway) rewrite(t *testing.T, change func(old string) string) {
	t.Helper()
	old, err := os.ReadFile(g.config)
	if err != nil {
		t.Fatal(err)
	}
	next := g.config + ".next"
	writeFile(t, next, []byte(change(string(old))))
	if err := os.Rename(next, g.config); err != nil {
		t.Fatal(err)
	}
}

// gate returns the snapshot of a gate, by name.
func (g *gateway) gate(t *testing.T, name string) weir.Snapshot {
	t.Helper()
	for _, s := range g.gates(t) {
		if s.Name == name {
			return s
		}
	}
	t.Fatalf("/gates has no gate %q", name)
	return weir.Snapshot{}
}

// idle waits until no gate holds anything.
func (g *gateway) idle(t *testing.T) {
	t.Helper()
	eventually(t, "in-flight and waiting are 0 everywhere", func() bool {
		for _, s := range g.gates(t) {
			if s.InFlight != 0 || s.Waiting != 0 {
				return false
			}
		}
		return true
	})
}

func (g *gateway) gates(t *testing.T) []weir.Snapshot {
	t.Helper()
	var body struct{ Gates []snapshot }
	if err := json.Unmarshal(get(t, g.admin+"/gates"), &body); err != nil {
		t.Fatalf("/gates: %v", err)
	}
	if len(body.Gates) == 0 {
		t.Fatal("/gates lists no gate")
	}
	out := make([]weir.Snapshot, len(body.Gates))
	for i, s := range body.Gates {
		out[i] = weir.Snapshot{Name: s.Name, Limit: s.Limit, InFlight: s.InFlight, Waiting: s.Waiting, Admitted: s.Admitted}
	}
	return out
}

// snapshot is the part of a gate's JSON that the tests read.
type snapshot struct {
	Name     string `json:"name"`
	Limit    int64  `json:"limit"`
	InFlight int64  `json:"in_flight"`
	Waiting  int64  `json:"waiting"`
	Admitted uint64 `json:"admitted"`
}

// get returns the body of an answer that has to be a 200.
func get(t *testing.T, url string) []byte {
	t.Helper()
	body, err := fetch(url)
	if err != nil {
		t.Fatal(err)
	}
	return body
}

// fetch is get for goroutines, which cannot end a test.
func fetch(url string) ([]byte, error) {
	client := http.Client{Timeout: await.Patience}
	res, err := client.Get(url)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s\n%s", url, res.Status, body)
	}
	return body, err
}

// gatewayConfig guards one upstream with a fixed limit. Its wait room and its time-outs
// are long: on a slow machine nothing is refused that a fast one would serve.
func gatewayConfig(upstream string, limit int) string {
	return fmt.Sprintf(`
upstreams:
  app:
    targets: ["http://%s"]
gates:
  app:
    limit: {limit: %d, queue: {len: 64, max_wait: 1m}}
routes:
  - match: ["/"]
    gates: [app]
    upstream: app
    timeout: 1m
shutdown: {grace: 1m, lame_duck: 300ms}
`, upstream, limit)
}

// deadline is how long clients wait for an answer in an overload.
const deadline = time.Second

// hurried is a [gatewayConfig] for an overload: waiting is short, and so are time-outs.
func hurried(conf string) string {
	return strings.NewReplacer("max_wait: 1m", "max_wait: 200ms", "timeout: 1m", fmt.Sprint("timeout: ", deadline)).Replace(conf)
}

// process is a server that a test started.
type process struct {
	name string
	cmd  *exec.Cmd
	out  *tail
	done chan struct{} // closed when it has ended
	err  error         // how, once done is closed
}

// start runs a program, bound as by [testbed.Bind], and waits until it accepts
// connections at addr. The end of the test ends its process group.
func start(t *testing.T, addr, dir, program string, args ...string) *process {
	t.Helper()
	return launch(t, addr, dir, exec.Command(program, args...))
}

// launch is start for a command that has more to it.
func launch(t *testing.T, addr, dir string, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{name: filepath.Base(cmd.Path), cmd: cmd, out: &tail{}, done: make(chan struct{})}
	p.cmd.Dir = dir
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.out
	testbed.Bind(p.cmd)
	p.cmd.WaitDelay = time.Second
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("%s: %v", p.name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() { p.stop(t) })
	p.accepts(t, addr)
	return p
}

// accepts waits until the process accepts connections at addr.
func (p *process) accepts(t *testing.T, addr string) {
	t.Helper()
	eventually(t, p.name+" accepts connections at "+addr, func() bool {
		select {
		case <-p.done:
			t.Fatalf("%s ended at once: %v\n%s", p.name, p.err, p.out)
		default:
		}
		c, err := net.Dial("tcp", addr)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
}

func (p *process) signal(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		t.Fatalf("%s: %v: %v", p.name, sig, err)
	}
}

// wait waits until the process has ended and returns how.
func (p *process) wait(t *testing.T) error {
	t.Helper()
	select {
	case <-p.done:
		return p.err
	case <-time.After(await.Patience):
		t.Fatalf("%s still runs after %v\n%s", p.name, await.Patience, p.out)
		return nil
	}
}

// memory reads a size of the process from the kernel, in KiB.
func (p *process) memory(t *testing.T, name string) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			kib, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(rest), " kB"))
			if err != nil {
				t.Fatal(err)
			}
			return kib
		}
	}
	t.Fatalf("the kernel does not say %s", name)
	return 0
}

// descriptors is how many the process has open.
func (p *process) descriptors(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// stop kills the process group. Tests that are about shutdowns end the process themselves; to wait
// for one after each test would take half of the time of all tests.
func (p *process) stop(t *testing.T) {
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) // it may have ended already
	<-p.done
	if t.Failed() {
		t.Logf("%s said:\n%s", p.name, p.out)
	}
}

// eventually polls ok until it returns true.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	await.That(t, what, ok)
}

// ports are those of these tests.
var ports = freeport.Range{First: 25_000, Size: 5_000}

// freeAddr returns a loopback address that nobody listens on.
func freeAddr(t *testing.T) string {
	t.Helper()
	addr, err := ports.Addr()
	if err != nil {
		t.Fatal(err)
	}
	return addr
}

// part returns the path of an installed server or tool.
func part(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("..", "..", ".cache", "bin", name))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%s is missing: run make parts, which installs it (%v)", name, err)
	}
	return path
}

// tail keeps the last of what a process printed.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

func (w *tail) Write(b []byte) (int, error) {
	const most = 8 << 10
	w.mu.Lock()
	defer w.mu.Unlock()
	w.buf = append(w.buf, b...)
	if len(w.buf) > most {
		w.buf = w.buf[len(w.buf)-most:]
	}
	return len(b), nil
}

func (w *tail) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return string(w.buf)
}

// pool is gunicorn with a fixed number of workers, each of which does one
// request at a time: its capacity is workers / mean service time.
type pool struct {
	*process
	addr    string
	workers int
}

func startGunicorn(t *testing.T, workers int) *pool {
	t.Helper()
	addr := freeAddr(t)
	app, err := filepath.Abs("testdata")
	if err != nil {
		t.Fatal(err)
	}
	p := start(t, addr, t.TempDir(), part(t, "gunicorn"),
		"--bind", addr, "--workers", strconv.Itoa(workers), "--worker-class", "sync",
		"--backlog", "2048", "--timeout", "30", "--graceful-timeout", "1",
		"--log-level", "warning", "--chdir", app, "app:application")
	return &pool{process: p, addr: addr, workers: workers}
}

// capacity is the highest rate the pool can serve requests of a mean service
// time at, a second.
func (p *pool) capacity(meanMillis int) int { return p.workers * 1000 / meanMillis }

type nginx struct {
	*process
	addr string
	big  []byte // what /big.bin holds
}

const nginxConf = `
daemon off;
worker_processes 1;
pid nginx.pid;
error_log stderr warn;
%s
events { worker_connections 1024; }
http {
	access_log off;
	client_body_temp_path body;
	proxy_temp_path proxy;
	fastcgi_temp_path fastcgi;
	uwsgi_temp_path uwsgi;
	scgi_temp_path scgi;
	server {
		%s
		location / { root www; }
		location = /hello { return 200 "hello\n"; }
		location = /echo { return 200 "$request_method $http_x_echo $server_protocol\n"; }
		location = /away { return 302 /hello; }
		location = /boom { return 500; }
	}
}
`

// startNginx runs nginx for HTTP/1.1.
func startNginx(t *testing.T) *nginx {
	t.Helper()
	addr := freeAddr(t)
	return startNginxOn(t, addr, "listen "+addr+"; keepalive_requests 1000000;")
}

// startNginxOn runs nginx with settings for its server, which listens at addr.
func startNginxOn(t *testing.T, addr, server string) *nginx {
	t.Helper()
	dir := t.TempDir()
	user := ""
	if os.Getuid() == 0 {
		user = "user root;"
	}
	big := make([]byte, 8<<20)
	for i := range big {
		big[i] = byte(i * i >> 7)
	}
	writeFile(t, filepath.Join(dir, "www", "big.bin"), big)
	writeFile(t, filepath.Join(dir, "nginx.conf"), fmt.Appendf(nil, nginxConf, user, server))
	p := start(t, addr, dir, part(t, "nginx"), "-p", dir, "-e", "stderr", "-c", filepath.Join(dir, "nginx.conf"))
	return &nginx{process: p, addr: addr, big: big}
}

// crowd counts who is inside at a time, and measures the longest stay. Its zero value is
// nobody.
type crowd struct{ inside, most, longest atomic.Int64 }

// enter counts one in; the function it returns counts it out.
func (c *crowd) enter() (leave func()) {
	raise(&c.most, c.inside.Add(1))
	begun := time.Now()
	return func() {
		raise(&c.longest, int64(time.Since(begun)))
		c.inside.Add(-1)
	}
}

// bound returns how many there may be at a time, where a gate of this limit awaits each of them for so
// long: the limit, and more if the machine has drawn a stay out.
func (c *crowd) bound(limit int64, awaited time.Duration) int64 {
	return limit * (1 + c.longest.Load()/int64(awaited))
}

func raise(most *atomic.Int64, n int64) {
	for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
	}
}

func writeFile(t *testing.T, name string, data []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, data, 0o644); err != nil {
		t.Fatal(err)
	}
}
