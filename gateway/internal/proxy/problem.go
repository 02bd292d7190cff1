package proxy

import (
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"strconv"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/weirhttp"
)

// Problem is the body of an error the gateway itself answers with
// (application/problem+json, RFC 9457).
type Problem struct {
	Title    string `json:"title"`
	Status   int    `json:"status"`
	Detail   string `json:"detail,omitempty"`
	Upstream string `json:"upstream,omitempty"`
}

// WriteProblem answers with p. It names no address and no error text of the
// operating system: those are for the log.
func WriteProblem(w http.ResponseWriter, p Problem) {
	body, err := json.Marshal(p)
	if err != nil { // cannot be: strings and an int
		body = nil
	}
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(p.Status)
	_, _ = w.Write(body) // the client has gone; there is nobody else to tell
}

func (u *Upstream) problem(w http.ResponseWriter, call *Call, status int, detail string) {
	call.answering(status)
	call.Quotas.Tell(w.Header(), call.Work, nil)
	WriteProblem(w, Problem{Title: http.StatusText(status), Status: status, Detail: detail, Upstream: u.name})
}

// failed is ReverseProxy's ErrorHandler: no answer came, or none that can be
// passed on.
func (u *Upstream) failed(w http.ResponseWriter, r *http.Request, err error) {
	x := r.Context().Value(exchangeKey{}).(*exchange)
	cause := x.why()
	bodyErr := x.body.failure()
	switch {
	case cause == errResponseTimeout:
		u.problem(w, x.call, http.StatusGatewayTimeout, "the upstream did not answer within "+u.cfg.ResponseTimeout.String())
	case weir.AsRejection(bodyErr) != nil: // complete, and refused then
		u.refuse(w, r, x.call, bodyErr)
	case bodyErr != nil:
		x.call.answering(BodyStatus(bodyErr))
		WriteBodyProblem(w, bodyErr)
	case cause != nil || x.client.Err() != nil:
		x.call.answering(weirhttp.StatusClientClosed)
		panic(http.ErrAbortHandler) // there is nobody to answer
	case weir.AsRejection(err) != nil:
		u.refuse(w, r, x.call, err)
	case timedOut(err):
		u.problem(w, x.call, http.StatusGatewayTimeout, "no connection to the upstream within "+u.cfg.ConnectTimeout.String())
	default:
		u.opts.Logger.Debug("bad gateway", "upstream", u.name, "target", x.seat.key, "error", err)
		u.problem(w, x.call, http.StatusBadGateway, "the upstream refused or broke the connection, or did not answer in HTTP")
	}
}

// BodyStatus is the status of a request whose body failed with err: 408 if it
// came too slowly, else 400.
func BodyStatus(err error) int {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return http.StatusRequestTimeout
	}
	return http.StatusBadRequest
}

// WriteBodyProblem answers a request whose body did not come as announced.
// net/http ends the connection after it: what is left of the body cannot be told
// from the next request.
func WriteBodyProblem(w http.ResponseWriter, err error) {
	status, detail := BodyStatus(err), "the request body ended early or is malformed"
	if status == http.StatusRequestTimeout {
		detail = "the request body came too slowly"
	}
	WriteProblem(w, Problem{Title: http.StatusText(status), Status: status, Detail: detail})
}

// begin is ReverseProxy's ModifyResponse: an answer is about to be passed on.
func (u *Upstream) begin(res *http.Response) error {
	call := res.Request.Context().Value(exchangeKey{}).(*exchange).call
	call.By = ByUpstream
	call.answering(res.StatusCode)
	call.Quotas.Tell(res.Header, call.Work, nil)
	if len(res.Trailer) > 0 {
		// HTTP/2 sends trailers after a body of announced length, HTTP/1 only
		// after chunks.
		res.Header.Del("Content-Length")
	}
	return nil
}
