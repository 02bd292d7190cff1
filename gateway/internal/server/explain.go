package server

import (
	"net/http"

	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/gateway/internal/explain"
	"github.com/weir-go/weir/policy"
)

// explain serves /explain: what would become of a request now.
func (s *Server) explain() http.Handler {
	return explain.Handler(func() (*config.Config, *policy.Policy) {
		st := s.state.Load()
		return st.cfg, st.policy
	})
}
