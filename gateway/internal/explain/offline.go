package explain

import (
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/quota"
)

// Offline says what a gateway that has just been started with a configuration would do:
// every bucket is full, and nothing is in progress. It connects to nothing.
func Offline(cfg *config.Config, ask Ask) (*Answer, error) {
	opts := policy.Options{Readings: silent{}, Stores: map[string]quota.Store{}}
	for name := range cfg.Stores {
		m, err := quota.NewMemory(quota.MemoryConfig{})
		if err != nil {
			return nil, err
		}
		opts.Stores[name] = m
	}
	p, err := policy.Compile(cfg.Policy(), opts)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	return Of(cfg, p, ask)
}

// silent is a source of no readings.
type silent struct{}

// Readings implements control.Source.
func (silent) Readings(into []control.Reading) []control.Reading { return into }
