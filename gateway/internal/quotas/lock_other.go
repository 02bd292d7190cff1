//go:build !unix

package quotas

import (
	"errors"
	"os"
)

var errLocked = errors.New("locked")

// lockFile opens a file. Here nobody is kept from opening it too.
func lockFile(name string) (*os.File, error) {
	return os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
}
