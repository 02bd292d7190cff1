package server

import (
	"slices"
	"strings"
	"time"

	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/gateway/internal/envoy"
	"github.com/weir-go/weir/gateway/internal/ratelimit"
	"github.com/weir-go/weir/gateway/internal/rpc"
	"github.com/weir-go/weir/policy"
)

// newEnvoy returns the service that admits the requests of an Envoy, by the same policy.
func (s *Server) newEnvoy() *envoy.Service {
	return envoy.New(envoy.Options{
		Match: s.matchForEnvoy, Ended: s.endedAtEnvoy, Streams: s.streams, Logger: s.log,
		Refused: func(rej *weir.Rejection) { s.events.Rejected(weir.Work{}, rej) },
	})
}

// rpcServer returns a server with the services of a listener for an Envoy.
func (s *Server) rpcServer(l *listener) *rpc.Server {
	server := rpc.New(rpc.Options{
		Conns: l.conns, Config: l.cfg, Logger: s.log,
		Crowded: func(method string) {
			switch {
			case strings.HasPrefix(method, "/"+envoy.Name+"/"):
				s.envoy.Crowded()
			case strings.HasPrefix(method, "/"+ratelimit.Name+"/"):
				s.rateLimit.Crowded()
			}
		},
	})
	healthgrpc.RegisterHealthServer(server, s.health)
	if slices.Contains(l.cfg.Serve, config.ServeExtProc) {
		s.envoy.Register(server, envoy.Bounds{MaxStreams: l.conns.MaxRequests, FirstMessage: time.Duration(l.cfg.ReadHeaderTimeout), MaxHeaders: l.cfg.MaxHeaders})
		s.health.SetServingStatus(envoy.Name, healthgrpc.HealthCheckResponse_SERVING)
	}
	if slices.Contains(l.cfg.Serve, config.ServeRateLimit) {
		s.rateLimit.Register(server)
		s.health.SetServingStatus(ratelimit.Name, healthgrpc.HealthCheckResponse_SERVING)
	}
	return server
}

// matchForEnvoy finds the route of a request that Envoy asks about.
func (s *Server) matchForEnvoy(v *policy.View) envoy.Matched {
	st := s.state.Load()
	rt, work := st.policy.MatchView(v)
	m := envoy.Matched{Policy: st.policy, Route: rt, Work: work}
	own := st.routes[rt]
	if own == nil {
		s.metrics.NoRoute()
		return m
	}
	m.Quotas = own.quotas
	if u, ok := st.cfg.Upstreams[rt.Upstream()]; ok {
		m.Release, m.Longest = u.OnAbandon == config.Release, time.Duration(u.ResponseTimeout)
	}
	return m
}

// endedAtEnvoy counts a request as one of HTTP is counted.
func (s *Server) endedAtEnvoy(r envoy.Report) {
	if r.Route == nil {
		return
	}
	if rt := s.metrics.FindRoute(r.Route.Name()); rt != nil { // else a reload has removed it meanwhile
		rt.Answered(r.Status, r.By, r.Took)
	}
	s.metrics.Tenant(r.Work.Tenant, r.By, r.Took)
}

// ExtProc returns the streams of Envoy's now, and how others have ended.
func (s *Server) ExtProc() envoy.Snapshot { return s.envoy.Snapshot() }
