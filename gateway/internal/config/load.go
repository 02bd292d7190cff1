package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// Bounds of the input.
const (
	MaxSize   = 1 << 20 // bytes in a file
	MaxDepth  = 32      // levels of nesting
	maxValues = 50_000  // keys and values, after aliases are followed
)

// Load reads and checks the file at path. A file that cannot be read is an
// ordinary error; one that is wrong is a [*Faults].
func Load(path string) (*Config, error) {
	data, err := ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("config %s: no such file; weir init %s writes one to start from", path, path)
	}
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	return Parse(path, data)
}

// ReadFile reads a file up to [MaxSize] and one byte more, by which the parsers
// know that it is too large.
func ReadFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, MaxSize+1))
}

// Parse reads and checks a configuration. name stands before each fault, and
// files named in the configuration are looked up relative to its directory.
func Parse(name string, data []byte) (*Config, error) {
	root, faults := parseYAML(name, data)
	if len(faults) > 0 {
		return nil, &Faults{sorted(faults)}
	}
	d := newDecoder(name)
	cfg := new(Config)
	d.decodeRoot(root, cfg)
	checkMeaning(cfg, d)
	if len(d.faults) > 0 {
		return nil, &Faults{sorted(d.faults)}
	}
	return cfg, nil
}
