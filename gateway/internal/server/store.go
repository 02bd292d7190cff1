package server

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/weir-go/weir/gateway/internal/admin"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/weirredis"
)

// store is a server that keeps buckets of quotas, as the gateway uses it. It lives on
// over reloads while its settings are the same.
type store struct {
	*weirredis.Store
	settings [sha256.Size]byte // with passwords and certificates
	once     sync.Once
}

// stores are those of a configuration by name.
type stores map[string]*store

// openStores returns the stores of cfg: those of prev whose settings are the same, and
// new ones. One that cannot be reached is no error; it is used as soon as it answers.
func (s *Server) openStores(cfg *config.Config, prev stores) (stores, error) {
	now := make(stores, len(cfg.Stores))
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(cfg.Stores)) {
		st, err := s.openStore(name, cfg.Stores[name], prev[name])
		if err != nil {
			errs = append(errs, fmt.Errorf("stores.%s: %w", name, err))
			continue
		}
		now[name] = st
	}
	if len(errs) > 0 {
		now.closeBut(prev)
		return nil, errors.Join(errs...)
	}
	return now, nil
}

func (s *Server) openStore(name string, spec config.Store, live *store) (*store, error) {
	cfg, err := spec.Connection()
	if err != nil {
		return nil, err
	}
	settings, err := settingsOf(&spec, &cfg)
	if err != nil {
		return nil, err
	}
	if live != nil && live.settings == settings {
		return live, nil
	}
	cfg.OnDown = func(err error) {
		s.log.Warn("a store of quotas does not answer; gates go by their on_store_error", "store", name, "error", err)
	}
	cfg.OnUp = func(after time.Duration) {
		s.log.Info("a store of quotas answers again", "store", name, "after", after.Round(time.Millisecond).String())
	}
	opened, err := weirredis.New(cfg)
	if err != nil {
		return nil, err
	}
	return &store{Store: opened, settings: settings}, nil
}

// settingsOf sums up all that a connection depends on, also what stands in other files.
func settingsOf(spec *config.Store, cfg *weirredis.Config) (sum [sha256.Size]byte, err error) {
	all := []any{spec, cfg.Password, cfg.Sentinel.Password}
	if t := spec.TLS; t != nil {
		for _, file := range []string{t.CA, t.Cert, t.Key} {
			if file == "" {
				continue
			}
			data, err := os.ReadFile(file)
			if err != nil {
				return sum, err
			}
			all = append(all, data)
		}
	}
	text, err := json.Marshal(all)
	return sha256.Sum256(text), err
}

// quotas are the stores as a policy takes them.
func (s stores) quotas() map[string]quota.Store {
	all := make(map[string]quota.Store, len(s))
	for name, st := range s {
		all[name] = st
	}
	return all
}

// closeBut closes the stores that keep does not have.
func (s stores) closeBut(keep stores) {
	for name, st := range s {
		if keep[name] != st {
			st.once.Do(func() { _ = st.Close() }) // it never fails
		}
	}
}

// Stores returns what there is to see of the stores in force, sorted by name.
func (s *Server) Stores() (all []admin.Store) {
	st := s.state.Load()
	if st == nil {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(st.stores)) {
		all = append(all, admin.StoreOf(name, st.stores[name].Stats()))
	}
	return all
}
