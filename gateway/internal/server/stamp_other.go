//go:build !unix

package server

import "os"

// identity has nothing to go by here: size and time must do.
func identity(os.FileInfo) string { return "" }
