package server

import (
	"os"
	"time"
)

// stamp tells one version of a file from another without reading it. The zero
// stamp is a file that is not there.
type stamp struct {
	size    int64
	changed time.Time
	info    string // device and inode: a file put in place of another
}

// stamps looks at every file the configuration depends on.
func (s *Server) stamps() []stamp {
	names := []string{s.opts.Watch}
	for _, l := range s.state.Load().cfg.Listeners {
		if l.TLS != nil {
			names = append(names, l.TLS.Cert, l.TLS.Key)
		}
	}
	all := make([]stamp, len(names))
	for i, name := range names {
		all[i] = stampOf(name)
	}
	return all
}

func stampOf(name string) stamp {
	info, err := os.Stat(name)
	if err != nil {
		return stamp{}
	}
	return stamp{size: info.Size(), changed: info.ModTime(), info: identity(info)}
}
