//go:build unix

package process

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"syscall"
)

// Account is whom a server runs as. Databases refuse to run as root.
type Account struct{ credential *syscall.Credential }

// Unprivileged returns the account to run a server as, and gives it the folder. It is the caller's own, but
// of root that of the first of the users who exists; nobody is the last of them.
func Unprivileged(folder string, users ...string) (Account, error) {
	if os.Getuid() != 0 {
		return Account{}, nil
	}
	for _, name := range append(users, "nobody") {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err := errors.Join(err1, err2); err != nil {
			return Account{}, err
		}
		return Account{&syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}, os.Chown(folder, int(uid), int(gid))
	}
	return Account{}, errors.New("root may not run the server, and there is no user nobody; run it as another user")
}

// Command returns a command that runs as this account, in the folder.
func (a Account) Command(ctx context.Context, folder, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = folder
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: a.credential}
	return cmd
}

// Write writes a file that this account alone can read.
func (a Account) Write(name, text string) error {
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		return err
	}
	if a.credential == nil {
		return nil
	}
	return os.Chown(name, int(a.credential.Uid), int(a.credential.Gid))
}
