package server

import (
	"net/http"

	"github.com/weir-go/weir/gateway/internal/proxy"
)

// settle reads from an answer what the request has really cost, where its route
// looks for that.
func (st *state) settle(call *proxy.Call, answer http.Header) (units int64, ok bool) {
	return st.policy.Route(call.Work.Op).Settle(answer)
}
