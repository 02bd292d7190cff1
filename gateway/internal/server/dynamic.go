package server

import (
	"context"

	"github.com/weir-go/weir/gateway/internal/admin"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/gateway/internal/quotas"
)

// openBook opens the rules of quotas that are set at run time.
func (s *Server) openBook(cfg *config.Config) error {
	o := quotas.Options{Logger: s.log, StartBroken: cfg.Quotas.StartBroken}
	if cfg.Quotas.File != "" {
		file, err := quotas.OpenFile(cfg.Quotas.File)
		if err != nil {
			return err
		}
		o.Store = file
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
