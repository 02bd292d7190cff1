package server

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/gateway/internal/quotas"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/signal"
	"github.com/weir-go/weir/weirkafka"
	"github.com/weir-go/weir/weirredis"
)

// kept is a connection to another server, of Redis or of Kafka. It lives on over reloads while its settings are the same.
type kept[C any] struct {
	conn     C
	settings [sha256.Size]byte // with passwords, as far as they have been read, and certificates
	close    func()            // may be called again
}

// keptByName are those of a configuration by name.
type keptByName[C any] map[string]*kept[C]

type (
	store  = kept[*weirredis.Store] // keeps buckets of quotas
	stores = keptByName[*weirredis.Store]
	lag    = kept[*weirkafka.Lag] // is a signal that reads Kafka
	lags   = keptByName[*weirkafka.Lag]
)

// openAll returns a connection for each name under the setting at. open gets that of prev, nil if it has none, and returns
// it if the settings are the same. Nothing has to be reached: a server that is away is no error here.
func openAll[C any](at string, names []string, prev keptByName[C], open func(name string, prev *kept[C]) (*kept[C], error)) (keptByName[C], error) {
	now := make(keptByName[C], len(names))
	var errs []error
	for _, name := range names {
		one, err := open(name, prev[name])
		if err != nil {
			errs = append(errs, fmt.Errorf("%s.%s: %w", at, name, err))
			continue
		}
		now[name] = one
	}
	if len(errs) > 0 {
		now.closeBut(prev)
		return nil, errors.Join(errs...)
	}
	return now, nil
}

// closeBut closes the connections that others do not have.
func (all keptByName[C]) closeBut(others keptByName[C]) {
	for name, one := range all {
		if others[name] != one {
			one.close()
		}
	}
}

// openStores returns the stores of cfg: those of prev with the same settings, and new ones.
func (s *Server) openStores(cfg *config.Config, prev stores) (stores, error) {
	return openAll("stores", slices.Sorted(maps.Keys(cfg.Stores)), prev, func(name string, prev *store) (*store, error) {
		return s.openStore(name, cfg.Stores[name], prev)
	})
}

func (s *Server) openStore(name string, spec config.Store, prev *store) (*store, error) {
	cfg, settings, err := connection(&spec)
	if err != nil {
		return nil, err
	}
	if prev != nil && prev.settings == settings {
		return prev, nil
	}
	cfg.OnDown = func(err error) {
		s.log.Warn("a store of quotas cannot be used (in a cluster, perhaps for some keys only); until it can, each gate does what its on_store_error says", "store", name, "error", err)
	}
	cfg.OnUp = func(after time.Duration) {
		s.log.Info("a store of quotas can be used again", "store", name, "after", after.Round(time.Millisecond).String())
	}
	cfg.OnForeign = func(err *weirredis.Error) {
		s.log.Warn("a key in a store of quotas has a value that is no bucket of this version; delete it there. Until then each gate does what its on_store_error says for this bucket",
			"store", name, "key", err.Key, "error", err.Err)
	}
	opened, err := weirredis.New(cfg)
	if err != nil {
		return nil, err
	}
	return &store{opened, settings, sync.OnceFunc(func() { _ = opened.Close() })}, nil // it never fails
}

// connection returns how to connect to a store. sum stands for all that this depends on, also what
// is in other files.
func connection(spec *config.Store) (cfg weirredis.Config, sum [sha256.Size]byte, err error) {
	if cfg, err = spec.Connection(); err != nil {
		return cfg, sum, err
	}
	files, err := contents(spec.TLS)
	if err != nil {
		return cfg, sum, err
	}
	text, err := json.Marshal([]any{spec, cfg.Password, cfg.Sentinel.Password, files})
	return cfg, sha256.Sum256(text), err
}

// contents returns what is in the files of certificates, nil for none.
func contents(t *config.StoreTLS) ([][]byte, error) {
	if t == nil {
		return nil, nil
	}
	var all [][]byte
	for _, file := range []string{t.CA, t.Cert, t.Key} {
		if file == "" {
			continue
		}
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		all = append(all, data)
	}
	return all, nil
}

// quotaStores are stores as a policy takes them.
func quotaStores(all stores) map[string]quota.Store {
	m := make(map[string]quota.Store, len(all))
	for name, one := range all {
		m[name] = one.conn
	}
	return m
}

// openLags returns the signals of cfg that read Kafka: those of prev with the same settings, and new ones. They
// connect to nothing before they are read.
func openLags(cfg *config.Config, prev lags) (lags, error) {
	return openAll("signals", cfg.KafkaLags(), prev, func(name string, prev *lag) (*lag, error) {
		return openLag(cfg, name, prev)
	})
}

func openLag(cfg *config.Config, name string, prev *lag) (*lag, error) {
	how, err := cfg.KafkaLag(name)
	if err != nil {
		return nil, err
	}
	s := cfg.Signals[name]
	cluster := cfg.Kafka[s.Cluster]
	files, err := contents(cluster.TLS)
	if err != nil {
		return nil, err
	}
	s.SignalSpec = policy.SignalSpec{} // what becomes of a reading is no matter of the connection
	// Where clients reach the cluster, and their quotas, are no matter of it either.
	text, err := json.Marshal([]any{s, cluster.Bootstrap, cluster.TLS, cluster.SASL, files})
	if err != nil {
		return nil, err
	}
	settings := sha256.Sum256(text)
	if prev != nil && prev.settings == settings {
		return prev, nil
	}
	opened, err := weirkafka.NewLag(how)
	if err != nil {
		return nil, err
	}
	return &lag{opened, settings, opened.Close}, nil
}

// lagSignals are lags as a policy takes them. It compares their pointers.
func lagSignals(all lags) map[string]signal.Signal {
	m := make(map[string]signal.Signal, len(all))
	for name, one := range all {
		m[name] = one.conn
	}
	return m
}

// rulesPlace is where rules of quotas are kept that are set at run time: two that are
// equal are the same place.
type rulesPlace struct {
	file, store string
	memory      bool
	settings    [sha256.Size]byte // of the connection to the store
}

// openRules opens the place where cfg keeps the rules of quotas that are set at run time.
// At the start it makes the book of them. Later it reads them, for the policy that is to
// be compiled with them. read is nil if cfg keeps them where they are, and at the start, when
// s.book is set instead.
func (s *Server) openRules(cfg *config.Config) (place rulesPlace, read *quotas.Saved, err error) {
	place = rulesPlace{file: cfg.Quotas.File, store: cfg.Quotas.Store, memory: cfg.Quotas.InMemory}
	field := "runtime_quotas.file"
	if place.store != "" {
		field = "runtime_quotas.store"
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: %w", cfg.At(field), err)
		}
	}()
	var server weirredis.Config
	if place.store != "" {
		spec := cfg.Stores[place.store]
		if server, place.settings, err = connection(&spec); err != nil {
			return place, nil, err
		}
	}
	if s.book != nil && place == s.rulesPlace {
		return place, nil, nil
	}
	var store quotas.Store
	switch {
	case place.file != "":
		store, err = quotas.OpenFile(place.file)
	case place.store != "":
		store, err = openShared(place.store, server)
	case place.memory:
		store = new(quotas.Memory)
		s.log.Warn("quotas set while the gateway runs are kept in its memory, and lost when it ends. To keep them, set runtime_quotas: {file: quotas.json}")
	}
	if err != nil {
		return place, nil, err
	}
	if s.book != nil {
		read, err = quotas.Read(context.Background(), store, cfg.Quotas.StartBroken)
		return place, read, err
	}
	book, err := quotas.Open(context.Background(), quotas.Options{Store: store, Logger: s.log, StartBroken: cfg.Quotas.StartBroken})
	if err == nil {
		s.book = book
	}
	return place, nil, err
}

// openShared connects to the store that keeps the rules. The connection is one of its own:
// it goes on when that of the store of buckets is replaced.
func openShared(name string, connection weirredis.Config) (quotas.Store, error) {
	connection.Lease = weirredis.Lease{}
	server, err := weirredis.New(connection)
	if err != nil {
		return nil, fmt.Errorf("stores.%s: %w", name, err)
	}
	return quotas.NewShared("store "+name, server), nil
}

// closeBook closes the place where the rules are kept.
func (s *Server) closeBook() {
	if err := s.book.Close(); err != nil {
		s.log.Warn("the file or store with the rules of quotas set at run time could not be closed; they are kept all the same", "error", err)
	}
}
