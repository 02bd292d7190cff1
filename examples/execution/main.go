// Command execution is a small database server over HTTP, with the two stages of admission that MongoDB has.
// There are tickets at the ingress, and execution control before the storage. The storage is a PostgreSQL here.
//
//	make execution                                     all three controllers under one load, and a plot
//	bin/execution -serve 127.0.0.1:8017                a server to play with
//	curl -d id=7 127.0.0.1:8017/find                   a read
//	curl -d ingressTickets=100 127.0.0.1:8017/setParameter
//
// A command says whether it is subject to admission. Most are. System commands are exempt, under a cap. An
// operation holds one ticket of each stage until its end, and nested operations take no second ticket.
// -controller chooses what resizes the pools of execution tickets: nothing, throughput probing with MongoDB's
// parameters, or weir's default.
//
// If MongoDB's own page and MongoDB's code differ, this program follows the code:
//
//   - The page compares min and max concurrency with the sum of the two pools. In fact they bound each pool.
//   - By the page, the initial concurrency is that "of read and write transactions". In fact it is the total.
//   - By the page, probing goes down if tickets are not exhausted and the size is above the minimum. In fact
//     more than the minimum must have been in use, so an idle pool stays as it is.
//   - By the page, nothing changes only at the minimum. In fact nothing changes whenever no pool was
//     exhausted or used more than the minimum.
//   - The page does not say that sizes are rounded. If rounding would leave the size as it is, the size changes
//     by one. Otherwise pools of 4 could never change.
//   - By the page, an operation without a ticket is blocked. Here it is refused if too many wait already, or
//     if it would wait too long. Both stages say how many, of how many, and when to come back.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/weir-go/weir/limit"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	o := options{out: os.Stdout}
	var names, serve string
	flag.StringVar(&o.postgres, "postgres", ".cache/bin/postgres", "PostgreSQL's server; initdb is beside it")
	flag.StringVar(&names, "controller", "", "what resizes the pools of execution tickets: "+strings.Join(controllers, ", ")+"; default all, one after the other")
	flag.Int64Var(&o.ingress, "ingress", defaultIngress, "tickets at the ingress; the command setParameter changes them")
	flag.StringVar(&serve, "serve", "", "only serve, at this address, until interrupted")
	flag.StringVar(&o.plot, "plot", "", "a file for the plot, an SVG")
	flag.BoolVar(&o.quick, "quick", false, "a few seconds in all; its figures mean nothing")
	flag.Usage = func() {
		fmt.Fprint(flag.CommandLine.Output(), "execution compares three ways to size the ticket pools of a small database server. It runs a PostgreSQL of its own, and takes five minutes.\n\nexecution [flags]\n")
		flag.PrintDefaults()
	}
	flag.Parse()
	err := o.choose(names)
	if err == nil {
		err = o.run(ctx, serve)
	}
	if ctx.Err() != nil {
		fmt.Fprintln(os.Stderr, "interrupted: everything has been stopped")
		err = nil
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "execution:", err)
		os.Exit(1)
	}
}

// options are the options of the command.
type options struct {
	postgres, plot string
	controllers    []string
	ingress        int64
	quick          bool
	out            io.Writer
}

// choose keeps the controllers with these names, or all if names is empty. It finds all that is wrong with the options
// before the database is started.
func (o *options) choose(names string) error {
	var faults []error
	if o.controllers = controllers; names != "" {
		o.controllers = strings.Split(names, ",")
	}
	for _, name := range o.controllers {
		if !slices.Contains(controllers, name) {
			faults = append(faults, fmt.Errorf("-controller: there is no %q; there are %s", name, strings.Join(controllers, ", ")))
		}
	}
	if o.ingress < 1 || o.ingress > limit.MaxLimit { // for a gate 0 would mean a limit that it finds
		faults = append(faults, fmt.Errorf("-ingress %d: there are from 1 to %d tickets", o.ingress, limit.MaxLimit))
	}
	return errors.Join(faults...)
}

// run starts the database. Then it compares the controllers, or only serves.
func (o *options) run(ctx context.Context, serve string) (err error) {
	start := startApart
	if serve != "" {
		start = startDatabase // to play with, on all cores
	}
	db, err := start(ctx, o.postgres)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Stop()) }()
	if serve == "" {
		_, err = o.compare(ctx, db.URL)
		return err
	}
	n, err := startNode(ctx, db.URL, serve, o.controllers[len(o.controllers)-1], o.ingress)
	if err != nil {
		return err
	}
	defer n.stop()
	fmt.Fprintf(o.out, "serving at http://%s with the controller %s\n", n.addr, n.controller)
	<-ctx.Done()
	return nil
}
