package live

import (
	"bufio"
	"bytes"
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
	"strings"
	"sync"
	"syscall"
	"time"
)

// answerWithin bounds the wait for an answer of a child. One that is overloaded
// takes its time.
const answerWithin = 20 * time.Second

// process is one that we started.
type process struct {
	name string
	addr string
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	pipe *os.File // behind out
	said *tail

	limits *limits // of a gateway's gate
	ended  chan struct{}
}

// startRole starts this program in a role, on core.
func startRole(core int, r role) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	spec, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	p := &process{name: r.Kind + " " + r.Guard.Name + " " + r.Law.Name, cmd: exec.Command(self, "-role", string(spec)), said: new(tail)}
	p.cmd.Stderr = p.said
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = bufio.NewReader(out)
	p.pipe, _ = out.(*os.File)
	if err := pinned(core, p.cmd.Start); err != nil {
		return nil, fmt.Errorf("%s: %w", p.name, err)
	}
	line, err := p.line()
	if err != nil {
		return nil, errors.Join(err, p.stop())
	}
	p.addr = strings.TrimSpace(line)
	return p, nil
}

// ask tells the child what to do and returns its state.
func (p *process) ask(c command) (Stats, error) {
	var s Stats
	spec, err := json.Marshal(c)
	if err != nil {
		return s, err
	}
	if _, err := p.in.Write(append(spec, '\n')); err != nil {
		return s, fmt.Errorf("%s: %w%s", p.name, err, p.said)
	}
	line, err := p.line()
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal([]byte(line), &s); err != nil {
		return s, fmt.Errorf("%s answered %q: %w", p.name, line, err)
	}
	return s, nil
}

func (p *process) line() (string, error) {
	if p.pipe != nil {
		if err := p.pipe.SetReadDeadline(time.Now().Add(answerWithin)); err != nil {
			return "", err
		}
	}
	line, err := p.out.ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("%s gave no answer: %w%s", p.name, err, p.said)
	}
	return line, nil
}

// stop ends the process: by the end of its input if it is ours, by SIGTERM and
// then SIGKILL if not.
func (p *process) stop() error {
	if p.ended != nil {
		close(p.ended)
	}
	patience := 5 * time.Second
	if p.in != nil {
		_ = p.in.Close() // says that it should end
		patience = time.Second
	} else {
		_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended by itself
	}
	kill := time.AfterFunc(patience, func() { _ = p.cmd.Process.Kill() })
	defer kill.Stop()
	_ = p.cmd.Wait() // whatever it says, the measurement is over
	return nil
}

// startGateway starts the gateway's binary before upstream, with no setting but
// addresses and those given, on core.
func startGateway(ctx context.Context, core int, binary, upstream string, settings ...string) (*process, error) {
	addr, admin, err := freeAddrs()
	if err != nil {
		return nil, err
	}
	return startWeir(ctx, core, binary, addr, admin,
		append([]string{"--upstream", upstream, "--listen", addr, "--admin", admin}, settings...)...)
}

// startWeir starts the gateway's binary, which is to listen on addr and admin.
func startWeir(ctx context.Context, core int, binary, addr, admin string, settings ...string) (*process, error) {
	args := append([]string{"run"}, settings...)
	p := &process{name: "weir " + strings.Join(args, " "), addr: addr, cmd: exec.Command(binary, args...), said: new(tail)}
	p.cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
	p.cmd.Stderr, p.cmd.Stdout = p.said, p.said
	if err := pinned(core, p.cmd.Start); err != nil {
		return nil, fmt.Errorf("%s: %w", p.name, err)
	}
	if err := p.listening(ctx); err != nil {
		return nil, errors.Join(err, p.stop())
	}
	p.ended = make(chan struct{})
	p.limits = watchLimit(4*lookEvery, func() (int64, bool) { return gatewayLimit(admin) }, p.ended)
	return p, nil
}

// gatewayLimit asks a gateway for the limit of its only gate.
func gatewayLimit(admin string) (int64, bool) {
	client := http.Client{Timeout: time.Second}
	resp, err := client.Get("http://" + admin + "/gates")
	if err != nil {
		return 0, false
	}
	defer resp.Body.Close()
	var state struct{ Gates []struct{ Limit int64 } }
	if err := json.NewDecoder(resp.Body).Decode(&state); err != nil || len(state.Gates) != 1 {
		return 0, false
	}
	return state.Gates[0].Limit, true
}

// listening returns when the process accepts connections.
func (p *process) listening(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for {
		c, err := net.Dial("tcp", p.addr)
		if err == nil {
			return c.Close()
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return fmt.Errorf("%s does not listen: %w%s", p.name, err, p.said)
		}
	}
}

// freeAddrs returns two loopback addresses that nobody listens on.
func freeAddrs() (one, other string, err error) {
	if one, err = freeAddr(); err != nil {
		return "", "", err
	}
	other, err = freeAddr()
	return one, other, err
}

// freeAddr returns a loopback address that nobody listens on.
func freeAddr() (string, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return ln.Addr().String(), ln.Close()
}

// tail keeps the last few hundred bytes that a process said.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

const tailLen = 2048

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if extra := len(t.buf) - tailLen; extra > 0 {
		t.buf = append(t.buf[:0], t.buf[extra:]...)
	}
	return len(p), nil
}

// String is what was said, ready to be appended to an error.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if said := bytes.TrimSpace(t.buf); len(said) > 0 {
		return "; it said:\n" + string(said)
	}
	return ""
}

// quiet is a log that nobody reads: a server says a lot about clients that leave.
func quiet() *log.Logger { return log.New(io.Discard, "", 0) }
