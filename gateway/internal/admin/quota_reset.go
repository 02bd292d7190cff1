package admin

import (
	"errors"
	"net/http"

	"github.com/weir-go/weir/gateway/internal/quotas"
)

// reset fills a bucket, if whoever asks may write. Whose it is stands in the query, as for
// DELETE; there is no body.
func (a *QuotaAPI) reset(w http.ResponseWriter, r *http.Request) {
	by, via, err := a.Writers.who(r)
	if err != nil {
		a.Book.Deny()
		refuseWriter(w, err)
		return
	}
	whose, _, err := readParts(r)
	if err == nil && r.ContentLength != 0 {
		err = badRequest("a reset has no body; say in the query whose bucket it is, as in ?user=alice")
	}
	if err != nil {
		a.Book.Refuse(by, via, err)
		refuseRequest(w, err)
		return
	}
	res, err := a.Book.Reset(r.Context(), quotas.Reset{Gate: r.PathValue("gate"), Whose: whose, By: by, Via: via})
	var faults quotas.Faults
	switch {
	case errors.As(err, &faults):
		refuseChange(w, err)
	case err != nil:
		problem(w, http.StatusServiceUnavailable, err.Error(), nil)
	default:
		sendJSON(w, res)
	}
}
