//go:build integration

package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"github.com/weir-go/weir/internal/testbed/kafka"
)

// The processes that are killed are this program, as a server.
func TestMain(m *testing.M) {
	if os.Getenv("LINEARIZER") == "" {
		os.Exit(m.Run())
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// Five kills, two of them of the broker. make linearizer-kills has fifty.
func TestKills(t *testing.T) {
	t.Parallel()
	if _, err := kafka.Find(); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	if err := run(t.Context(), []string{"kills", "-kills", "5"}, t.Output(), t.Output()); err != nil {
		t.Error(err)
	}
}
