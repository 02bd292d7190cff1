package process

import "syscall"

// endWith has the kernel end the server with the program that starts it, even if that panics or is killed. The kernel
// looks at the thread that has started the server; those of Go live as long as the program, unless a goroutine that is
// locked to one ends.
func endWith(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
