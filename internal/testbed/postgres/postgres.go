//go:build unix

// Package postgres starts a PostgreSQL of its own: for tests, benchmarks and examples. The server
// has a folder of its own, listens on a free port of the loopback address, and asks for a password.
// Of root it runs as an unprivileged user, because PostgreSQL refuses to run as root.
package postgres

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/weir-go/weir/internal/testbed/freeport"
	"github.com/weir-go/weir/internal/testbed/process"
)

// Config says which server to start.
type Config struct {
	// Program is PostgreSQL's server; initdb is beside it. make parts links both into .cache/bin.
	Program string
	// Ports are those to choose from. Processes that run side by side use different ranges.
	Ports *freeport.Range
	// Nice, if not 0, is added to the server's niceness. A server that shares its machine with its
	// clients should take only what they leave, as if it had a machine of its own.
	Nice int
	// Settings are name=value, after those that every such server has: it loses everything in a
	// crash (fsync=off), and cleans up nothing by itself (autovacuum=off).
	Settings []string
}

// Server is a PostgreSQL that was started. The user weir owns everything in it.
type Server struct {
	// URL is what clients connect to: the database postgres, with user and password.
	URL string

	cfg     Config
	as      process.Account
	folder  string
	addr    string
	process *process.Process
}

// Find returns the server that make parts has linked. It looks for .cache/bin/postgres in the folder
// where the program runs and in those around it.
func Find() (string, error) {
	program := process.Find(".cache/bin/postgres")
	if program == "" {
		return "", errors.New("there is no postgres in .cache/bin: make parts installs it where it can be had")
	}
	return program, nil
}

// Start makes a cluster and returns when it accepts connections. The server outlives ctx.
func Start(ctx context.Context, cfg Config) (_ *Server, err error) {
	program, err := filepath.EvalSymlinks(cfg.Program)
	if err != nil {
		return nil, fmt.Errorf("no PostgreSQL: run make parts, which installs it: %w", err)
	}
	cfg.Program = program
	s := &Server{cfg: cfg}
	if s.folder, err = os.MkdirTemp("", "weir-postgres-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Stop())
		}
	}()
	if s.addr, err = cfg.Ports.Addr(); err != nil {
		return nil, err
	}
	if s.as, err = process.Unprivileged(s.folder, "postgres"); err != nil {
		return nil, err
	}
	password, secret := rand.Text(), filepath.Join(s.folder, "password")
	if err := s.as.Write(secret, password); err != nil {
		return nil, err
	}
	initdb := s.as.Command(ctx, s.folder, filepath.Join(filepath.Dir(program), "initdb"), "--pgdata", s.data(), "--username", "weir", "--pwfile", secret,
		"--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C", "--no-sync")
	if out, err := initdb.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", initdb, err, out)
	}
	s.URL = fmt.Sprintf("postgres://weir:%s@%s/postgres?sslmode=disable", password, s.addr)
	return s, s.launch(ctx)
}

func (s *Server) data() string { return filepath.Join(s.folder, "data") }

// launch starts the server of the cluster, and returns when it accepts connections.
func (s *Server) launch(ctx context.Context) error {
	host, port, err := net.SplitHostPort(s.addr)
	if err != nil {
		return err
	}
	args := []string{"-D", s.data(), "-p", port}
	for _, set := range append([]string{"listen_addresses=" + host, "unix_socket_directories=", "fsync=off", "autovacuum=off"}, s.cfg.Settings...) {
		args = append(args, "-c", set)
	}
	// Not by the context: Stop ends it, after whoever uses it.
	p, err := process.Start("PostgreSQL", s.as.Command(context.WithoutCancel(ctx), s.folder, s.cfg.Program, args...))
	if err != nil {
		return err
	}
	p.End = syscall.SIGINT // a fast shutdown
	s.process = p
	if s.cfg.Nice != 0 {
		if err := syscall.Setpriority(syscall.PRIO_PROCESS, p.Pid(), s.cfg.Nice); err != nil {
			return err
		}
	}
	return p.Until(ctx, "accept connections at "+s.addr, s.ready)
}

// ready reads what the server says of itself, as pg_ctl does.
func (s *Server) ready() bool {
	text, err := os.ReadFile(filepath.Join(s.data(), "postmaster.pid"))
	lines := strings.Split(string(text), "\n")
	return err == nil && len(lines) > 7 && strings.TrimSpace(lines[7]) == "ready" && lines[0] == strconv.Itoa(s.process.Pid())
}

// Pid is the identifier of the server's first process.
func (s *Server) Pid() int { return s.process.Pid() }

// Alive is an error if the server has ended.
func (s *Server) Alive() error { return s.process.Alive() }

// Restart ends the server, as an administrator would who cannot wait for clients, and starts it anew
// at the same address.
func (s *Server) Restart(ctx context.Context) error {
	s.process.Stop()
	return s.launch(ctx)
}

// Stop ends the server, and removes its folder.
func (s *Server) Stop() error {
	s.process.Stop()
	return os.RemoveAll(s.folder)
}
