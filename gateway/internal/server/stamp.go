package server

import (
	"os"
	"time"

	"github.com/weir-go/weir/gateway/internal/config"
)

// stamp tells one version of a file from another without reading it. The zero
// stamp is a file that is not there.
type stamp struct {
	size    int64
	changed time.Time
	info    string // device and inode: a file put in place of another
}

// stamps looks at every file the configuration in force depends on: first its
// own, then the certificates.
func (s *Server) stamps() []stamp {
	return append([]stamp{stampOf(s.opts.Watch)}, certStamps(s.state.Load().cfg)...)
}

func certStamps(cfg *config.Config) []stamp {
	var all []stamp
	for _, l := range cfg.Listeners {
		if l.TLS != nil {
			all = append(all, stampOf(l.TLS.Cert), stampOf(l.TLS.Key))
			if l.TLS.ClientCA != "" {
				all = append(all, stampOf(l.TLS.ClientCA))
			}
		}
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
