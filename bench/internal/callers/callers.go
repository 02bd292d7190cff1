// Package callers measures what clients that cooperate change, on real processes. They are a gateway
// with a limit, a backend behind it, and two processes with clients. The backend works on for clients
// that have left.
//
// The clients of a process are ours or naive. Ours use weirhttp.Transport, with a time-out for all
// attempts together. Naive ones have a time-out for each attempt, and retry four times at once after a
// time-out and after a refusal. Each scenario runs with both processes of one kind, and with one of each.
//
//   - S5 is a retry storm: at a load of 0.8 the backend loses four-fifths of its capacity for a while.
//   - S15 is tasks of four calls for twice the capacity. Calls after the first have the priority high.
//
// The simulator plays the same (S5b to S5d, S15b to S15d). What it cannot see is what a refusal costs.
package callers

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"time"

	"github.com/weir-go/weir/bench/internal/kit"
	"github.com/weir-go/weir/bench/internal/rig"
	"github.com/weir-go/weir/internal/testbed/cores"
)

// The backend: 400 requests a second.
const (
	slots   = 20
	service = 50 * time.Millisecond
	timeout = time.Second // of clients
)

// plan is what is measured.
type plan struct {
	rounds   int
	calm     time.Duration // before the fault, and the length of S15
	fault    time.Duration
	after    time.Duration
	rows     kit.Names
	capacity float64

	// gateway starts what stands before the backend, and returns its URL and what ends it.
	gateway func(ctx context.Context, backend string) (url string, end func(), err error)
	// Where clients and servers run.
	test, rest int
}

// tail is load of S15 beyond what is judged: others must come while the last tasks are at work.
func (p *plan) tail() time.Duration { return min(p.calm, 4*timeout) }

// Main is the command: it measures what args ask for and prints the report.
func Main(ctx context.Context, args []string, in io.Reader, out, log io.Writer) error {
	flags := flag.NewFlagSet("callers", flag.ContinueOnError)
	flags.SetOutput(log)
	spec := flags.String("role", "", "what this process is (used by the command itself)")
	weir := flags.String("weir", "bin/weir", "the gateway's binary")
	learn := flags.Bool("learn", false, "let the gateway find the limit, instead of the backend's slots")
	quick := flags.Bool("quick", false, "a minute of it, to see that everything works; its figures mean nothing")
	p := plan{calm: 20 * time.Second, fault: 10 * time.Second, after: 30 * time.Second, capacity: slots / service.Seconds()}
	flags.IntVar(&p.rounds, "rounds", 5, "values each figure is made of")
	flags.Var(&p.rows, "rows", "which scenarios, with commas between: S5, S15; empty for both")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *spec != "" {
		return playRole(*spec, in, out)
	}
	if *quick {
		p.rounds, p.calm, p.fault, p.after = 1, 2*time.Second, 2*time.Second, 2*time.Second
	}
	var err error
	if p.test, p.rest, err = cores.Pair(); err != nil {
		return err
	}
	p.gateway = func(ctx context.Context, backend string) (string, func(), error) {
		return p.startWeir(ctx, *weir, backend, *learn)
	}
	results, err := p.measure(ctx, log)
	if len(results) > 0 {
		_, werr := io.WriteString(out, report(results))
		err = errors.Join(err, werr)
	}
	return err
}

// startWeir starts the gateway. It believes the clients about who they are, as it does on loopback.
func (p *plan) startWeir(ctx context.Context, binary, backend string, learn bool) (string, func(), error) {
	addr, err := rig.Ports.Addr()
	if err != nil {
		return "", nil, err
	}
	limit := fmt.Sprintf("{limit: %d}", slots)
	if learn {
		limit = "{}"
	}
	config := fmt.Sprintf(`listeners: [{address: "%s"}]
admin: {address: off}
identity: {user: header:X-User, priority: header:X-Priority}
upstreams: {app: {targets: ["http://%s"]}}
gates: {all: {limit: %s}}
routes: [{match: [/], gates: [all], upstream: app}]
`, addr, backend, limit)
	var gateway *rig.Process
	err = cores.Pinned(p.test, func() (err error) {
		gateway, err = rig.StartWeir(ctx, binary, addr, config)
		return err
	})
	if err != nil {
		return "", nil, err
	}
	return "http://" + addr + "/", gateway.Stop, nil
}

// result is one process in one run.
type result struct {
	row, kinds, kind string
	figures          []figure
}

// figure is a name and a value, which is ratios but for the time to settle.
type figure struct {
	name  string
	value float64
	goal  *kit.Goal
}

// mixes are the kinds of the two processes.
var mixes = []struct {
	name  string
	kinds [2]string
}{{"both ours", [2]string{ours, ours}}, {"both naive", [2]string{naive, naive}}, {"one of each", [2]string{ours, naive}}}

func (p *plan) measure(ctx context.Context, log io.Writer) (results []result, err error) {
	for round := range p.rounds {
		for _, row := range []string{"S5", "S15"} {
			for _, mix := range kit.Turned(mixes, round) {
				if !p.rows.Has(row) {
					continue
				}
				fmt.Fprintf(log, "round %d: %s, %s\n", round+1, row, mix.name)
				accounts, err := p.run(ctx, row, mix.kinds, uint64(round+1))
				if err != nil {
					return results, fmt.Errorf("%s, %s: %w", row, mix.name, err)
				}
				results = append(results, p.figures(row, mix.name, mix.kinds, accounts)...)
			}
		}
	}
	return results, nil
}

// run runs a scenario once, and returns the accounts of both processes.
func (p *plan) run(ctx context.Context, row string, kinds [2]string, seed uint64) (accounts [2][]second, err error) {
	backend, err := (&role{Slots: slots, Service: service}).start(p.rest)
	if err != nil {
		return accounts, err
	}
	defer backend.end()
	address, err := backend.line()
	if err != nil {
		return accounts, err
	}
	url, end, err := p.gateway(ctx, address)
	if err != nil {
		return accounts, err
	}
	defer end()
	var clients [2]*process
	for i, kind := range kinds {
		r := role{URL: url, User: fmt.Sprint("user", i), Kind: kind, Timeout: timeout, Seed: 2*seed + uint64(i),
			Calls: 1, Rate: 0.8 * p.capacity / 2, For: p.calm + p.fault + p.after}
		if row == "S15" {
			r.Calls, r.Rate, r.For = 4, 2*p.capacity/4/2, p.calm+p.tail()
		}
		if clients[i], err = r.start(p.rest); err != nil {
			return accounts, err
		}
		defer clients[i].end()
	}
	for _, c := range clients {
		if err := c.tell("go"); err != nil {
			return accounts, err
		}
	}
	if row == "S5" {
		if err := p.fail(ctx, backend); err != nil {
			return accounts, err
		}
	}
	for i, c := range clients {
		line, err := c.line()
		if err != nil {
			return accounts, err
		}
		if err := json.Unmarshal([]byte(line), &accounts[i]); err != nil {
			return accounts, fmt.Errorf("clients answered %q: %w", line, err)
		}
	}
	return accounts, nil
}

// fail takes four-fifths of the backend's capacity for the time of the fault.
func (p *plan) fail(ctx context.Context, backend *process) error {
	for _, step := range []struct {
		after time.Duration
		left  string
	}{{p.calm, "0.2"}, {p.fault, "1"}} {
		select {
		case <-time.After(step.after):
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := backend.tell(step.left); err != nil {
			return err
		}
	}
	return nil
}
