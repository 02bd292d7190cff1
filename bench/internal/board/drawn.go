package board

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weir-go/weir/bench/internal/kit"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/sim"
)

// Scenarios drawn by chance. Drawn are the backend's shape and size, its service times, the deadline
// and who is told of it, and how load or capacity changes. Nobody chose them, so no constant can have
// been chosen for them. The same number always gives the same scenario.

// drawnSeed begins the random numbers of all of them.
const drawnSeed = 20261129

// drawnSeeds are the seeds of each one's runs.
var drawnSeeds = []uint64{1, 2, 3}

// The bounds between which is drawn, each evenly on a scale of ratios.
const (
	leastSize, mostSize         = 3, 300   // the best concurrency, about
	leastCapacity, mostCapacity = 10, 1000 // requests a second, about
	leastPatience, mostPatience = 2, 20    // the deadline, in residence times at the best concurrency
	longestWork                 = 5.0      // seconds

	drawnStretch = 40 * time.Second // each of three, or the time of drawnCount requests if that is more
	drawnCount   = 600
)

// drawnScenario is one of them, in words too.
type drawnScenario struct {
	scenario                     *sim.Scenario
	backend, work, clients, load string
}

// draw returns the scenario of a number.
func draw(number int) (*drawnScenario, error) {
	r := rand.New(rand.NewPCG(drawnSeed, uint64(number)))
	between := func(low, high float64) float64 { return low * math.Pow(high/low, r.Float64()) }
	size := int(math.Round(between(leastSize, mostSize)))
	mean := min(longestWork, float64(size)/between(leastCapacity, mostCapacity))
	d := &drawnScenario{}
	b := sim.Backend{Service: drawDist(r, mean)}
	d.work = workInWords(&b.Service, mean)
	switch r.IntN(4) {
	case 0, 1:
		b.Law, b.Workers = "pool", size
		d.backend = fmt.Sprintf("a pool of %d", size)
	case 2:
		b.Law, b.Discipline, b.Cores, b.Thrash = "cores", "ps", size, between(0.02, 1)/float64(size)
		d.backend = fmt.Sprintf("%d cores that lose %.1f %% for each request too many", size, 100*b.Thrash)
	default:
		b.Law, b.Sigma = "usl", 0.1*r.Float64()
		b.Kappa = (1 - b.Sigma) / float64(size*size)
		d.backend = fmt.Sprintf("contention, best at %d, σ %.2f", size, b.Sigma)
	}
	capacity, best := b.Capacity()
	deadline := between(leastPatience, mostPatience) * float64(best) / capacity
	b.Deadline = inTime(deadline)
	told, leaves := r.IntN(2) == 0, r.IntN(4) == 0
	class := sim.Class{Name: "all", TellDeadline: &told}
	d.clients = fmt.Sprintf("%.2g s", deadline)
	if !told {
		d.clients += ", not told"
	}
	if leaves {
		class.Timeout, class.Leaves = b.Deadline, true
		d.clients += ", who then leave"
	}
	stretch := inTime(max(drawnStretch.Seconds(), drawnCount/capacity))
	var phases [3]sim.Phase
	phases, d.load = drawLoad(r)
	for i := range phases {
		phases[i].For = stretch
	}
	part := 0.0
	s := sim.Scenario{
		Name: fmt.Sprintf("drawn %d", number), Backend: sim.BackendRef{Backend: b}, Phases: phases[:], Traffic: []sim.Class{class},
		Goals: []sim.Goal{{Metric: "served", From: stretch / 2, To: 3 * stretch, Part: &part}},
	}
	data, err := json.Marshal(&s)
	if err != nil {
		return nil, err
	}
	if d.scenario, err = sim.ParseScenario(data); err != nil {
		return nil, fmt.Errorf("drawn %d: %w", number, err)
	}
	return d, nil
}

func inTime(seconds float64) policy.Duration {
	return policy.Duration(time.Duration(seconds * float64(time.Second)).Round(time.Millisecond))
}

// drawDist draws how service times vary.
func drawDist(r *rand.Rand, mean float64) sim.Dist {
	d := sim.Dist{Dist: "exponential", Mean: policy.Duration(mean * float64(time.Second))}
	switch r.IntN(4) {
	case 0:
		d.Dist, d.K = "erlang", 4
	case 1:
		d.Dist, d.CV = "lognormal", 1.5+r.Float64()
	case 2:
		usual := policy.Duration(mean / 1.45 * float64(time.Second)) // nineteen in twenty, the others ten times that
		d = sim.Dist{Dist: "bimodal", Modes: []sim.Mode{{Weight: 95, Time: usual}, {Weight: 5, Time: 10 * usual}}}
	}
	return d
}

func workInWords(d *sim.Dist, mean float64) string {
	text := fmt.Sprintf("%.2g s, %s", mean, d.Dist)
	if d.CV > 0 {
		text += fmt.Sprintf(" %.1f", d.CV)
	}
	return text
}

// drawLoad draws what the load or the capacity does, in three stretches of the same length.
func drawLoad(r *rand.Rand) (phases [3]sim.Phase, words string) {
	even := func(low, high float64) float64 { return low + (high-low)*r.Float64() }
	load, other := even(0.9, 2), even(0.2, 0.7)
	switch r.IntN(6) {
	case 0:
		load = even(1.2, 4)
		words = fmt.Sprintf("%.1f times the capacity", load)
	case 1:
		load = even(0.8, 1)
		words = fmt.Sprintf("%.2f of the capacity", load)
	case 2:
		peak := even(2, 6)
		words = fmt.Sprintf("0.6 of the capacity, then %.1f times, then 0.6", peak)
		return [3]sim.Phase{{Load: 0.6}, {Load: peak}, {Load: 0.6}}, words
	case 3:
		words = fmt.Sprintf("%.1f times; the capacity falls to %.2f, and comes back", load, other)
		return [3]sim.Phase{{Load: load}, {Load: load, Capacity: other}, {Load: load}}, words
	case 4:
		work := even(1.5, 4)
		words = fmt.Sprintf("%.1f times; work becomes %.1f times as long, for good", load, work)
		return [3]sim.Phase{{Load: load}, {Load: load, Work: work}, {Load: load, Work: work}}, words
	default:
		words = fmt.Sprintf("%.1f times; %.2f of the capacity at first, then all", load, other)
		return [3]sim.Phase{{Load: load, Capacity: other}, {Load: load}, {Load: load}}, words
	}
	return [3]sim.Phase{{Load: load}, {Load: load}, {Load: load}}, words
}

// drawnResult is what one came to.
type drawnResult struct {
	*drawnScenario
	setting       string
	fixed, weir   kit.Spread
	limit, share  float64
	rate          float64
	concurrency   int
	numberFromOne int
}

// play runs it under the default and under the best fixed limit.
func (d *drawnScenario) play(ctx context.Context) (*drawnResult, error) {
	best, err := bestFixed(ctx, d.scenario)
	if err != nil {
		return nil, err
	}
	byDefault, err := d.scenario.WithPolicy(defaultPolicy())
	if err != nil {
		return nil, err
	}
	res := &drawnResult{drawnScenario: d, setting: best.setting}
	goal := d.scenario.Goals[0]
	for s, to := range map[*sim.Scenario]*kit.Spread{best.scenario: &res.fixed, byDefault: &res.weir} {
		report, err := sim.Run(ctx, s, sim.Options{Seeds: drawnSeeds})
		if err != nil {
			return nil, err
		}
		*to = report.Spread(goal)
		if s == byDefault {
			res.limit = limitOf(report, goal).Mean
			res.rate, res.concurrency = report.Capacity, report.Best
		}
	}
	res.share = res.weir.Median / res.fixed.Median
	return res, nil
}

// playDrawn draws so many scenarios, runs them, prints the page, and writes drawn.md to dir, if there is one.
func playDrawn(ctx context.Context, count int, dir string, out, errs io.Writer) error {
	results, failed := make([]*drawnResult, count), make([]error, count)
	var wg sync.WaitGroup
	numbers := make(chan int)
	for range min(count, runtime.GOMAXPROCS(0)) {
		wg.Go(func() {
			for i := range numbers {
				d, err := draw(i + 1)
				if err == nil {
					results[i], err = d.play(ctx)
				}
				failed[i] = err
				fmt.Fprintf(errs, "%d of %d\n", i+1, count)
			}
		})
	}
	for i := range count {
		numbers <- i
	}
	close(numbers)
	wg.Wait()
	for i, err := range failed {
		if err != nil {
			return err
		}
		results[i].numberFromOne = i + 1
	}
	page := drawnPage(results)
	if _, err := io.WriteString(out, page); err != nil || dir == "" {
		return err
	}
	return kit.Write(dir, map[string][]byte{"drawn.md": []byte(page)})
}

const drawnPreface = `# Scenarios drawn by chance

` + "`go run ./bench/cmd/scoreboard -drawn %d`" + ` writes this page, in virtual time. Backend, size, work, deadline and load were drawn by a random generator after
the constants of the limiter had been frozen. What came out stands here, whatever it is. A fault of the limiter that showed here was mended since then.

"Served" is the part of all requests that was answered in time, from half of the first of three equal stretches on. Each figure is the median over the
seeds 1 to 3, with the least and the largest in brackets. The best fixed limit was found for the very scenario, by trying ten limits and three waits with another seed.
"Share" is what weir served over what that limit served; it can be more than 1, because a fixed limit does not move. Loads are multiples of the capacity.

`

// drawnPage is drawn.md.
func drawnPage(results []*drawnResult) string {
	var page strings.Builder
	fmt.Fprintf(&page, drawnPreface, len(results))
	var shares []float64
	rows := kit.Table{{"", "backend", "work", "deadline", "load", "best fixed limit", "served", "weir served", "share", "weir's mean limit"}}
	for _, r := range results {
		shares = append(shares, r.share)
		rows = append(rows, []string{
			fmt.Sprint(r.numberFromOne), fmt.Sprintf("%s (%.3g/s at %d)", r.backend, r.rate, r.concurrency), r.work, r.clients, r.load, r.setting,
			kit.Text(r.fixed, "%.3f"), kit.Text(r.weir, "%.3f"), fmt.Sprintf("%.3f", r.share), fmt.Sprintf("%.0f", r.limit),
		})
	}
	slices.Sort(shares)
	fmt.Fprintf(&page, "Of %d shares the worst is %.3f, the fifth percentile %.3f, the median %.3f, and the best %.3f.\n\n",
		len(shares), shares[0], shares[len(shares)/20], kit.SpreadOf(shares).Median, shares[len(shares)-1])
	page.WriteString(rows.Plain(kit.Rule(len(rows[0]))))
	return page.String()
}
