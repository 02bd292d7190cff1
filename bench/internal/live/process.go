package live

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/weir-go/weir/bench/internal/rig"
	"github.com/weir-go/weir/internal/testbed/cores"
)

// answerWithin bounds the wait for an answer of a child. One that is overloaded
// takes its time.
const answerWithin = 2 * time.Minute

// process is one that we started.
type process struct {
	*rig.Process
	name string
	addr string
	in   io.WriteCloser // of a role
	out  *bufio.Reader
	pipe *os.File // behind out

	limits *limits // of a gateway's gate
	ended  chan struct{}
	beside *process // what belongs to it, on the same core
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
	p := &process{name: r.Kind + " " + r.Guard.Name + " " + r.Law.Name}
	cmd := exec.Command(self, "-role", string(spec))
	if p.in, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = bufio.NewReader(out)
	p.pipe, _ = out.(*os.File)
	err = cores.Pinned(core, func() (err error) {
		p.Process, err = rig.Start(cmd)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.name, err)
	}
	line, err := p.line()
	if err != nil {
		p.stop()
		return nil, err
	}
	p.addr = strings.TrimSpace(line)
	return p, nil
}

// ask sends the child a command and returns its state.
func (p *process) ask(c command) (stats, error) {
	var s stats
	spec, err := json.Marshal(c)
	if err != nil {
		return s, err
	}
	if _, err := p.in.Write(append(spec, '\n')); err != nil {
		return s, fmt.Errorf("%s: %w%s", p.name, err, p.Said())
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
		return "", fmt.Errorf("%s gave no answer: %w%s", p.name, err, p.Said())
	}
	return line, nil
}

// usage is what the process has used so far, with what is beside it.
func (p *process) usage() rig.Usage {
	u := p.Usage()
	if p.beside != nil {
		b := p.beside.usage()
		u.CPU, u.Peak = u.CPU+b.CPU, u.Peak+b.Peak
	}
	return u
}

// stop ends the process, and what is beside it.
func (p *process) stop() {
	if p.beside != nil {
		defer p.beside.stop()
	}
	if p.ended != nil {
		close(p.ended)
	}
	if p.in != nil {
		_ = p.in.Close() // a role ends with its input
	}
	p.Stop()
}

// startWeir starts the gateway's binary, which is to listen on addr and admin, on core.
func startWeir(ctx context.Context, core int, binary, addr, admin, config string, flags ...string) (*process, error) {
	p := &process{name: "weir", addr: addr}
	err := cores.Pinned(core, func() (err error) {
		p.Process, err = rig.StartWeir(ctx, binary, addr, config, flags...)
		return err
	})
	if err != nil {
		return nil, err
	}
	p.ended = make(chan struct{})
	p.limits = watchLimit(4*readEvery, func() (int64, bool) { return gatewayLimit(admin) }, p.ended)
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

// quiet is a log that nobody reads: a server says a lot about clients that leave.
func quiet() *log.Logger { return log.New(io.Discard, "", 0) }

// freeAddrs returns two loopback addresses that nobody listens on.
func freeAddrs() (one, other string, err error) {
	if one, err = rig.Ports.Addr(); err != nil {
		return "", "", err
	}
	other, err = rig.Ports.Addr()
	return one, other, err
}
