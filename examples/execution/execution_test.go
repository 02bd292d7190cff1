//go:build integration

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/testbed/postgres"
	"github.com/weir-go/weir/limit"
)

// TestExecution runs all its parts on one PostgreSQL.
func TestExecution(t *testing.T) {
	program, err := postgres.Find()
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	db, err := startDatabase(t.Context(), program)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := db.Stop(); err != nil {
			t.Error(err)
		}
		if err := syscall.Kill(db.Pid(), 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("process %d is left: %v", db.Pid(), err)
		}
	}()
	t.Run("compare", func(t *testing.T) { compare(t, db.URL) })
	for _, controller := range controllers {
		t.Run(controller, func(t *testing.T) { commands(t, db.URL, controller) })
	}
}

// compare runs the short form of the command. On any machine each request gets one answer, and none fails.
func compare(t *testing.T, database string) {
	var out bytes.Buffer
	o := &options{plot: filepath.Join(t.TempDir(), "plots", "execution.svg"), controllers: controllers, ingress: defaultIngress, quick: true, out: &out}
	results, err := o.compare(t.Context(), database)
	t.Log(out.String())
	if err != nil {
		t.Fatal(err)
	}
	if len(results) != 3 {
		t.Fatalf("%d results", len(results))
	}
	for _, r := range results {
		var sum int64
		for i, s := range r.tallies {
			sum += s.Offered
			if s.Failed != 0 || s.OK+s.Refused+s.GaveUp+s.Unsent != s.Offered {
				t.Errorf("%s, second %d: of %d commands %d were answered, %d refused, %d late, %d not sent, %d failed", r.controller, i, s.Offered, s.OK, s.Refused, s.GaveUp, s.Unsent, s.Failed)
			}
		}
		if sum == 0 {
			t.Errorf("%s: no commands", r.controller)
		}
	}
	if svg, err := os.ReadFile(o.plot); err != nil || !strings.HasPrefix(string(svg), "<svg") {
		t.Errorf("no plot: %v", err)
	}
}

// post sends a command and returns its status and its answer.
func post(t *testing.T, n *node, name string, args ...string) (int, string) {
	t.Helper()
	form := url.Values{}
	for i := 0; i < len(args); i += 2 {
		form.Set(args[i], args[i+1])
	}
	resp, err := http.PostForm("http://"+n.addr+"/"+name, form)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, strings.TrimSpace(string(text))
}

// commands sends commands to a server with one ingress ticket.
func commands(t *testing.T, database, controller string) {
	n, err := startNode(t.Context(), database, "127.0.0.1:0", controller, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.stop)
	if _, err := n.db.Exec(t.Context(), "update accounts set balance = 1000 where balance <> 1000"); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		args   []string
		status int
		answer string // its beginning
	}{
		{"find", []string{"id", "3"}, 200, "1000"},
		{"aggregate", []string{"id", "1001"}, 200, "20000000"},
		{"update", []string{"id", "4", "maxTimeMS", "60000"}, 200, "1"},
		{"ping", nil, 200, `"ok"`},
		{"find", []string{"id", "0"}, 404, "there is no such account"},
		{"find", []string{"id", "2147483647"}, 404, "there is no such account"},
		{"find", []string{"id", "2147483648"}, 400, "id is the number of an account, at most 2147483647, not 2147483648"},
		{"update", []string{"id", "-2147483649"}, 400, "id is the number of an account"},
		{"transfer", []string{"id", "1", "to", "99999999999"}, 400, "to is the number of an account"},
		{"aggregate", []string{"id", "2147483647"}, 200, "0"},
		{"transfer", []string{"id", "7", "to", "7"}, 400, "id and to are the same account"},
		{"transfer", []string{"id", "7", "to", "0"}, 404, "there is no such account"},
		{"transfer", []string{"id", "7", "to", "1000000000"}, 404, "there is no such account"},
		{"find", []string{"id", "7"}, 200, "1000"}, // and nothing was taken from it
		{"find", nil, 400, `id is a number, not ""`},
		{"find", []string{"id", "1", "maxTimeMS", "-1"}, 400, "maxTimeMS is a number"},
		{"drop", nil, 404, `there is no command "drop"`},
		{"setParameter", []string{"ingressTickets", "0"}, 400, ""},
	} {
		if status, answer := post(t, n, tt.name, tt.args...); status != tt.status || !strings.HasPrefix(answer, tt.answer) {
			t.Errorf("%s %v: %d %s, want %d %s", tt.name, tt.args, status, answer, tt.status, tt.answer)
		}
	}
	if failed := n.execution.(weir.Snapshotter).Snapshot().Outcomes[weir.Failed]; failed != 0 {
		t.Errorf("%d mistakes of callers count as failures of the database", failed)
	}
	oneTicket(t, n)
	resize(t, n, database)
	stopped(t, n, database)
	exempt(t, n)
}

// oneTicket checks that a command inside a command takes no ticket, although the ingress has only one.
func oneTicket(t *testing.T, n *node) {
	t.Helper()
	ingress, execution := n.ingress.Snapshot().Admitted, n.execution.(weir.Snapshotter).Snapshot().Admitted
	if status, answer := post(t, n, "transfer", "id", "6", "to", "5"); status != 200 {
		t.Fatalf("transfer: %d %s", status, answer)
	}
	if got := n.ingress.Snapshot().Admitted - ingress; got != 1 {
		t.Errorf("a transfer took %d tickets of the ingress", got)
	}
	if got := n.execution.(weir.Snapshotter).Snapshot().Admitted - execution; got != 1 {
		t.Errorf("a transfer took %d execution tickets", got)
	}
}

// resize checks that the ingress pool can be resized while it is full. The command for that is exempt.
func resize(t *testing.T, n *node, url string) {
	t.Helper()
	locker, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer locker.Close(t.Context())
	if _, err := locker.Exec(t.Context(), "begin; update accounts set balance = 0 where id = 7"); err != nil {
		t.Fatal(err)
	}
	blocked := make(chan int)
	block := func() { status, _ := post(t, n, "update", "id", "7"); blocked <- status }
	go block()
	inUse(t, n, 1)
	full(t, n)
	if status, answer := post(t, n, "setParameter", "ingressTickets", "2"); status != 200 || answer != `{"ingressTickets":2,"was":1}` {
		t.Errorf("setParameter: %d %s", status, answer)
	}
	if status, answer := post(t, n, "find", "id", "3"); status != 200 {
		t.Errorf("with a second ticket: %d %s", status, answer)
	}
	status, answer := post(t, n, "serverStatus")
	var s struct {
		Ingress weir.Snapshot `json:"ingress"`
		Active  int64         `json:"active_backends"`
	}
	if err := json.Unmarshal([]byte(answer), &s); err != nil || status != 200 || s.Ingress.Limit != 2 || s.Ingress.InFlight != 1 || s.Active < 1 {
		t.Errorf("serverStatus: %d %s (%v)", status, answer, err)
	}
	go block()
	inUse(t, n, 2)
	if status, answer := post(t, n, "setParameter", "ingressTickets", "1"); status != 200 || answer != `{"ingressTickets":1,"was":2}` {
		t.Errorf("setParameter below what is in use: %d %s", status, answer)
	}
	full(t, n)
	if s := n.ingress.Snapshot(); s.Limit != 1 || s.InFlight != 2 {
		t.Errorf("with one ticket less than is in use: %d of %d are, and nothing is taken back", s.InFlight, s.Limit)
	}
	if _, err := locker.Exec(t.Context(), "rollback"); err != nil {
		t.Error(err)
	}
	for range 2 {
		if status := <-blocked; status != 200 {
			t.Errorf("an update that held its ticket all the time: %d", status)
		}
	}
	if status, answer := post(t, n, "find", "id", "3"); status != 200 {
		t.Errorf("when the tickets are back: %d %s", status, answer)
	}
	inUse(t, n, 0)
}

// inUse waits until that number of ingress tickets are in use.
func inUse(t *testing.T, n *node, want int64) {
	t.Helper()
	again := time.NewTicker(time.Millisecond)
	defer again.Stop()
	for begun := time.Now(); n.ingress.Snapshot().InFlight != want; <-again.C {
		if time.Since(begun) > 3*time.Minute {
			t.Fatalf("%d ingress tickets are in use, want %d", n.ingress.Snapshot().InFlight, want)
		}
	}
}

// full checks that no ingress ticket is free, and that the refusal says so.
func full(t *testing.T, n *node) {
	t.Helper()
	status, answer := post(t, n, "find", "id", "3", "maxTimeMS", "20")
	var refusal struct {
		Gate   string  `json:"gate"`
		Reason string  `json:"reason"`
		Value  float64 `json:"value"` // seconds that it has waited, or would take
	}
	if err := json.Unmarshal([]byte(answer), &refusal); err != nil || status != 503 || refusal.Gate != "ingress" || refusal.Reason != "deadline" ||
		refusal.Value <= 0 {
		t.Errorf("beyond the ingress tickets: %d %s (%v)", status, answer, err)
	}
}

// stopped checks the answer for a statement that the database itself stops: as if it had run out of time.
func stopped(t *testing.T, n *node, url string) {
	t.Helper()
	locker, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer locker.Close(t.Context())
	if _, err := locker.Exec(t.Context(), "begin; update accounts set balance = 0 where id = 8"); err != nil {
		t.Fatal(err)
	}
	blocked := make(chan int)
	go func() { status, _ := post(t, n, "update", "id", "8"); blocked <- status }()
	again := time.NewTicker(time.Millisecond)
	defer again.Stop()
	for begun, stops := time.Now(), 0; stops == 0; <-again.C {
		if time.Since(begun) > 3*time.Minute {
			t.Fatal("the update does not wait for the lock")
		}
		err := locker.QueryRow(t.Context(), "select count(*) from pg_stat_activity where case when wait_event_type = 'Lock' then pg_cancel_backend(pid) end").Scan(&stops)
		if err != nil {
			t.Fatal(err)
		}
	}
	if status := <-blocked; status != 503 {
		t.Errorf("a statement that the database has stopped: %d", status)
	}
}

// exempt checks that system commands have a cap of their own.
func exempt(t *testing.T, n *node) {
	t.Helper()
	var held []weir.Permit
	for range exemptCap {
		p, err := n.ingress.Admit(t.Context(), weir.Work{Exempt: true})
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, p)
	}
	if status, answer := post(t, n, "ping"); status != 503 || !strings.Contains(answer, `"limit":8`) {
		t.Errorf("beyond the cap: %d %s", status, answer)
	}
	for _, p := range held {
		p.Done(weir.OK)
	}
	if status, answer := post(t, n, "ping"); status != 200 {
		t.Errorf("below the cap again: %d %s", status, answer)
	}
}

// Unknown names of controllers are refused, and numbers of tickets that a fixed pool cannot have.
func TestChoose(t *testing.T) {
	o := options{ingress: defaultIngress}
	if err := o.choose("default,fixed"); err != nil || len(o.controllers) != 2 {
		t.Errorf("%v, %v", o.controllers, err)
	}
	if err := o.choose("none"); err == nil || !strings.Contains(err.Error(), `no "none"`) {
		t.Errorf("a controller that does not exist: %v", err)
	}
	for _, o.ingress = range []int64{-5, 0, limit.MaxLimit + 1} {
		if err := o.choose("none"); err == nil || !strings.Contains(err.Error(), `no "none"`) || !strings.Contains(err.Error(), fmt.Sprintf("-ingress %d: there are from 1", o.ingress)) {
			t.Errorf("%d tickets: %v", o.ingress, err)
		}
	}
}
