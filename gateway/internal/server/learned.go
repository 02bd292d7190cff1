package server

import (
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
	// saveAgain and saveLast say what comes after a save that failed.
	saveAgain = "the gateway tries again every minute. A restart before that"
	saveLast  = "the next start"
	// maxLearned bounds the file that is read.
	maxLearned = 4 << 20
)

// restoreLearned gives the gates the limits that they had learned in an earlier run. A file that is
// missing, old or broken is no reason not to start: the configured limits hold then.
func (s *Server) restoreLearned(st *state) {
	name := st.cfg.State.File
	if name == "" {
		return
	}
	saved, err := readLearned(name)
	if errors.Is(err, fs.ErrNotExist) {
		s.log.Info("no learned limits to restore; starting from the configured ones", "file", name)
		return
	}
	if err == nil {
		var gates []string
		if gates, err = st.policy.Restore(saved, time.Duration(st.cfg.State.MaxAge)); err == nil {
			s.log.Info("learned limits restored", "file", name, "saved", saved.At.Format(time.RFC3339), "gates", gates)
			return
		}
	}
	s.log.Warn("learned limits not restored; starting from the configured ones", "file", name, "error", err)
}

func readLearned(name string) (policy.Saved, error) {
	var saved policy.Saved
	f, err := os.Open(name)
	if err != nil {
		return saved, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxLearned+1))
	if err != nil {
		return saved, err
	}
	if len(data) > maxLearned {
		return saved, fmt.Errorf("larger than %d bytes, so it was not written by weir", maxLearned)
	}
	return saved, json.Unmarshal(data, &saved)
}

// saveLearned writes what the gates have learned. then says what comes next if it cannot.
func (s *Server) saveLearned(then string) {
	st := s.state.Load()
	if st.cfg.State.File == "" {
		return
	}
	if err := writeLearned(st.cfg.State.File, st.policy.Save()); err != nil {
		s.log.Warn("learned limits not saved; "+then+" begins with older limits, or with the configured ones", "file", st.cfg.State.File, "error", err)
	}
}

// writeLearned replaces the file whole or not at all.
func writeLearned(name string, saved policy.Saved) error {
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
