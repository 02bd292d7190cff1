// Command envoy runs weir as the external processor of an Envoy. Beside it runs a processor that does
// nothing.
//
//	make build && go run ./bench/envoy
//
// The empty processor is a server of grpc-go with the generated messages. It answers each message
// with an empty one of its kind. Both processors are processes of their own on one core
// (GOMAXPROCS=1). Both get the same mode: headers of the request and of the answer, and its
// trailers.
//
// For memory it opens as many streams at each processor as an Envoy with so many requests in
// progress does. It prints the resident memory that each takes, with garbage. With -rounds 0 that is
// all, and no Envoy is needed.
//
// Then one Envoy stands before one service, with a port for each processor and one for none. The
// ports take turns; the order moves on by one each round. What a processor adds is its quantile less
// that of the port without, in the same round.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"time"

	"github.com/weir-go/weir/bench/internal/kit"
)

func main() {
	var p plan
	flag.IntVar(&p.held, "held", 5000, "requests held at a time; 0 leaves memory out")
	flag.IntVar(&p.rounds, "rounds", 15, "rounds of the latency; 0 leaves it out")
	flag.DurationVar(&p.turn, "turn", time.Second, "how long each port is asked in a round")
	flag.IntVar(&p.clients, "clients", 4, "clients, each with one request at a time")
	flag.StringVar(&p.weir, "weir", "bin/weir", "the gateway's binary; make build builds it")
	flag.StringVar(&p.envoy, "envoy", ".cache/bin/envoy", "the `program`; make parts installs it")
	serve := flag.String("serve", "", "be the empty processor at that address (used by the command itself)")
	flag.Parse()
	var err error
	if *serve != "" {
		err = serveEmpty(*serve)
	} else {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
		defer stop()
		err = p.run(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "envoy:", err)
		os.Exit(1)
	}
}

// plan is what is measured.
type plan struct {
	held, rounds, clients int
	turn                  time.Duration
	weir, envoy           string
}

// The goals for weir.
const (
	heldGoal  = 32   // KB a held request
	addedGoal = 1.15 // of what the empty processor adds
)

func (p *plan) run(ctx context.Context) error {
	if p.held < 0 || p.held > 9000 || p.rounds < 0 || p.clients < 1 || p.clients > 100 || p.turn < 100*time.Millisecond {
		return errors.New("held goes up to 9000, clients from 1 to 100, turns from 100ms")
	}
	fmt.Printf("%s, %d cores; median (min–max)\n", runtime.Version(), runtime.NumCPU())
	if p.held > 0 {
		if err := p.memory(ctx); err != nil {
			return err
		}
	}
	if p.rounds == 0 {
		return nil
	}
	return p.latency(ctx)
}

// memoryRounds is how often each processor is started anew for the figure of its memory.
const memoryRounds = 5

// memory prints what a held request takes.
func (p *plan) memory(ctx context.Context) error {
	figures := make(map[string][]float64)
	for round := range memoryRounds {
		for _, name := range kit.Turned([]string{empty, weir}, round) {
			kb, err := p.hold(ctx, name)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			figures[name] = append(figures[name], kb)
		}
	}
	table := kit.Table{{"processor", fmt.Sprintf("KB a held request, of %d", p.held), "goal"}}
	goal := kit.Goal{What: "KB", Bound: heldGoal, AtMost: true}
	verdict := goal.Judge(kit.SpreadOf(figures[weir]))
	table = append(table, []string{empty, kit.Text(kit.SpreadOf(figures[empty]), "%.1f"), ""},
		[]string{weir, kit.Text(kit.SpreadOf(figures[weir]), "%.1f"), verdict.String()})
	fmt.Printf("\n%s", table.Padded())
	return nil
}

// latency prints what the processors add.
func (p *plan) latency(ctx context.Context) error {
	r, err := p.start(ctx)
	if err != nil {
		return err
	}
	defer r.stop()
	for round := range p.rounds {
		for _, s := range kit.Turned(r.subjects, round) {
			if err := s.work(ctx, p.clients, p.turn); err != nil {
				return fmt.Errorf("%s in round %d of %d: %w", s.name, round+1, p.rounds, err)
			}
		}
	}
	bare := r.subjects[0]
	table := kit.Table{{"processor", "requests/s", "p50, µs", "p99, µs", "added p50, µs", "added p99, µs", "goals"}}
	var floor [2][]float64
	for i, s := range r.subjects {
		row := []string{s.name, kit.Text(kit.SpreadOf(s.rates), "%.0f"), kit.Text(kit.SpreadOf(s.p50), "%.0f"), kit.Text(kit.SpreadOf(s.p99), "%.0f"), "", "", ""}
		if i > 0 {
			added := [2][]float64{less(s.p50, bare.p50), less(s.p99, bare.p99)}
			row[4], row[5] = kit.Text(kit.SpreadOf(added[0]), "%.0f"), kit.Text(kit.SpreadOf(added[1]), "%.0f")
			if s.name == empty {
				floor = added
			} else {
				p50 := (&kit.Goal{What: "p50 ratio", Bound: addedGoal, AtMost: true}).Judge(kit.SpreadOf(kit.Over(added[0], floor[0])))
				p99 := (&kit.Goal{What: "p99 ratio", Bound: addedGoal, AtMost: true}).Judge(kit.SpreadOf(kit.Over(added[1], floor[1])))
				row[6] = p50.String() + ", from " + kit.Text(p50.Spread, "%.2f") + "; " + p99.String() + ", from " + kit.Text(p99.Spread, "%.2f")
			}
		}
		table = append(table, row)
	}
	fmt.Printf("\n%d rounds of %v a port, %d clients; ratios to the empty processor, within a round\n\n%s", p.rounds, p.turn, p.clients, table.Padded())
	return nil
}

// less subtracts the floor's value of the same round.
func less(values, floor []float64) []float64 {
	added := make([]float64, len(values))
	for i, v := range values {
		added[i] = v - floor[i]
	}
	return added
}
