// Command linearizer is a small event database: the system that EvidentDB's page about admission control
// describes, on a Kafka of its own or yours.
//
//	go run ./examples/linearizer                          two API servers, two processors, a broker, and load
//	go run ./examples/linearizer api -kafka HOST:PORT     one API server
//	go run ./examples/linearizer process -kafka HOST:PORT one processor; as many as you like
//	go run ./examples/linearizer -plot FILE.svg           an overload with and without admission, and a picture
//	make linearizer-live                                  the same in figures, on a real Kafka
//	make linearizer-kills                                 fifty processes are killed under load, and nothing is lost
//
// A client sends a batch of events for a database to an API server. The API server admits it, and writes it to
// the topic prospective-batches. A processor puts the batches of each database in order, and gives the events
// revisions without gaps. It writes events and result to a store that all processes share (SQLite). The
// result goes straight back to the API server, over gRPC, which answers the client.
//
// A batch holds a slot of its database until its result is there. How many slots a database has follows the
// lag of the processors. So the API slows down when they fall behind.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weir-go/weir/internal/loadgen"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	os.Exit(exitCode(ctx, run(ctx, os.Args[1:], os.Stdout, os.Stderr), os.Stderr))
}

// errUnfinished is the end of a command that was interrupted before it had come to its result.
var errUnfinished = errors.New("interrupted, so there is no result")

// exitCode says what is wrong, if anything is. Servers and the demo are ended by an interrupt, so that is nothing wrong.
func exitCode(ctx context.Context, err error, errs io.Writer) int {
	if err == nil || errors.Is(err, flag.ErrHelp) || ctx.Err() != nil && !errors.Is(err, errUnfinished) {
		return 0
	}
	fmt.Fprintln(errs, "linearizer:", err)
	return 1
}

// options are what the command line says.
type options struct {
	kafka, store, listen, results string
	plot                          string
	work, patience, during        time.Duration
	session                       time.Duration
	killed                        int
	seed                          uint64
	partitions                    int
	real, fresh                   bool // a Kafka of its own; a store of its own, that is removed
	admission                     admissionConfig
	out                           io.Writer
	log                           *slog.Logger
}

// run is the command.
func run(ctx context.Context, args []string, out, errs io.Writer) error {
	command := ""
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		command, args = args[0], args[1:]
	}
	if !slices.ContainsFunc(commands, func(c [2]string) bool { return c[0] == command }) {
		return fmt.Errorf("there is no command %q; there are api, process, live and kills, and none at all", command)
	}
	o := options{out: out, log: slog.New(slog.NewTextHandler(errs, nil)), admission: smallMachine}
	flags := o.flags(command, errs)
	if err := flags.Parse(args); err != nil {
		return err
	}
	o.real = command == "live"
	if err := o.check(flags); err != nil {
		return err
	}
	switch command {
	case "api":
		return o.api(ctx)
	case "process":
		return o.process(ctx)
	case "kills":
		return finished(ctx, o.kills(ctx))
	}
	if !o.overloaded() {
		return o.demo(ctx)
	}
	_, err := o.overloads(ctx, o.controllers()...)
	return finished(ctx, err)
}

// finished is the end of a command that has a result only then.
func finished(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return errUnfinished
	}
	return err
}

// commands are those that there are, and what each does.
var commands = [][2]string{
	{"", "two API servers, two processors, a broker, and load; with -plot an overload with and without admission"},
	{"api", "one API server"},
	{"process", "one processor; as many as you like"},
	{"live", "an overload with each way of setting the slots, on a real Kafka"},
	{"kills", "processes are killed under load, and nothing is lost"},
}

// usage says what there is, and which flags the command has.
func usage(f *flag.FlagSet) {
	out := f.Output()
	fmt.Fprint(out, "linearizer is a small event database behind a Kafka: see docs/howto/linearizer.md.\n\n")
	for _, c := range commands {
		fmt.Fprintf(out, "  %-18s  %s\n", "linearizer "+c[0], c[1])
	}
	fmt.Fprintf(out, "\nFlags of %s:\n", strings.TrimSpace(f.Name()))
	f.PrintDefaults()
}

// flags are those that the command uses.
func (o *options) flags(command string, errs io.Writer) *flag.FlagSet {
	f := flag.NewFlagSet("linearizer "+command, flag.ContinueOnError)
	f.SetOutput(errs)
	f.Usage = func() { usage(f) }
	if command == "kills" {
		f.IntVar(&o.killed, "kills", 50, "how many processes are killed, one after the other")
		f.Uint64Var(&o.seed, "seed", 0, "what is random is drawn from it; 0: another one each time")
		return f
	}
	f.IntVar(&o.partitions, "partitions", 8, "partitions of the topic, if it is to be made")
	switch command {
	case "":
		f.StringVar(&o.kafka, "kafka", "", "host:port of some brokers, with commas between; none: one in this process")
		f.StringVar(&o.store, "store", "", "with -kafka, the file of the store (default linearizer.db); without, it is removed at the end")
	case "api", "process":
		f.StringVar(&o.kafka, "kafka", "127.0.0.1:9092", "host:port of some brokers, with commas between")
		f.StringVar(&o.store, "store", "", "the file of the store, which all processes share (default linearizer.db)")
	}
	if command == "process" {
		f.DurationVar(&o.work, "work", 0, "how long a batch takes a processor; 0: as long as it takes")
		f.DurationVar(&o.session, "session", 10*time.Second, "how long the group waits for a sign of life")
		return f
	}
	o.admission.flags(f, command == "live")
	if command != "live" {
		f.DurationVar(&o.patience, "patience", 10*time.Second, "how long a client waits for its result if it does not say")
	}
	if command == "api" {
		f.StringVar(&o.listen, "listen", "127.0.0.1:8024", "where clients connect")
		f.StringVar(&o.results, "results", "127.0.0.1:0", "where processors deliver results; the address stands in the records")
		return f
	}
	o.listen = "127.0.0.1:0"
	f.DurationVar(&o.work, "work", demoWork, "how long a batch takes a processor")
	f.StringVar(&o.plot, "plot", "", "a file for a plot, an SVG: an overload with and without admission")
	f.DurationVar(&o.during, "for", time.Minute, "how long the overload lasts")
	return f
}

// overloaded says that the load is one overload with each controller, not the demo's.
func (o *options) overloaded() bool { return o.real || o.plot != "" }

// controllers are those that set the slots, one after the other. A plot without a Kafka compares two. A server has one.
func (o *options) controllers() []string {
	switch {
	case o.real:
		return strings.Split(o.admission.controller, ",")
	case o.plot != "":
		return []string{byLine, byNone}
	}
	return []string{o.admission.controller}
}

// Bounds of options. There are far fewer processors on one machine than mostPartitions. In leastOverload the second half has two
// looks, between which something is applied. What Kafka's client takes for a session begins at leastSession.
const (
	mostPartitions = 1000
	leastOverload  = 4 * time.Second
	leastSession   = 100 * time.Millisecond
	mostSession    = time.Hour
)

// check finds all that is wrong with the options, before anything is started.
func (o *options) check(f *flag.FlagSet) error {
	var faults []error
	wrong := func(is bool, option, means string, args ...any) {
		if given := f.Lookup(option); is && given != nil {
			faults = append(faults, fmt.Errorf("-%s %s: %s", option, given.Value, fmt.Sprintf(means, args...)))
		}
	}
	if f.NArg() > 0 {
		faults = append(faults, fmt.Errorf("%q is too much; linearizer -h says what there is", f.Arg(0)))
	}
	set := map[string]bool{}
	f.Visit(func(given *flag.Flag) { set[given.Name] = true })
	if o.overloaded() {
		capacity := overloadProcessors / o.work.Seconds()
		wrong(o.work > 0 && overloadFactor*capacity > loadgen.MaxRate, "work", "three times the capacity is %.0f batches a second, and %d can be sent", overloadFactor*capacity, loadgen.MaxRate)
		wrong(set["kafka"], "kafka", "a plot needs a topic without records for each run, and starts brokers of its own; leave it out")
		wrong(set["store"], "store", "a plot has a store of its own for each run; leave it out")
		wrong(set["patience"], "patience", "clients of a plot wait for %v; leave it out", overloadPatience)
		wrong(set["admission"] && !o.real, "admission", "a plot compares line and off; leave it out")
		wrong(o.during < leastOverload || o.during > loadgen.MaxDuration, "for", "an overload lasts from %v to %v", leastOverload, loadgen.MaxDuration)
	} else {
		wrong(set["for"], "for", "an overload needs -plot, too; the demo lasts until Ctrl-C")
		wrong(set["store"] && o.kafka == "", "store", "a store that stays belongs to a topic that stays; write -kafka, too")
	}
	never := f.Lookup("session") != nil // a processor may be as fast as it can
	wrong(o.work < 0 || o.work == 0 && !never, "work", "write how long a batch takes")
	wrong(o.patience <= 0, "patience", "write how long a client waits")
	wrong(o.partitions < 1 || o.partitions > mostPartitions, "partitions", "a topic has from 1 to %d here", mostPartitions)
	wrong(o.killed < 0, "kills", "write how many processes are to be killed, 0 for none")
	wrong(o.session < leastSession || o.session > mostSession, "session", "a group waits from %v to %v", leastSession, mostSession)
	wrong(!isAddress(o.listen), "listen", "write host:port")
	wrong(!isAddress(o.results), "results", "write host:port")
	if err := kgo.ValidateOpts(kgo.SeedBrokers(o.brokers()...)); err != nil {
		wrong(true, "kafka", "write host:port: %v", err)
	}
	o.admission.check(o.controllers(), wrong)
	return errors.Join(faults...)
}

// isAddress reports whether somebody can listen there, as far as one can tell from reading it.
func isAddress(text string) bool {
	_, port, err := net.SplitHostPort(text)
	if err != nil {
		return false
	}
	_, err = net.LookupPort("tcp", port)
	return err == nil
}

// path is that of the store of processes of their own.
func (o *options) path() string { return cmp.Or(o.store, "linearizer.db") }

func (o *options) brokers() []string { return strings.Split(o.kafka, ",") }

// prepare makes the topic if it is not there. It waits for a broker.
func (o *options) prepare(ctx context.Context) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(o.brokers()...))
	if err != nil {
		return err
	}
	defer client.Close()
	return makeTopic(ctx, client, int32(o.partitions), o.log)
}

// Connections of a process to its store: a processor writes one transaction after the other.
const (
	writers = 1
	readers = 4
)

// api is an API server, until ctx ends.
func (o *options) api(ctx context.Context) (err error) {
	if err := o.prepare(ctx); err != nil {
		return err
	}
	s, err := openStore(ctx, o.path(), readers)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	gate, err := openAdmission(o.admission, o.brokers(), o.log)
	if err != nil {
		return err
	}
	defer gate.close()
	a, err := startAPI(ctx, apiConfig{brokers: o.brokers(), store: s, gate: gate, addr: o.listen, results: o.results, patience: o.patience, log: o.log})
	if err != nil {
		return err
	}
	fmt.Fprintf(o.out, "serving at http://%s, results at %s\n", a.addr, a.origin)
	<-ctx.Done()
	return a.close()
}

// process is a processor, until ctx ends.
func (o *options) process(ctx context.Context) (err error) {
	if err := o.prepare(ctx); err != nil {
		return err
	}
	s, err := openStore(ctx, o.path(), writers)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	p, err := newProcessor(ctx, processorConfig{brokers: o.brokers(), store: s, work: o.work, session: o.session, log: o.log})
	if err != nil {
		return err
	}
	defer p.close()
	fmt.Fprintln(o.out, "processing", topic)
	return p.run(ctx)
}
