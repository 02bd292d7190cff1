package server

import (
	"context"
	"crypto/sha256"
	"fmt"

	"github.com/weir-go/weir/gateway/internal/admin"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/gateway/internal/quotas"
	"github.com/weir-go/weir/weirredis"
)

// bookPlace is where rules of quotas are kept that are set at run time: two that are
// equal are the same place.
type bookPlace struct {
	file, store string
	settings    [sha256.Size]byte // of the connection to the store
}

func bookPlaceOf(cfg *config.Config) (at bookPlace, err error) {
	at.file, at.store = cfg.Quotas.File, cfg.Quotas.Store
	if at.store == "" {
		return at, nil
	}
	spec := cfg.Stores[at.store]
	settings, err := spec.Connection()
	if err == nil {
		at.settings, err = settingsOf(&spec, &settings)
	}
	return at, err
}

// openBook opens the rules of quotas that are set at run time.
func (s *Server) openBook(cfg *config.Config) error {
	at, err := bookPlaceOf(cfg)
	if err != nil {
		return bookError(cfg, err)
	}
	store, err := openBookStore(cfg)
	if err != nil {
		return err
	}
	book, err := quotas.Open(context.Background(), quotas.Options{Store: store, Logger: s.log, StartBroken: cfg.Quotas.StartBroken})
	if err != nil {
		return bookError(cfg, err)
	}
	s.book, s.bookAt = book, at
	return nil
}

// reopenBook reads the rules that cfg says are kept elsewhere than up to now, nil if
// they are not. Nothing has changed until a policy made with them is in force.
func (s *Server) reopenBook(cfg *config.Config) (*quotas.Kept, bookPlace, error) {
	at, err := bookPlaceOf(cfg)
	if err != nil {
		return nil, at, bookError(cfg, err)
	}
	if at == s.bookAt {
		return nil, at, nil
	}
	store, err := openBookStore(cfg)
	if err != nil {
		return nil, at, err
	}
	kept, err := quotas.Read(context.Background(), store, cfg.Quotas.StartBroken)
	if err != nil {
		return nil, at, bookError(cfg, err)
	}
	return kept, at, nil
}

// openBookStore opens where cfg keeps rules, nil if it keeps them nowhere.
func openBookStore(cfg *config.Config) (store quotas.Store, err error) {
	switch {
	case cfg.Quotas.File != "":
		if store, err = quotas.OpenFile(cfg.Quotas.File); err != nil {
			return nil, bookError(cfg, err)
		}
	case cfg.Quotas.Store != "":
		if store, err = openShared(cfg); err != nil {
			return nil, bookError(cfg, err)
		}
	}
	return store, nil
}

// bookError says where in the file it is written what cannot be used.
func bookError(cfg *config.Config, err error) error {
	field := "quotas.file"
	if cfg.Quotas.Store != "" {
		field = "quotas.store"
	}
	return fmt.Errorf("%s: %w", cfg.At(field), err)
}

// openShared connects to the store that keeps the rules. The connection is one of its
// own: what happens to the store of buckets leaves it.
func openShared(cfg *config.Config) (quotas.Store, error) {
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

// Book returns what there is to count of rules that are set at run time.
func (s *Server) Book() quotas.Stats { return s.book.Stats() }

// quotaAPI shows and takes rules of quotas. Who has the token of the configuration in
// force may write, and who asks over its socket.
func (s *Server) quotaAPI() *admin.QuotaAPI {
	return &admin.QuotaAPI{
		Book: s.book,
		Writers: &admin.Writers{
			TokenFile: func() string { return s.state.Load().cfg.Admin.TokenFile },
			Socket:    func() string { return socketOf(s.state.Load().cfg.Admin) },
			Logger:    s.log,
		},
	}
}
