package cli

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/weir-go/weir/gateway/internal/config"
)

// kind is what a file seems to be for.
type kind int

const (
	unknownFile kind = iota
	configFile
	scenarioFile
)

// kindOf guesses by the fields at the top, which the two kinds of file do not
// share. A file with fields of both, or of neither, is unknown.
func kindOf(data []byte) kind {
	doc, err := config.ParseDocument("", data)
	if err != nil {
		return unknownFile
	}
	var fields map[string]json.RawMessage
	if json.Unmarshal(doc.JSON, &fields) != nil {
		return unknownFile
	}
	has := func(names ...string) bool {
		for _, name := range names {
			if _, ok := fields[name]; ok {
				return true
			}
		}
		return false
	}
	gateway := has("upstreams", "listeners", "routes")
	scenario := has("phases", "backend", "traffic")
	switch {
	case gateway && !scenario:
		return configFile
	case scenario && !gateway:
		return scenarioFile
	}
	return unknownFile
}

// loadConfig reads a configuration of the gateway. Of a scenario it says only
// that it is one: every one of its fields would be a fault.
func loadConfig(file string) (*config.Config, error) {
	cfg, err := config.Load(file)
	var faults *config.Faults
	if !errors.As(err, &faults) {
		return cfg, err
	}
	if data, readErr := config.ReadFile(file); readErr == nil && kindOf(data) == scenarioFile {
		return nil, fmt.Errorf("%s: is a scenario, not a configuration of the gateway; weir sim %s runs it", file, file)
	}
	return nil, err
}
