package main

import (
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weir-go/weir/internal/loadgen"
	"github.com/weir-go/weir/weirkafka"
)

// demo runs the demo, and sends what it says to type. interrupt is Ctrl-C.
func (s *system) demo(args ...string) (interrupt func()) {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	s.t.Cleanup(cancel)
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, append([]string{"-work", "10ms", "-patience", "5m"}, args...), s.logged, &safeBuffer{})
	}()
	s.until("it says what to type", func() bool { return strings.Contains(s.logged.String(), "Ctrl-C ends it") })
	try := regexp.MustCompile(`curl -d '(.*)' (http://\S+)\n`).FindStringSubmatch(s.logged.String())
	if try == nil {
		s.t.Fatal(s.logged.String())
	}
	if got := s.ask(http.MethodPost, try[2], try[1]); got.code != 201 {
		s.t.Errorf("%s: %d %s", try[0], got.code, got.body)
	}
	look := regexp.MustCompile(`curl '(http://\S+)'\n`).FindStringSubmatch(s.logged.String()) // in quotes: for some shells ? is a pattern
	if look == nil {
		s.t.Fatal(s.logged.String())
	}
	if got := s.ask(http.MethodGet, look[1], ""); got.code != 200 {
		s.t.Errorf("%s: %d %s", look[0], got.code, got.body)
	}
	return func() {
		s.t.Helper()
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				s.t.Error(err)
			}
		case <-time.After(3 * time.Minute):
			s.t.Error("it goes on after Ctrl-C")
		}
	}
}

// The demo says what to type, and what it says works. Ctrl-C ends it.
func TestDemo(t *testing.T) {
	t.Parallel() // it mostly waits
	s := &system{t: t, logged: &safeBuffer{}}
	interrupt := s.demo()
	s.until("it prints a second", func() bool { return regexp.MustCompile(`(?m)^ +\d+ +\d+ +\d+ .*\d$`).MatchString(s.logged.String()) })
	interrupt()
}

// Every second of a wave is told once, however long a look takes. Between two looks it is told in proportion.
func TestLooksThatTakeLong(t *testing.T) {
	for _, tt := range []struct {
		name string
		at   []float64 // seconds of the looks
		want []int     // how many seconds have been told after each
	}{
		{"one a second", []float64{0, 1, 2, 3, 4, 5, 6, 7}, []int{0, 0, 0, 0, 0, 1, 2, 3}},
		{"one in three", []float64{0, 2.7, 5.4, 8.1, 30}, []int{0, 0, 1, 4, 26}},
		{"the first too late", []float64{2.5, 6, 9}, []int{0, 0, 2}},
		{"one alone", []float64{20}, []int{0}},
		{"the last, after all answers", []float64{0, 1, 2, 3, 4, 5, -6}, []int{0, 0, 0, 0, 0, 1, 6}},
	} {
		var l looks
		var got, told []int
		if second, _, _, ok := l.next(); ok {
			t.Errorf("%s: second %d of nothing", tt.name, second)
		}
		for _, at := range tt.at {
			l.over = at < 0 // every client has an answer
			at := time.Duration(math.Abs(at) * float64(time.Second))
			l.all = append(l.all, watched{at: at, applied: 100 * at.Seconds(), lag: 10 * at.Seconds(), slots: 5}) // 100 a second
			for second, from, to, ok := l.next(); ok; second, from, to, ok = l.next() {
				if len(told) > 0 && second != told[len(told)-1]+1 {
					t.Errorf("%s: second %d after %v", tt.name, second, told)
				}
				told = append(told, second)
				end := float64(second + 1)
				if math.Abs(to.applied-from.applied-100) > 1e-6 || math.Abs(to.lag-10*end) > 1e-6 || to.slots != 5 || to.at.Seconds() != end {
					t.Errorf("%s: second %d from %+v to %+v", tt.name, second, from, to)
				}
			}
			got = append(got, len(told))
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v seconds told, want %v", tt.name, got, tt.want)
		}
	}
}

// On a Kafka of somebody's, it uses that one and a store that stays.
func TestDemoOnAKafka(t *testing.T) {
	s := newSystem(t)
	interrupt := s.demo("-kafka", s.brokers[0], "-store", s.path)
	interrupt()
	if b, err := settledOf(t.Context(), s.store(readers).db, "mine", "1"); err != nil || b == nil || b.Status != applied {
		t.Errorf("its batch: %+v, %v", b, err)
	}
	if said := "Kafka " + s.brokers[0] + ", topic " + topic; !strings.Contains(s.logged.String(), said) {
		t.Errorf("it does not say %q:\n%s", said, s.logged)
	}
	lag, err := weirkafka.NewLag(weirkafka.LagConfig{Client: s.client, Group: group, Topics: []string{topic}})
	if err != nil {
		t.Fatal(err)
	}
	all, err := lag.Partitions(t.Context())
	if err != nil || !slices.ContainsFunc(all, func(p weirkafka.Partition) bool { return p.End > 0 }) {
		t.Errorf("nothing is in its topic: %+v, %v", all, err)
	}
}

// What is wrong with a command line is said before anything is started.
func TestCommandLine(t *testing.T) {
	for _, tt := range []struct {
		args, want string
	}{
		{"serve", `there is no command "serve"; there are api, process, live and kills`},
		{"api more", `"more" is too much`},
		{"process -patience 3s", "not defined: -patience"},
		{"process -session -1s", "-session -1s: a group waits from 100ms"},
		{"process -work -1s", "-work -1s: write how long a batch takes"},
		{"process -kafka h:x", "-kafka h:x: write host:port"},
		{"api -partitions 0 -admission bogus", "-partitions 0: a topic has from 1 to 1000 here\n-admission bogus: it is line, drain or off"},
		{"api -min 30 -max 20", "-max 20: a database has from -min, which is 30"},
		{"api -min 0", "-min 0: a database has from 1"},
		{"api -target 0 -critical 0 -every 0s -wait -1s", "-target 0: a lag is a number from 1e-06\n-critical 0: it is a number above -target, which is 0\n-every 0s: it is from 10ms to 24h0m0s\n-wait -1s: write"},
		{"api -target NaN", "-target NaN: a lag"},
		{"api -admission drain -target Inf", "-target +Inf: a lag"},
		{"api -critical Inf", "-critical +Inf: it is a number above -target, which is 200"},
		{"api -admission off,line", `-admission off,line: it is line, drain or off, not "off,line"`},
		{"-admission off,line", `-admission off,line: it is line, drain or off, not "off,line"`},
		{"api -listen nonsense -results :99999 -patience 0s", "-patience 0s: write how long a client waits\n-listen nonsense: write host:port\n-results :99999: write host:port"},
		{"-partitions -1", "-partitions -1: a topic has from 1"},
		{"-work 0s", "-work 0s: write how long a batch takes"},
		{"-for 1m", "-for 1m0s: an overload needs -plot"},
		{"-store x.db", "-store x.db: a store that stays belongs to a topic that stays; write -kafka, too"},
		{"-plot x.svg -kafka 127.0.0.1:1", "-kafka 127.0.0.1:1: a plot needs a topic without records"},
		{"-plot x.svg -store x.db -patience 1s -admission off", "-store x.db: a plot has a store of its own for each run; leave it out\n-patience 1s: clients of a plot wait for 5s; leave it out\n-admission off: a plot compares"},
		{"-plot x.svg -for 1s", "-for 1s: an overload lasts from 4s to 10m0s"},
		{"live -for 20m -work -4ms", "-for 20m0s: an overload lasts from 4s to 10m0s\n-work -4ms: write how long a batch takes"},
		{"live -admission drain,lines", `it is line, drain or off, not "lines"`},
		{"live -work 1us", "-work 1µs: three times the capacity"},
		{"live -kafka 127.0.0.1:1", "not defined: -kafka"},
		{"kills -kills -1", "-kills -1: write how many processes are to be killed"},
		{"kills -admission off", "not defined: -admission"},
	} {
		ended, end := context.WithCancel(t.Context())
		end() // what starts all the same ends with it
		if err := run(ended, strings.Fields(tt.args), &safeBuffer{}, &safeBuffer{}); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", tt.args, err)
		}
	}
	// A target above what is critical on a line is none with another controller.
	o := options{admission: smallMachine, kafka: "127.0.0.1:9092"}
	f := o.flags("api", io.Discard)
	if err := errors.Join(f.Parse([]string{"-admission", "drain", "-target", "5000"}), o.check(f)); err != nil {
		t.Error(err)
	}
}

// Help is no mistake, and says which commands there are. Who interrupts a command that has come to no result hears so.
func TestExitCode(t *testing.T) {
	interrupted, interrupt := context.WithCancel(t.Context())
	interrupt()
	for _, tt := range []struct {
		args string
		ctx  context.Context
		code int
		said string
	}{
		{"-h", t.Context(), 0, "linearizer kills"},
		{"api -h", t.Context(), 0, "Flags of linearizer api:"},
		{"serve", t.Context(), 1, "there is no command"},
		{"kills -kills 0", interrupted, 1, "interrupted, so there is no result"},
		{"-plot x.svg", interrupted, 1, "interrupted, so there is no result"},
		{"api", interrupted, 0, ""},
		{"", interrupted, 0, ""},
	} {
		var said safeBuffer
		if code := exitCode(tt.ctx, run(tt.ctx, strings.Fields(tt.args), io.Discard, &said), &said); code != tt.code || !strings.Contains(said.String(), tt.said) {
			t.Errorf("%q: exit code %d, want %d: %s", tt.args, code, tt.code, said.String())
		}
	}
}

// The databases of a load are spread evenly, so that no processor is idle while the other has a backlog.
func TestEvenly(t *testing.T) {
	for _, tt := range []struct{ databases, partitions int }{{50, 8}, {20, 8}, {3, 8}, {50, 1}, {8, 8}} {
		names := evenly(tt.databases, tt.partitions)
		of := make([]int, tt.partitions)
		for _, name := range names {
			of[kgo.StickyKeyPartitioner(nil).ForTopic(topic).Partition(&kgo.Record{Key: []byte(name)}, tt.partitions)]++
		}
		if len(names) != tt.databases || slices.Max(of)-slices.Min(of) > 1 {
			t.Errorf("%d databases in %d partitions: %v", tt.databases, tt.partitions, of)
		}
	}
}

// The plot is drawn of what was seen, however short.
func TestPlot(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes seconds")
	}
	t.Parallel() // it mostly waits
	file := filepath.Join(t.TempDir(), "new", "plot.svg")
	var printed safeBuffer
	if err := run(t.Context(), []string{"-plot", file, "-for", "4s", "-work", "20ms"}, &printed, &safeBuffer{}); err != nil {
		t.Fatal(err)
	}
	drawn, err := os.ReadFile(file)
	for _, want := range []string{"<svg", "slots by the lag", "no admission control", "p99 of the admitted"} {
		if err != nil || !strings.Contains(string(drawn), want) {
			t.Errorf("no %q in the plot: %v", want, err)
		}
	}
	if out := printed.String(); !strings.Contains(out, "\nline ") || !strings.Contains(out, "\noff ") {
		t.Error(out)
	}
}

// A second at which nobody has looked is left out: drawn as 0, the slots and what was applied would end there.
func TestPlotLeavesOutWhatNobodySaw(t *testing.T) {
	draw := func(seen ...watched) string {
		return drawOverloads([]*overload{{controller: byLine, capacity: 500, seconds: 4, tallies: make([]loadgen.Tally, 4), seen: seen}})
	}
	first, second := watched{at: time.Second, lag: 100, slots: 7, applied: 500}, watched{at: 2 * time.Second, lag: 100, slots: 7, applied: 1000}
	if draw(first, second) == draw(first, second, watched{at: 3 * time.Second, applied: 1000}) {
		t.Error("a second that nobody saw is drawn as one without slots")
	}
	early := first
	if early.at -= time.Nanosecond; draw(early) != draw(first) {
		t.Error("a first look that comes a moment early is not drawn as that of the first second")
	}
}
