//go:build unix

// Package mariadb starts a MariaDB of its own, for tests. The server has a folder of its own, listens on a
// free port of the loopback address, and asks for a password. Of root it runs as an unprivileged user,
// because MariaDB refuses to run as root.
package mariadb

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/weir-go/weir/internal/testbed/freeport"
	"github.com/weir-go/weir/internal/testbed/process"
)

// Config says which server to start.
type Config struct {
	// Program is MariaDB's server. make parts links it into .cache/bin.
	Program string
	// Ports are those to choose from. Processes that run side by side use different ranges.
	Ports *freeport.Range
	// Settings are name=value, after those that every such server has: it may lose what it was
	// told last in a crash, and takes little memory.
	Settings []string
}

// Server is a MariaDB that was started. The user weir may do everything in it, and has a database weir.
type Server struct {
	// Addr is the host:port where it listens.
	Addr string
	// Password is that of the user weir.
	Password string

	folder  string
	process *process.Process
}

// Find returns the server that make parts has linked. It looks for .cache/bin/mariadbd in the folder where the
// program runs and in those around it.
func Find() (string, error) {
	program := process.Find(".cache/bin/mariadbd")
	if program == "" {
		return "", errors.New("there is no mariadbd in .cache/bin: make parts installs it where it can be had")
	}
	return program, nil
}

// Start makes a folder of data and returns when the server accepts connections. The server outlives ctx.
func Start(ctx context.Context, cfg Config) (_ *Server, err error) {
	program, err := filepath.EvalSymlinks(cfg.Program)
	if err != nil {
		return nil, fmt.Errorf("no MariaDB: run make parts, which installs it: %w", err)
	}
	s := &Server{Password: rand.Text()}
	if s.folder, err = os.MkdirTemp("", "weir-mariadb-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Stop())
		}
	}()
	if s.Addr, err = cfg.Ports.Addr(); err != nil {
		return nil, err
	}
	as, err := process.Unprivileged(s.folder, "mysql")
	if err != nil {
		return nil, err
	}
	host, port, err := net.SplitHostPort(s.Addr)
	if err != nil {
		return nil, err
	}
	// The program is sbin/mariadbd. What it needs is in share/mysql beside sbin.
	base := filepath.Dir(filepath.Dir(program))
	args := []string{"--no-defaults", "--basedir=" + base, "--datadir=" + s.folder, "--tmpdir=" + s.folder,
		"--innodb-buffer-pool-size=32M", "--innodb-log-file-size=8M", "--innodb-flush-log-at-trx-commit=0"}
	tables, err := systemTables(filepath.Join(base, "share", "mysql"))
	if err != nil {
		return nil, err
	}
	boot := as.Command(ctx, s.folder, program, append(args, "--bootstrap", "--max-allowed-packet=8M")...)
	boot.Stdin = bytes.NewReader(tables)
	if out, err := boot.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", boot, err, out)
	}
	init := filepath.Join(s.folder, "init.sql")
	if err := as.Write(init, s.accounts()); err != nil {
		return nil, err
	}
	args = append(args, "--bind-address="+host, "--port="+port, "--socket="+filepath.Join(s.folder, "socket"),
		"--pid-file="+filepath.Join(s.folder, "pid"), "--skip-name-resolve", "--init-file="+init)
	for _, set := range cfg.Settings {
		args = append(args, "--"+set)
	}
	// Not by the context: Stop ends it, after whoever uses it.
	if s.process, err = process.Start("MariaDB", as.Command(context.WithoutCancel(ctx), s.folder, program, args...)); err != nil {
		return nil, err
	}
	return s, s.process.Listening(ctx, s.Addr)
}

// accounts are one line for each statement, as a server reads them when it starts.
func (s *Server) accounts() string {
	return "DROP USER IF EXISTS root@localhost;\n" +
		"CREATE USER weir IDENTIFIED BY '" + s.Password + "';\n" +
		"GRANT ALL ON *.* TO weir WITH GRANT OPTION;\n" +
		"CREATE DATABASE weir;\n"
}

// systemTables returns what makes the tables that a server cannot do without. Its own script has more, such as
// the texts of HELP.
func systemTables(share string) ([]byte, error) {
	all := []byte("CREATE DATABASE mysql;\nUSE mysql;\nSET @auth_root_socket = NULL;\n")
	for _, name := range []string{"mysql_system_tables.sql", "mysql_performance_tables.sql", "mysql_system_tables_data.sql"} {
		text, err := os.ReadFile(filepath.Join(share, name))
		if err != nil {
			return nil, fmt.Errorf("MariaDB's own tables: %w", err)
		}
		for line := range strings.Lines(string(text)) {
			if !strings.Contains(line, "@current_hostname") { // a second root, by the name of this machine
				all = append(all, line...)
			}
		}
	}
	return all, nil
}

// Alive is an error if the server has ended.
func (s *Server) Alive() error { return s.process.Alive() }

// Stop ends the server, and removes its folder.
func (s *Server) Stop() error {
	s.process.Stop()
	return os.RemoveAll(s.folder)
}
