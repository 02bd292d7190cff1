package explain

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/gateway/internal/quotas"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/quota"
)

// Offline says what a gateway that has just been started with a configuration would do:
// every bucket is full, and nothing is in progress. It connects to nothing. Rules that
// were set at run time are read from their file, which a gateway may have open; those in
// a store are not known, and the answer says so.
func Offline(cfg *config.Config, ask Ask) (*Answer, error) {
	opts := policy.Options{Readings: silent{}, Stores: map[string]quota.Store{}}
	for name := range cfg.Stores {
		m, err := quota.NewMemory(quota.MemoryConfig{})
		if err != nil {
			return nil, err
		}
		opts.Stores[name] = m
	}
	kept, by, err := setAtRunTime(cfg)
	if err != nil {
		return nil, err
	}
	spec := cfg.Policy()
	plan := kept.Plan(spec, cfg.QuotaPlace)
	opts.QuotaRules = plan.Rules
	p, err := policy.Compile(spec, opts)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	if n := plan.Faulty(); n > 0 {
		by += fmt.Sprintf(", %d of which do not fit it and are not in force", n)
	}
	note := "Judged by " + by + ", as if just started: every bucket is full."
	return Of(View{Config: cfg, Policy: p, From: plan.From, Notes: []string{note, whatIsLeft(cfg)}}, ask)
}

// ErrRules is the error of Offline where rules are kept that cannot be read.
var ErrRules = errors.New("rules that were set at run time cannot be read, and no gateway would start with them")

// setAtRunTime returns the rules that were set at run time, as far as they can be known
// here, and what the answer is judged by then.
func setAtRunTime(cfg *config.Config) (kept *quotas.Kept, by string, err error) {
	const alone = "the configuration file alone"
	none, err := quotas.Read(context.Background(), nil, false)
	if err != nil { // cannot be: nothing is read
		return nil, "", err
	}
	switch {
	case cfg.Quotas.Store != "":
		return none, fmt.Sprintf("%s, without rules that were set at run time: they are in the store %s, which is not asked", alone, cfg.Quotas.Store), nil
	case cfg.Quotas.File == "":
		return none, alone, nil
	}
	kept, err = quotas.ReadFile(context.Background(), cfg.Quotas.File)
	switch {
	case err == nil:
		return kept, fmt.Sprintf("the configuration file and the rules set at run time in %s (%d)", cfg.Quotas.File, kept.Len()), nil
	case errors.Is(err, fs.ErrPermission) || cfg.Quotas.StartBroken:
		return none, fmt.Sprintf("%s, without rules that were set at run time: %v", alone, err), nil
	}
	return nil, "", fmt.Errorf("%w: %w", ErrRules, err)
}

// whatIsLeft says how to ask a gateway that runs with a configuration.
func whatIsLeft(cfg *config.Config) string {
	at := cfg.Admin.Address
	switch {
	case !cfg.Admin.Enabled():
		return "What is left now nobody can say: the configuration has no admin listener."
	case cfg.Admin.Socket != "":
		at = "unix:" + cfg.Admin.Socket
	}
	return "For what is left now ask the gateway: --admin " + at + " in place of --config."
}

// silent is a source of no readings.
type silent struct{}

// Readings implements control.Source.
func (silent) Readings(into []control.Reading) []control.Reading { return into }
