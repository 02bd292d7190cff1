//go:build integration

package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/bench/internal/rig"
	"github.com/weir-go/weir/internal/postgres"
	"github.com/weir-go/weir/weirpgx"
)

// The command in its shortest form: each workload runs, whatever this machine makes of it, and tables and
// plots come out.
func TestCommand(t *testing.T) {
	program, err := postgres.Find()
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	server, err := postgres.Start(t.Context(), postgres.Config{Program: program, Ports: &rig.Ports, Settings: []string{"max_connections=400"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	}()
	t.Run("storm", func(t *testing.T) {
		var out bytes.Buffer
		b := &bench{storm: true, window: 300 * time.Millisecond, plots: t.TempDir(), out: &out}
		if err := b.measure(t.Context(), server.URL); err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(out.String(), "\n| "); n != 1+4 {
			t.Errorf("a table of %d lines:\n%s", n, &out)
		}
	})
	t.Run("sweep", func(t *testing.T) {
		var out bytes.Buffer
		b := &bench{workloads: []string{"serializable"}, controllers: []string{"ProbePair from 4"}, rounds: 1, clients: 8, length: time.Second, window: time.Second, plots: t.TempDir(), out: &out}
		if err := b.choose([]string{"4"}); err != nil {
			t.Fatal(err)
		}
		if err := b.measure(t.Context(), server.URL); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"## serializable", "| 4 |", "| ProbePair from 4 |", "The smallest fixed size"} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("the output lacks %q:\n%s", want, &out)
			}
		}
		if files, err := os.ReadDir(b.plots); err != nil || len(files) != 1 {
			t.Errorf("plots: %v, %v", files, err)
		}
	})
	pool, err := pgxpool.New(t.Context(), server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	for _, w := range workloads {
		if err := w.fill(t.Context(), pool); err != nil {
			t.Errorf("%s: %v", w.name, err)
		}
		for range 50 { // also the heavy ones
			if err := w.work(t.Context(), weirpgx.New(pool, weir.All())); err != nil {
				t.Errorf("%s: %v", w.name, err)
				break
			}
		}
	}
}

func TestChoose(t *testing.T) {
	b := &bench{rounds: 1, clients: 1, length: time.Second, window: time.Second, workloads: []string{"point"}}
	if err := b.choose([]string{"1", "200"}); err != nil || len(b.sizes) != 2 {
		t.Errorf("%v, %v", b.sizes, err)
	}
	b.workloads, b.controllers = []string{"none"}, []string{"default from 5"}
	err := b.choose([]string{"0", "201", "x"})
	for _, want := range []string{`"0" is no size from 1 to 200`, `"201"`, `"x"`, `no "none"`, `no "default from 5"`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %s", err, want)
		}
	}
}
