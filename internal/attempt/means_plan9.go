package attempt

import (
	"errors"
	"syscall"
)

// LacksMeans reports whether err, by which no connection could be made, is for want of a file descriptor in this
// process. That says nothing about the server.
func LacksMeans(err error) bool { return errors.Is(err, syscall.EMFILE) }
