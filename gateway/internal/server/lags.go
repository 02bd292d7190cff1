package server

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/signal"
	"github.com/weir-go/weir/weirkafka"
)

// lag is a signal that reads Kafka. It lives on over reloads while its settings are the same.
type lag struct {
	*weirkafka.Lag
	settings [sha256.Size]byte // with certificates; passwords are read for each connection
}

// lags are those of a configuration by name.
type lags map[string]*lag

// openLags returns the signals of cfg that read Kafka. It keeps those of prev with the same settings,
// and makes the others. They connect to nothing before they are read, so a cluster that is away is no
// error here.
func openLags(cfg *config.Config, prev lags) (lags, error) {
	now := lags{}
	var errs []error
	for _, name := range cfg.KafkaLags() {
		l, err := openLag(cfg, name, prev[name])
		if err != nil {
			errs = append(errs, fmt.Errorf("signals.%s: %w", name, err))
			continue
		}
		now[name] = l
	}
	if len(errs) > 0 {
		now.closeBut(prev)
		return nil, errors.Join(errs...)
	}
	return now, nil
}

func openLag(cfg *config.Config, name string, live *lag) (*lag, error) {
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
	if live != nil && live.settings == settings {
		return live, nil
	}
	opened, err := weirkafka.NewLag(how)
	if err != nil {
		return nil, err
	}
	return &lag{Lag: opened, settings: settings}, nil
}

// signals are the lags as a policy takes them. It compares their pointers.
func (l lags) signals() map[string]signal.Signal {
	all := make(map[string]signal.Signal, len(l))
	for name, one := range l {
		all[name] = one.Lag
	}
	return all
}

// closeBut closes the lags that keep does not have.
func (l lags) closeBut(keep lags) {
	for name, one := range l {
		if keep[name] != one {
			one.Close()
		}
	}
}
