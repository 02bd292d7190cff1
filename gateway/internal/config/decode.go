package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/internal/setting"
)

// Bounds of the input, besides setting.MaxDepth.
const (
	MaxSize   = 1 << 20 // bytes in a file
	maxValues = 50_000  // keys and values, after aliases are followed
)

// Load reads and checks the file at path. A file that cannot be read is an
// ordinary error; one that is wrong is a [*fault.Faults].
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
	faults := &fault.List{File: name}
	root := parseYAML(data, faults)
	if root == nil {
		return nil, faults.Err("")
	}
	cfg := &Config{name: name, root: root}
	setting.Decode(root, cfg, faults)
	checkMeaning(cfg, faults)
	faults.Sort()
	if err := faults.Err(""); err != nil {
		return nil, err
	}
	return cfg, nil
}

// ParseDocument makes a tree of a YAML or JSON file of any kind, within the same
// bounds as [Parse]. What is wrong with it as a document is in the list, and the
// tree is nil then; the list knows where everything in the tree stands.
func ParseDocument(name string, data []byte) (*setting.Node, *fault.List) {
	faults := &fault.List{File: name}
	if len(data) <= MaxSize && json.Valid(data) { // as it is, even where YAML differs
		return setting.ParseJSON(data, faults), faults
	}
	return parseYAML(data, faults), faults
}
