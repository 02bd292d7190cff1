package server

import (
	"context"
	"fmt"

	"github.com/weir-go/weir/gateway/internal/admin"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/gateway/internal/quotas"
	"github.com/weir-go/weir/weirredis"
)

// openBook opens the rules of quotas that are set at run time.
func (s *Server) openBook(cfg *config.Config) error {
	o := quotas.Options{Logger: s.log, StartBroken: cfg.Quotas.StartBroken}
	var err error
	switch {
	case cfg.Quotas.File != "":
		o.Store, err = quotas.OpenFile(cfg.Quotas.File)
	case cfg.Quotas.Store != "":
		o.Store, err = s.openShared(cfg)
	}
	if err != nil {
		return err
	}
	book, err := quotas.Open(context.Background(), o)
	if err != nil {
		if o.Store != nil {
			_ = o.Store.Close() // there is an error already
		}
		return err
	}
	s.book = book
	return nil
}

// openShared connects to the store that keeps the rules. The connection is one of its
// own: a reload that replaces the store of buckets leaves it.
func (s *Server) openShared(cfg *config.Config) (quotas.Store, error) {
	name := cfg.Quotas.Store
	spec := cfg.Stores[name]
	settings, err := spec.Connection()
	if err != nil {
		return nil, fmt.Errorf("stores.%s: %w", name, err)
	}
	settings.Lease = weirredis.Lease{}
	server, err := weirredis.New(settings)
	if err != nil {
		return nil, fmt.Errorf("stores.%s: %w", name, err)
	}
	return quotas.NewShared("store "+name, server), nil
}

// closeBook lets go of where the rules are kept.
func (s *Server) closeBook() {
	if err := s.book.Close(); err != nil {
		s.log.Warn("where quotas set at run time are kept was not closed", "error", err)
	}
}

// follow takes up what others write to where the rules are kept.
func (s *Server) follow(ctx context.Context) {
	every(ctx, quotas.Every, func() { s.book.Follow(ctx) })
}

// quotaAPI shows and takes rules of quotas. Who has the token of the configuration in
// force may write, and who asks over the socket.
func (s *Server) quotaAPI(cfg config.Admin) *admin.QuotaAPI {
	return &admin.QuotaAPI{
		Book: s.book,
		Writers: &admin.Writers{
			TokenFile: func() string { return s.state.Load().cfg.Admin.TokenFile },
			Socket:    cfg.Socket,
			Logger:    s.log,
		},
	}
}

// noteLasting says what of a new configuration waits for the next start.
func (s *Server) noteLasting(prev, next *config.Config) {
	if prev.Quotas != next.Quotas {
		s.log.Warn("quotas: in the configuration has changed; that is taken up at the next start")
	}
	if prev.Admin.Enabled() && next.Admin.Enabled() && prev.Admin.Socket != next.Admin.Socket {
		s.log.Warn("admin.socket in the configuration has changed; that is taken up at the next start")
	}
}
