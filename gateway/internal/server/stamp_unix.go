//go:build unix

package server

import (
	"fmt"
	"os"
	"syscall"
)

// identity names the file itself, whatever it is called.
func identity(info os.FileInfo) string {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return ""
	}
	return fmt.Sprint(st.Dev, ".", st.Ino)
}
