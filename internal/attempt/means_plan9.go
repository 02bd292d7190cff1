package attempt

import "syscall"

var means = [...]error{syscall.EMFILE}
