package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/weir-go/weir/internal/testbed/freeport"
	"github.com/weir-go/weir/internal/testbed/process"
)

// system is what a run sends its load through: Envoy, two pods, and perhaps a gateway that Envoy
// asks. The database is the same for all runs.
type system struct {
	folder    string
	addr      string // Envoy's, for callers
	admin     string // Envoy's
	gateway   string // the gateway's admin address, empty without one
	admins    []string
	processes []*process.Process // in the order in which they were started
}

//go:embed envoy.yaml
var envoyConfig string

//go:embed ext_proc.yaml
var extProcFilter string

// What a gateway does.
var (
	//go:embed weir.yaml
	oneGate string
	//go:embed weir-plain.yaml
	plainGate string
	//go:embed weir-two.yaml
	twoGates string
)

// startSystem starts what a run needs. Whoever stops it gets nothing left behind.
func startSystem(ctx context.Context, o *options, s setup, db *database) (_ *system, err error) {
	sys := &system{} // not the result: a return with an error sets that to nil, and it is still to be stopped
	defer func() {
		if err != nil {
			sys.stop()
		}
	}()
	if sys.folder, err = os.MkdirTemp("", "weir-analytics-"); err != nil {
		return nil, err
	}
	change := []string{"{{balance}}", s.balance, "{{host_attempts}}", strconv.Itoa(o.hostAttempts)}
	for i := range 2 {
		addr, err := sys.startPod(ctx, i, s.podGate, db.URL)
		if err != nil {
			return nil, err
		}
		change = append(change, fmt.Sprintf("{{pod%d}}", i), portOf(addr))
	}
	if s.gateway != "" {
		addr, err := sys.startGateway(ctx, o.weir, s.gateway)
		if err != nil {
			return nil, err
		}
		change = append(change, "{{weir}}", portOf(addr))
	} else {
		change = append(change, "{{weir}}", "1") // nobody asks
	}
	return sys, sys.startEnvoy(ctx, o.envoy, s.gateway != "", change)
}

func (s *system) startPod(ctx context.Context, number int, gate, url string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	set := podSettings{Database: url, Gate: gate}
	if set.Addr, err = ports.Addr(); err != nil {
		return "", err
	}
	if set.Admin, err = ports.Addr(); err != nil {
		return "", err
	}
	spec, err := json.Marshal(set)
	if err != nil {
		return "", err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), podVariable+"="+string(spec))
	if _, err := cmd.StdinPipe(); err != nil { // it ends when this does
		return "", err
	}
	s.admins = append(s.admins, set.Admin)
	return set.Addr, s.start(ctx, fmt.Sprintf("pod %d", number+1), set.Addr, cmd)
}

func (s *system) startGateway(ctx context.Context, program, config string) (addr string, err error) {
	if addr, err = ports.Addr(); err != nil {
		return "", err
	}
	if s.gateway, err = ports.Addr(); err != nil {
		return "", err
	}
	file := filepath.Join(s.folder, "weir.yaml")
	text := strings.NewReplacer("127.0.0.1:8091", addr, "127.0.0.1:8090", s.gateway).Replace(config)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return "", err
	}
	return addr, s.start(ctx, "weir", addr, exec.Command(program, "run", file))
}

// envoyFile is the configuration of Envoy, with or without a gateway that it asks. change has words in double braces, and
// what is put in their places.
func envoyFile(asks bool, change ...string) string {
	filter := ""
	if asks {
		filter = extProcFilter
	}
	return strings.NewReplacer(change...).Replace(strings.Replace(envoyConfig, "                  # {{ext_proc}}\n", filter, 1))
}

func (s *system) startEnvoy(ctx context.Context, program string, asks bool, change []string) (err error) {
	if s.addr, err = ports.Addr(); err != nil {
		return err
	}
	if s.admin, err = ports.Addr(); err != nil {
		return err
	}
	change = append(change, "{{callers}}", portOf(s.addr), "{{admin}}", portOf(s.admin))
	file := filepath.Join(s.folder, "envoy.yaml")
	if err := os.WriteFile(file, []byte(envoyFile(asks, change...)), 0o600); err != nil {
		return err
	}
	return s.start(ctx, "Envoy", s.addr, exec.Command(program, "-c", file, "--concurrency", "1", "--use-dynamic-base-id", "--log-level", "error"))
}

// start starts a process of the system, and returns when it accepts connections at addr.
func (s *system) start(ctx context.Context, name, addr string, cmd *exec.Cmd) error {
	p, err := process.Start(name, cmd)
	if err != nil {
		return err
	}
	started(p.Pid())
	s.processes = append(s.processes, p)
	return p.Listening(ctx, addr)
}

// started is told the process identifier of each server; a test looks whether any is left.
var started = func(pid int) {}

// ports are those of the servers that the command starts.
var ports = freeport.Range{First: 19_000, Size: 3_000}

// stop ends all processes, the last to start first.
func (s *system) stop() {
	for i := len(s.processes) - 1; i >= 0; i-- {
		s.processes[i].Stop()
	}
	_ = os.RemoveAll(s.folder) // of files that were read long ago
}

// alive is an error if a process has ended by itself.
func (s *system) alive() error {
	var errs []error
	for _, p := range s.processes {
		errs = append(errs, p.Alive())
	}
	return errors.Join(errs...)
}

// counts are what the servers counted over a run.
type counts struct {
	pods  []podCounts
	envoy map[string]int64 // by the name of the statistic
	weir  []gateCounts     // of the gateway's gates
}

// gateCounts are a gate's, as the gateway's admin listener tells them.
type gateCounts struct {
	Name     string           `json:"name"`
	Limit    int64            `json:"limit"`
	Admitted int64            `json:"admitted"`
	Rejected map[string]int64 `json:"rejected"`
}

// count asks everybody what they counted.
func (s *system) count(ctx context.Context, r *result) (err error) {
	if r.counts.pods, err = s.podCounts(ctx); err != nil {
		return err
	}
	stats, err := get(ctx, "http://"+s.admin+"/stats?filter="+`^(http\.callers\.downstream_rq_total|cluster\.pods\.upstream_rq_.*)$`)
	if err != nil {
		return err
	}
	r.counts.envoy = map[string]int64{}
	for line := range strings.Lines(string(stats)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if n, err := strconv.ParseInt(value, 10, 64); err == nil { // histograms are no numbers
			r.counts.envoy[name] = n
		}
	}
	if s.gateway == "" {
		return nil
	}
	state, err := get(ctx, "http://"+s.gateway+"/gates")
	if err != nil {
		return err
	}
	var gates struct{ Gates []gateCounts }
	if err := json.Unmarshal(state, &gates); err != nil {
		return fmt.Errorf("the gateway says of its gates: %w\n%s", err, state)
	}
	r.counts.weir = gates.Gates
	return nil
}

func (s *system) podCounts(ctx context.Context) (all []podCounts, err error) {
	for _, admin := range s.admins {
		text, err := get(ctx, "http://"+admin+"/counts")
		if err != nil {
			return nil, err
		}
		var c podCounts
		if err := json.Unmarshal(text, &c); err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, nil
}

func get(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s", url, resp.Status)
	}
	return body, err
}

func portOf(addr string) string { return addr[strings.LastIndexByte(addr, ':')+1:] }
