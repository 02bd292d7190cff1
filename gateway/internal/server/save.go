package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/weir-go/weir/policy"
)

const (
	// saveEvery bounds what a crash forgets.
	saveEvery = time.Minute
	// maxState bounds the file that is read.
	maxState = 4 << 20
)

// restore takes up the learned limits of an earlier run. A file that is missing,
// old or broken is no reason not to start: the configured limits hold then.
func (s *Server) restore(st *state) {
	name := st.cfg.State.File
	if name == "" {
		return
	}
	saved, err := readState(name)
	if errors.Is(err, fs.ErrNotExist) {
		s.log.Info("no learned limits to take up; starting from the configured ones", "file", name)
		return
	}
	if err == nil {
		var gates []string
		if gates, err = st.policy.Restore(saved, time.Duration(st.cfg.State.MaxAge)); err == nil {
			s.log.Info("learned limits taken up", "file", name, "saved", saved.At.Format(time.RFC3339), "gates", gates)
			return
		}
	}
	s.log.Warn("learned limits not taken up; starting from the configured ones", "file", name, "error", err)
}

func readState(name string) (policy.Saved, error) {
	var saved policy.Saved
	f, err := os.Open(name)
	if err != nil {
		return saved, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxState+1))
	if err != nil {
		return saved, err
	}
	if len(data) > maxState {
		return saved, fmt.Errorf("larger than %d bytes: no state of this program", maxState)
	}
	return saved, json.Unmarshal(data, &saved)
}

// saveRegularly saves every minute until ctx ends.
func (s *Server) saveRegularly(ctx context.Context) { every(ctx, saveEvery, s.save) }

// every calls do once in each interval until ctx ends.
func every(ctx context.Context, interval time.Duration, do func()) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			do()
		}
	}
}

// save keeps what the gates have learned.
func (s *Server) save() {
	st := s.state.Load()
	if st.cfg.State.File == "" {
		return
	}
	if err := writeState(st.cfg.State.File, st.policy.Save()); err != nil {
		s.log.Warn("learned limits not saved", "file", st.cfg.State.File, "error", err)
	}
}

// writeState replaces the file whole or not at all.
func writeState(name string, saved policy.Saved) error {
	data, err := json.MarshalIndent(saved, "", "  ")
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+".*.tmp") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name()) // fails once it has been renamed, as it should
	_, err = tmp.Write(append(data, '\n'))
	err = errors.Join(err, tmp.Sync(), tmp.Close())
	if err != nil {
		return err
	}
	return os.Rename(tmp.Name(), name)
}
