package server

import (
	"net/http"

	"github.com/weir-go/weir/gateway/internal/explain"
)

// explain serves /explain: what would become of a request now.
func (s *Server) explain() http.Handler {
	return explain.Handler(func() explain.View {
		st := s.state.Load()
		v := explain.View{Config: st.cfg, Policy: st.policy, From: s.book.From}
		if trouble := s.book.Trouble(); trouble != "" {
			v.Notes = []string{"Rules that were set at run time cannot be read now; those that are known are in force: " + trouble}
		}
		return v
	})
}
