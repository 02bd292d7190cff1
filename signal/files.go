package signal

import (
	"fmt"
	"io"
	"io/fs"
	"os"
)

// files reads the kernel's files below a root: of the machine, or of a test.
type files struct{ root fs.FS }

func filesOf(root fs.FS) files {
	if root == nil {
		root = os.DirFS("/")
	}
	return files{root}
}

// maxFile bounds what is read of one file. The longest of those wanted here,
// memory.stat, has 3 KB.
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
