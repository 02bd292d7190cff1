//go:build integration

package integration

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/weir-go/weir"
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
	if out, err := exec.Command("go", "build", "-o", binary, "../cmd/weir").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "go build: %v\n%s", err, out)
		return 1
	}
	return m.Run()
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
	return g
}

// startDefault runs weir without a file.
func startDefault(t *testing.T, upstream string, args ...string) *gateway {
	t.Helper()
	addr, admin := freeAddr(t), freeAddr(t)
	g := &gateway{addr: addr, url: "http://" + addr, admin: "http://" + admin}
	args = append([]string{"run", "--upstream", "http://" + upstream, "--listen", addr, "--admin", admin}, args...)
	g.process = start(t, addr, t.TempDir(), binary, args...)
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
	eventually(t, 5*time.Second, "in-flight and waiting are 0 everywhere", func() bool {
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
	client := http.Client{Timeout: 5 * time.Second}
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

// gatewayConfig guards one upstream with a fixed limit and a short wait room.
func gatewayConfig(upstream string, limit int) string {
	return fmt.Sprintf(`
upstreams:
  app:
    targets: ["http://%s"]
gates:
  app:
    limit: {limit: %d, queue: {len: 64, max_wait: 200ms}}
routes:
  - match: ["/"]
    gates: [app]
    upstream: app
    timeout: %v
shutdown: {grace: 5s, lame_duck: 300ms}
`, upstream, limit, deadline)
}

// deadline is when a client of the tests gives an answer up for late.
const deadline = time.Second
