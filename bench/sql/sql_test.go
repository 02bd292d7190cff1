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
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/limit"
	"github.com/weir-go/weir/weirpgx"
)

// The command in its shortest form: each workload runs, whatever this machine makes of it, and tables and
// plots come out.
func TestCommand(t *testing.T) {
	program, server := startPostgres(t, "max_connections=400")
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
		b := &bench{postgres: program, workloads: []string{"serializable"}, controllers: []string{"ProbePair from 4"}, rounds: 1, clients: 8, length: time.Second, window: time.Second, plots: t.TempDir(), out: &out}
		if err := b.choose([]string{"4"}); err != nil {
			t.Fatal(err)
		}
		if err := b.measure(t.Context(), server.URL); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"## serializable", "| 4 |", "| ProbePair from 4 |", "The smallest fixed size", "| clients of pgbench |"} {
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
	own, err := beside(program, pool.Config().ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range workloads {
		if err := w.fill(t.Context(), pool, own); err != nil {
			t.Errorf("%s: %v", w.name, err)
		}
		for range 50 { // also the heavy ones
			if err := w.work(t.Context(), weirpgx.New(pool, weir.All())); err != nil {
				t.Errorf("%s: %v", w.name, err)
				break
			}
		}
		if w.isolation != "" {
			var f figure
			for lasts := time.Second; err == nil && f.useful == 0 && lasts < 2*time.Minute; lasts *= 2 { // a busy machine may end nothing in a second
				f, err = own.play(t.Context(), w.isolation, 2, lasts)
			}
			if err != nil || f.useful <= 0 {
				t.Errorf("pgbench, %s: %+v, %v", w.isolation, f, err)
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

func TestPgbenchFigure(t *testing.T) {
	f, err := pgbenchFigure([]byte(`transaction type: <builtin: TPC-B (sort of)>
number of transactions actually processed: 6000
number of failed transactions: 300 (4.762%)
latency average = 1.9 ms
initial connection time = 9.9 ms
tps = 2000.5 (without initial connection time)
`))
	if want := (figure{useful: 2000.5, failed: 100.025}); err != nil || f != want {
		t.Errorf("%+v, %v, want %+v", f, err, want)
	}
	if _, err := pgbenchFigure([]byte("tps = 2000.5 (without initial connection time)\n")); err == nil || !strings.Contains(err.Error(), "PostgreSQL 15") {
		t.Errorf("a report without failures: %v", err)
	}
	f, err = pgbenchFigure([]byte("number of transactions actually processed: 0\nnumber of failed transactions: 0 (NaN%)\n"))
	if err != nil || f != (figure{}) {
		t.Errorf("nothing was done: %+v, %v", f, err)
	}
	if f, err := pgbenchFigure([]byte("number of transactions actually processed: 7\nnumber of failed transactions: 0 (0%)\n")); err == nil {
		t.Errorf("a report without the rate: %+v", f)
	}
}

// Of two limiters those count that work has gone through.
func TestSizeOfAPair(t *testing.T) {
	pair := func() (control.Controller, control.Controller, error) { return control.Fixed(8), control.Fixed(4), nil }
	g, err := (&subject{controllers: pair}).open(limit.Queue{})
	if err != nil {
		t.Fatal(err)
	}
	defer g.close()
	for _, tt := range []struct {
		write bool
		want  float64
	}{{true, 4}, {false, 12}} {
		p, err := g.Admit(t.Context(), weir.Work{Write: tt.write})
		if err != nil {
			t.Fatal(err)
		}
		p.Done(weir.OK)
		if got := g.size(); got != tt.want {
			t.Errorf("after work with Write %v the size is %v, want %v", tt.write, got, tt.want)
		}
	}
}

// What the load could not send is void in the table, and is no best.
func TestPrintVoid(t *testing.T) {
	figures := func(useful float64) figures {
		return figures{useful: []float64{useful}, failed: []float64{0}, size: []float64{4}}
	}
	all := []*subject{
		{name: "4", size: 4, closed: figures(15_000), opened: figures(9000), seconds: 30, void: 3},
		{name: "8", size: 8, closed: figures(10_000), opened: figures(6000), seconds: 30, void: 2},
		{name: "default from 4", closed: figures(15_000), opened: figures(3000), seconds: 30},
	}
	var out bytes.Buffer
	b := &bench{out: &out}
	b.print(all, all[0], 20_000, time.Millisecond)
	for _, want := range []string{
		"| 4 | 15000 | 1.00 | 0 | 4.0 | 1.0x | void |  |  |\n",
		"| 8 | 10000 | 0.67 | 0 | 4.0 | 1.0x | 6000 | 1.00 | 4.0 |\n",
		"| default from 4 | 15000 | 1.00 | 0 | 4.0 | 1.0x | 3000 | 0.50 | 4.0 |\n",
		"That is 1.3 times what the best fixed size gets done, and not twice: no more than 20000 can be sent.\n",
		"4: the open load is void. In 3 of 30 seconds it left too late",
		"8: 2 of 30 seconds of the open load are left out",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("it lacks %q:\n%s", want, &out)
		}
	}
	all[1].void, all[2].void = 30, 30 // nothing was sent
	out.Reset()
	b.print(all, all[0], 20_000, time.Millisecond)
	if n := strings.Count(out.String(), "| void |"); n != 3 {
		t.Errorf("%d of 3 are void:\n%s", n, &out)
	}
}

func TestDeck(t *testing.T) {
	var d deck
	for thousand := range 3 {
		drawn := 0
		for range 1000 {
			if d.drawn() {
				drawn++
			}
		}
		if drawn != 30 {
			t.Errorf("the thousand %d: %d heavy reads, want 30", thousand, drawn)
		}
	}
}
