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
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil && ctx.Err() == nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "linearizer:", err)
		}
		os.Exit(1)
	}
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
	o := options{out: out, log: slog.New(slog.NewTextHandler(errs, nil)), admission: smallMachine}
	flags := o.flags(command, errs)
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("%q is too much; linearizer -h says what there is", flags.Arg(0))
	}
	if o.partitions < 1 || o.partitions > mostPartitions {
		return fmt.Errorf("-partitions %d: a topic has from 1 to %d here", o.partitions, mostPartitions)
	}
	if o.killed < 0 {
		return fmt.Errorf("-kills %d: write how many processes are to be killed, 0 for none", o.killed)
	}
	switch command {
	case "api":
		return o.api(ctx)
	case "process":
		return o.process(ctx)
	case "live":
		o.real = true
		_, err := o.overloads(ctx, strings.Split(o.admission.controller, ",")...)
		return err
	case "kills":
		return o.kills(ctx)
	case "":
		if o.plot == "" {
			return o.demo(ctx)
		}
		_, err := o.overloads(ctx, byLine, byNone)
		return err
	}
	return fmt.Errorf("there is no command %q; there are api, process, live and kills, and none at all", command)
}

func (o *options) flags(command string, errs io.Writer) *flag.FlagSet {
	f := flag.NewFlagSet("linearizer "+command, flag.ContinueOnError)
	f.SetOutput(errs)
	usual := ""
	if command == "api" || command == "process" {
		usual = "127.0.0.1:9092"
	}
	f.StringVar(&o.kafka, "kafka", usual, "host:port of some brokers, with commas between; without a command: none, which is one in this process")
	f.StringVar(&o.store, "store", "", "the file of the store, which all processes share (default linearizer.db; without a command: one that is removed at the end)")
	f.IntVar(&o.partitions, "partitions", 8, "partitions of the topic, if it is to be made")
	if command == "kills" {
		f.IntVar(&o.killed, "kills", 50, "how many processes are killed, one after the other")
		f.Uint64Var(&o.seed, "seed", 0, "what is random is drawn from it; 0: another one each time")
	}
	if command == "process" {
		f.DurationVar(&o.session, "session", 10*time.Second, "how long the group waits for a sign of life")
	}
	if command != "api" {
		f.DurationVar(&o.work, "work", 0, "how long a batch takes a processor; 0: as long as it takes")
	}
	if command != "process" {
		f.DurationVar(&o.patience, "patience", 10*time.Second, "how long a client waits for its result if it does not say")
		setBy, means := o.admission.controller, "what sets the slots of a database: line, drain, or off for no bound"
		if command == "live" {
			setBy, means = strings.Join(allControllers, ","), means+"; some of them, with commas between"
		}
		f.StringVar(&o.admission.controller, "admission", setBy, means)
		f.Int64Var(&o.admission.min, "min", o.admission.min, "slots of a database at the critical lag")
		f.Int64Var(&o.admission.max, "max", o.admission.max, "slots of a database up to the target lag")
		f.Float64Var(&o.admission.target, "target", o.admission.target, "lag up to which a database has all its slots")
		f.Float64Var(&o.admission.critical, "critical", o.admission.critical, "lag from which it has the least")
		f.DurationVar(&o.admission.every, "every", o.admission.every, "how often the lag is read")
		f.DurationVar(&o.admission.wait, "wait", o.admission.wait, "the longest wait for a slot")
	}
	if command == "" || command == "live" {
		o.listen = "127.0.0.1:0"
		f.StringVar(&o.plot, "plot", "", "a file for a plot, an SVG: an overload with and without admission")
		f.DurationVar(&o.during, "for", time.Minute, "how long the overload lasts")
	}
	if command == "api" {
		f.StringVar(&o.listen, "listen", "127.0.0.1:8024", "where clients connect")
		f.StringVar(&o.results, "results", "127.0.0.1:0", "where processors deliver results; the address stands in the records")
	}
	return f
}

// mostPartitions are far more than there are processors on one machine.
const mostPartitions = 1000

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
