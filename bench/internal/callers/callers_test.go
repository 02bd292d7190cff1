//go:build linux

package callers

import (
	"context"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/bench/internal/rig"
	"github.com/weir-go/weir/internal/testbed/cores"
	"github.com/weir-go/weir/limit"
	"github.com/weir-go/weir/weirhttp"
)

// TestMain lets the test's own binary play the roles, as the command does.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "-role" {
		if err := playRole(os.Args[2], os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// inProcess is a gate in this process before the backend, in place of a gateway.
func inProcess(_ context.Context, backend string) (string, func(), error) {
	proxy, err := rig.ReverseProxy("http://" + backend)
	if err != nil {
		return "", nil, err
	}
	gate := weir.Must(limit.New(limit.Config{Name: "all", Limit: slots}))
	server := httptest.NewServer(weirhttp.Middleware(gate)(proxy))
	return server.URL, func() { server.Close(); gate.Close() }, nil
}

// Everything but the figures: processes start, the fault comes and goes, every call is accounted for.
func TestShort(t *testing.T) {
	p := plan{rounds: 1, calm: time.Second, fault: time.Second, after: time.Second, capacity: 100, gateway: inProcess}
	var err error
	if p.test, p.rest, err = cores.Pair(); err != nil {
		t.Fatal(err)
	}
	for row, kinds := range map[string][2]string{"S5": {ours, naive}, "S15": {ours, ours}} {
		accounts, err := p.run(t.Context(), row, kinds, 1)
		if err != nil {
			t.Fatal(err)
		}
		for i, account := range accounts {
			all := total(account, 0, time.Hour)
			if all.Due == 0 || all.Due != all.OK+all.Refused+all.GaveUp || all.Attempts == 0 {
				t.Errorf("%s, %s: %+v", row, kinds[i], all)
			}
		}
		for _, r := range p.figures(row, "mix", kinds, accounts) {
			if len(r.figures) == 0 {
				t.Errorf("%s, %s: no figures", row, r.kind)
			}
		}
	}
}

// A context that ends stops everything.
func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p := plan{rounds: 1, calm: time.Minute, capacity: 10, gateway: inProcess}
	if _, err := p.measure(ctx, io.Discard); err == nil || !strings.Contains(err.Error(), context.Canceled.Error()) {
		t.Errorf("%v", err)
	}
}
