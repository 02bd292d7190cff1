package server

import (
	"context"
	"fmt"
	"time"

	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/gateway/internal/tracing"
)

// openTracer returns the tracer that cfg asks for, nil for none: the one in use if its settings are
// the same.
func (s *Server) openTracer(cfg *config.Config, inUse *tracing.Tracer) (*tracing.Tracer, error) {
	t, err := tracing.Open(cfg.Tracing, inUse, tracing.Options{Version: s.opts.Version, Counts: &s.traceCounts, Failed: s.events.SpansLost})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cfg.At("tracing"), err)
	}
	return t, nil
}

// lastSpans is how long a tracer has to send its last spans.
const lastSpans = 2 * time.Second

func closeTracer(t *tracing.Tracer) {
	ctx, cancel := context.WithTimeout(context.Background(), lastSpans)
	defer cancel()
	t.Close(ctx)
}

// Tracing returns what was counted of spans.
func (s *Server) Tracing() tracing.Snapshot { return s.traceCounts.Snapshot() }
