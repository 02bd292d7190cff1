package server

import (
	"context"
	"net"
	"net/url"
	"time"
)

// probeTimeout bounds the look at each target at start.
const probeTimeout = 2 * time.Second

// probe looks once whether each target takes connections, and says which does
// not. It decides nothing: a target may come up later.
func (s *Server) probe(ctx context.Context, st *state) {
	dialer := net.Dialer{Timeout: probeTimeout}
	for _, u := range s.Upstreams() {
		for _, target := range st.cfg.Upstreams[u.Name()].Targets {
			c, err := dialer.DialContext(ctx, "tcp", hostPort(target))
			if err == nil {
				_ = c.Close() // only its opening was of interest
				continue
			}
			if ctx.Err() != nil {
				return
			}
			s.log.Warn("upstream target takes no connections now; requests that find no other one are answered 502 until it does",
				"upstream", u.Name(), "target", target, "error", err)
		}
	}
}

// hostPort returns where to connect for a target's URL.
func hostPort(target string) string {
	u, err := url.Parse(target)
	if err != nil {
		return target
	}
	port := u.Port()
	switch {
	case port != "":
	case u.Scheme == "https":
		port = "443"
	default:
		port = "80"
	}
	return net.JoinHostPort(u.Hostname(), port)
}
