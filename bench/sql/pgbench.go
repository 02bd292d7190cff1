package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/bench/internal/kit"
)

// pgbench is PostgreSQL's own load generator. It makes the tables of its transaction, and plays that beside
// ours: each client has a connection, and no pool stands before them.
type pgbench struct {
	program string
	server  *pgx.ConnConfig
	closed  []figures // one for each fixed size, with as many clients
}

// beside returns the pgbench that came with a server.
func beside(postgres string, server *pgx.ConnConfig) (*pgbench, error) {
	program, err := filepath.EvalSymlinks(postgres)
	if err != nil {
		return nil, err
	}
	return &pgbench{program: filepath.Join(filepath.Dir(program), "pgbench"), server: server}, nil
}

// fill makes its tables at scale 1.
func (p *pgbench) fill(ctx context.Context) error {
	_, err := p.run(ctx, "", "--initialize", "--scale", "1", "--unlogged-tables", "--quiet")
	return err
}

// play runs so many clients, and returns what they got done each second once all had a connection. Making those is part of the time.
// One thread is enough: it has one core.
func (p *pgbench) play(ctx context.Context, isolation pgx.TxIsoLevel, clients int64, lasts time.Duration) (figure, error) {
	out, err := p.run(ctx, isolation, "--no-vacuum", "--protocol", "prepared", "--client", fmt.Sprint(clients), "--jobs", "1",
		"--time", fmt.Sprint(int64(lasts/time.Second)))
	if err != nil {
		return figure{}, err
	}
	return pgbenchFigure(out)
}

// run runs pgbench, whose sessions begin all transactions with this isolation.
func (p *pgbench) run(ctx context.Context, isolation pgx.TxIsoLevel, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, p.program, append(args, "--host", p.server.Host, "--port", fmt.Sprint(p.server.Port), "--username", p.server.User, p.server.Database)...)
	cmd.Env = append(os.Environ(), "PGPASSWORD="+p.server.Password)
	if isolation != "" {
		cmd.Env = append(cmd.Env, "PGOPTIONS=-c default_transaction_isolation="+strings.ReplaceAll(string(isolation), " ", `\ `))
	}
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Run(); err != nil {
		return nil, errors.Join(ctx.Err(), fmt.Errorf("%s: %w\n%s", p.program, err, &problems))
	}
	return out.Bytes(), nil
}

var (
	pgbenchRate   = regexp.MustCompile(`(?m)^tps = ([0-9.]+) `)
	pgbenchDone   = regexp.MustCompile(`(?m)^number of transactions actually processed: ([0-9]+)`)
	pgbenchFailed = regexp.MustCompile(`(?m)^number of failed transactions: ([0-9]+) `)
)

// pgbenchFigure reads what pgbench reports in the end. Transactions that met others and failed are not among those done.
// It reports no rate where nothing was done.
func pgbenchFigure(out []byte) (f figure, err error) {
	var all [3]float64 // how many were done, how many failed, the rate
	for i, of := range []*regexp.Regexp{pgbenchDone, pgbenchFailed, pgbenchRate} {
		m := of.FindSubmatch(out)
		if m == nil && of == pgbenchRate && all[0] == 0 {
			return f, nil
		}
		if m == nil {
			return f, fmt.Errorf("pgbench does not report what it got done and what failed; it needs to be that of PostgreSQL 15 or later:\n%s", out)
		}
		if all[i], err = strconv.ParseFloat(string(m[1]), 64); err != nil {
			return f, err
		}
	}
	f.useful = all[2]
	if all[0] > 0 {
		f.failed = all[1] * all[2] / all[0] // over the same time as the rate
	}
	return f, nil
}

// round plays one turn of each number of clients.
func (p *pgbench) round(ctx context.Context, w *workload, sizes []int64, lasts time.Duration) error {
	if p.closed == nil {
		p.closed = make([]figures, len(sizes))
	}
	for i, n := range sizes {
		f, err := p.play(ctx, w.isolation, n, lasts)
		if err != nil {
			return err
		}
		p.closed[i].add(f)
	}
	return nil
}

// table is what it got done, beside the best fixed size of the pool.
func (p *pgbench) table(sizes []int64, best *subject) kit.Table {
	table := kit.Table{{"clients of pgbench", "useful/s", "of the best size", "failed/s"}}
	for i, n := range sizes {
		f := &p.closed[i]
		table = append(table, []string{fmt.Sprint(n), text("%.0f", f.useful), text("%.2f", kit.Over(f.useful, best.closed.useful)), text("%.0f", f.failed)})
	}
	return table
}
