package callers

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/bench/internal/rig"
	"github.com/weir-go/weir/internal/loadgen"
	"github.com/weir-go/weir/internal/testbed/cores"
	"github.com/weir-go/weir/weirhttp"
)

// role is what a process started by this one is: a backend, or the clients of one process.
type role struct {
	// Slots and Service are of a backend: how many requests it works on at a time, and how long
	// each takes. Others queue. It notices nobody who leaves.
	Slots   int           `json:",omitempty"`
	Service time.Duration `json:",omitempty"`

	// URL and what follows are of clients. Kind is ours or naive.
	URL, User, Kind string
	Rate            float64 // calls, or tasks, a second
	For             time.Duration
	Calls           int           // of a task, one after the other
	Timeout         time.Duration // of a call; of each of its attempts, for naive clients
	Seed            uint64
}

// The kinds of clients.
const (
	ours  = "ours"
	naive = "naive"
)

// naiveRetries is how often a naive client tries again, at once.
const naiveRetries = 4

// second is the account of the calls, or tasks, that were due in one second.
type second struct {
	Due, OK, Refused, GaveUp int64
	Attempts                 int64 // that were sent in it
	Behind                   bool  // the generator was late
}

// playRole plays a role until its input ends.
func playRole(spec string, in io.Reader, out io.Writer) error {
	var r role
	if err := json.Unmarshal([]byte(spec), &r); err != nil {
		return fmt.Errorf("role: %w", err)
	}
	lines := bufio.NewScanner(in)
	if r.Slots > 0 {
		return r.serveBackend(lines, out)
	}
	lines.Scan() // the word to begin
	if err := r.call(out); err != nil {
		return err
	}
	for lines.Scan() { // what is printed can be read as long as the process lives
	}
	return lines.Err()
}

// serveBackend prints its address, and reads what is left of its capacity, a line each time.
func (r *role) serveBackend(lines *bufio.Scanner, out io.Writer) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	var slowness atomic.Int64 // of each request, in hundredths
	slowness.Store(100)
	slots := make(chan struct{}, r.Slots)
	server := &http.Server{ErrorLog: log.New(io.Discard, "", 0), ReadHeaderTimeout: 10 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			slots <- struct{}{}
			<-time.After(r.Service * time.Duration(slowness.Load()) / 100)
			<-slots
			_, _ = io.WriteString(w, "ok\n") // a client that left does not read it
		})}
	go func() { _ = server.Serve(l) }() // ends with Close
	defer server.Close()
	if _, err := fmt.Fprintln(out, l.Addr()); err != nil {
		return err
	}
	for lines.Scan() {
		left, err := strconv.ParseFloat(lines.Text(), 64)
		if err != nil || left <= 0 {
			return fmt.Errorf("capacity %q: must be a number above 0", lines.Text())
		}
		slowness.Store(int64(100 / left))
	}
	return lines.Err()
}

// call makes the calls and prints their account.
func (r *role) call(out io.Writer) error {
	attempts := make([]atomic.Int64, int(r.For/time.Second)+2)
	epoch := time.Now()
	wire := &http.Transport{MaxIdleConnsPerHost: 1024}
	defer wire.CloseIdleConnections()
	counted := roundTripper(func(req *http.Request) (*http.Response, error) {
		attempts[min(int(time.Since(epoch)/time.Second), len(attempts)-1)].Add(1)
		return wire.RoundTrip(req)
	})
	client, patience := &http.Client{Transport: &weirhttp.Transport{Base: counted}, Timeout: r.Timeout}, r.Timeout
	if r.Kind == naive {
		client.Transport = counted
		patience *= 1 + naiveRetries
	}
	tasks := max(1, r.Calls)
	load := loadgen.Load{
		Phases: []loadgen.Phase{{Rate: r.Rate, For: r.For}}, Seed: r.Seed, Patience: patience * time.Duration(tasks),
		Send: func(ctx context.Context) loadgen.Answer {
			for i := range tasks {
				if i > 0 {
					ctx = weir.WithPriority(ctx, weir.High) // what has been begun is finished
				}
				if a := r.one(ctx, client); a != loadgen.OK {
					return a
				}
			}
			return loadgen.OK
		},
	}
	meter, err := load.Start(context.Background())
	if err != nil {
		return err
	}
	<-meter.Done()
	account := make([]second, meter.Seconds())
	for i := range account {
		t := meter.Second(i)
		account[i] = second{Due: t.Offered, OK: t.OK, Refused: t.Refused, GaveUp: t.GaveUp + t.Failed + t.Unsent, Attempts: attempts[i].Load(), Behind: t.Void()}
	}
	return json.NewEncoder(out).Encode(account)
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// one makes one call. A naive client tries again at once, whatever came.
func (r *role) one(ctx context.Context, client *http.Client) loadgen.Answer {
	a := r.attempt(ctx, client)
	for range naiveRetries {
		if r.Kind != naive || a == loadgen.OK {
			break
		}
		a = r.attempt(ctx, client)
	}
	return a
}

func (r *role) attempt(ctx context.Context, client *http.Client) loadgen.Answer {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.URL, nil)
	if err != nil {
		return loadgen.Failed
	}
	req.Header.Set("X-User", r.User)
	if w := (weir.Work{}); r.Kind == naive {
		if w.Inherit(ctx); w.Priority != weir.Normal {
			req.Header.Set(weirhttp.PriorityHeader, w.Priority.String())
		}
	}
	resp, err := client.Do(req)
	switch {
	case weir.AsRejection(err) != nil:
		return loadgen.Refused
	case err != nil:
		return loadgen.GaveUp
	}
	_, err = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusServiceUnavailable:
		return loadgen.Refused
	case err != nil || resp.StatusCode != http.StatusOK:
		return loadgen.Failed
	}
	return loadgen.OK
}

// process is one that plays a role.
type process struct {
	*rig.Process
	in  io.WriteCloser
	out *bufio.Reader
}

func (r *role) start(core int) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	spec, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, "-role", string(spec))
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p := &process{in: in, out: bufio.NewReader(out)}
	return p, cores.Pinned(core, func() (err error) {
		p.Process, err = rig.Start(cmd)
		return err
	})
}

func (p *process) tell(text string) error {
	_, err := io.WriteString(p.in, text+"\n")
	return err
}

func (p *process) line() (string, error) {
	line, err := p.out.ReadString('\n')
	if err != nil {
		return "", errors.Join(err, errors.New("a process gave no answer"+p.Said()))
	}
	return strings.TrimSpace(line), nil
}

func (p *process) end() {
	_ = p.in.Close()
	p.Stop()
}
