package server

import (
	"net/http"

	"github.com/weir-go/weir/gateway/internal/proxy"
)

// settle reads from an answer what the request has really cost, where its route
// looks for that, and has the gates told.
func (st *state) settle(call *proxy.Call, answer http.Header, set func(gate string, units int64)) bool {
	units, ok := st.policy.Route(call.Work.Op).Settle(answer)
	if ok {
		st.policy.SetCost(set, units)
	}
	return ok
}
