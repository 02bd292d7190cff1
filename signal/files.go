package signal

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"strconv"
	"strings"
)

// files reads the kernel's files below a root: of the machine, or of a test.
type files struct{ root fs.FS }

func filesOf(root fs.FS) files {
	if root == nil {
		root = os.DirFS("/")
	}
	return files{root}
}

// maxFile bounds what is read of one file. The longest one here, memory.stat, has 3 KB.
const maxFile = 64 << 10

func (f files) read(name string) ([]byte, error) {
	file, err := f.root.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("reading /%s: %w", name, err)
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("/%s is longer than %d bytes", name, maxFile)
	}
	return data, nil
}

// has reports whether there is such a file.
func (f files) has(name string) bool {
	_, err := fs.Stat(f.root, name)
	return err == nil
}

// The parsers accept what the kernel writes and nothing else. A wanted figure that is
// missing or no number is an error; other lines are ignored.

// parsePressure returns the total of a pressure file, in microseconds. It stands in
// the line "some avg10=0.22 avg60=0.17 avg300=0.11 total=58761459".
func parsePressure(data []byte) (uint64, error) {
	for line := range bytes.Lines(data) {
		fields := strings.Fields(string(line))
		if len(fields) == 0 || fields[0] != "some" {
			continue
		}
		text, found := strings.CutPrefix(fields[len(fields)-1], "total=")
		total, err := strconv.ParseUint(text, 10, 64)
		if !found || err != nil {
			return 0, fmt.Errorf("no total in %q", bytes.TrimSpace(line))
		}
		return total, nil
	}
	return 0, fmt.Errorf("no line \"some\" in %s", quoted(data))
}

// parseFields reads the wanted keys of a file of lines "key value". A colon may follow the
// key and a unit the value, as in /proc/meminfo. It returns which keys it found, as bits.
func parseFields(data []byte, keys []string, values []uint64) (found int, err error) {
	for line := range bytes.Lines(data) {
		for i, want := range keys {
			rest, ok := bytes.CutPrefix(line, []byte(want))
			if !ok || len(rest) == 0 || rest[0] != ' ' && rest[0] != ':' {
				continue
			}
			fields := strings.Fields(strings.TrimPrefix(string(rest), ":"))
			if len(fields) == 0 {
				return found, fmt.Errorf("%s has no value", want)
			}
			if values[i], err = strconv.ParseUint(fields[0], 10, 64); err != nil {
				return found, fmt.Errorf("%s is not a number: %q", want, fields[0])
			}
			found |= 1 << i
		}
	}
	return found, nil
}

// need reads the wanted keys. All of them must be there.
func need(data []byte, keys []string, values []uint64) error {
	found, err := parseFields(data, keys, values)
	if err != nil {
		return err
	}
	for i, key := range keys {
		if found&(1<<i) == 0 {
			return fmt.Errorf("no %s in %s", key, quoted(data))
		}
	}
	return nil
}

func parseLimit(data []byte) (uint64, error) {
	text := string(bytes.TrimSpace(data))
	if text == "max" {
		return noLimit, nil
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("neither a number nor max: %s", quoted(data))
	}
	if n >= math.MaxInt64>>16<<16 {
		return noLimit, nil
	}
	return n, nil
}

// noLimit means that no limit is set. Version 1 of the control groups writes the largest
// multiple of a page then, version 2 "max".
const noLimit = math.MaxUint64

// membership is a line of /proc/self/cgroup: version 2 has no controllers.
type membership struct{ controllers, path string }

// parseMemberships reads /proc/self/cgroup: lines "4:memory:/a/b" or "0::/a/b".
func parseMemberships(data []byte) ([]membership, error) {
	var all []membership
	for line := range bytes.Lines(data) {
		text := strings.TrimSpace(string(line))
		if text == "" {
			continue
		}
		parts := strings.SplitN(text, ":", 3)
		if len(parts) != 3 || !strings.HasPrefix(parts[2], "/") {
			return nil, fmt.Errorf("not a line of a cgroup file: %q", text)
		}
		all = append(all, membership{parts[1], parts[2]})
	}
	return all, nil
}

// quoted is the beginning of data, for errors.
func quoted(data []byte) string {
	const most = 60
	if len(data) > most {
		return strconv.Quote(string(data[:most])) + "..."
	}
	return strconv.Quote(string(data))
}
