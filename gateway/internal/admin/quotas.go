package admin

import (
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/weir-go/weir/gateway/internal/quotas"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/quota"
)

// QuotaAPI serves the rules of quotas that are set at run time, under /quotas:
//
//	GET    /quotas            the rules of all gates, those of the file too
//	GET    /quotas/{gate}     those of one
//	POST   /quotas            a [quotas.Change]: operations, all or none
//	PUT    /quotas/{gate}     {"rules": [...]}: these and no others; needs If-Match
//	DELETE /quotas/{gate}     all that were set at run time, or the one that the query
//	                          names, as in ?user=alice
//	POST   /quotas/{gate}/reset  fills the bucket that the query names, as in ?user=alice
//
// Answers have the ETag of the rules. A write with If-Match is carried out only if the rules
// still have that ETag. Whoever can reach the listener may read; [Writers] says who may write.
type QuotaAPI struct {
	Book    *quotas.Book
	Writers *Writers

	turns chan struct{} // one for each change in progress
}

// mostBody bounds the body of a write. It is enough for all rules, at 400 bytes each.
const mostBody = 4 << 20

// mostChanges is how many changes may be in progress: so many bodies are in memory at most.
const mostChanges = 4

func (a *QuotaAPI) register(mux *http.ServeMux) {
	a.turns = make(chan struct{}, mostChanges)
	mux.HandleFunc("GET /quotas", func(w http.ResponseWriter, _ *http.Request) { a.list(w, "") })
	mux.HandleFunc("GET /quotas/{gate}", func(w http.ResponseWriter, r *http.Request) { a.list(w, r.PathValue("gate")) })
	mux.HandleFunc("POST /quotas", a.changing(readChange))
	mux.HandleFunc("PUT /quotas/{gate}", a.changing(readReplacement))
	mux.HandleFunc("DELETE /quotas/{gate}", a.changing(readRemoval))
	mux.HandleFunc("POST /quotas/{gate}/reset", a.authorized(a.reset))
}

func (a *QuotaAPI) list(w http.ResponseWriter, gate string) {
	l := a.Book.List(gate)
	if gate != "" && len(l.Rules) == 0 && !slices.Contains(l.Gates, gate) {
		problem(w, http.StatusNotFound, fmt.Sprintf("there is no gate %.60q with a quota", gate), nil)
		return
	}
	w.Header().Set("ETag", `"`+l.ETag+`"`)
	writeJSON(w, l)
}

// author is who asks to write, and how that is known.
type author struct{ by, via string }

// authorized is a handler for clients that may write.
func (a *QuotaAPI) authorized(next func(http.ResponseWriter, *http.Request, author)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		by, via, err := a.Writers.who(r)
		if err != nil {
			a.Book.CountDenied()
			writeRequestError(w, err)
			return
		}
		next(w, r, author{by, via})
	}
}

// changing is a handler that decodes a change by read and carries it out. It waits for its turn
// before it reads the body. The listener's read time-out ends the turns of slow clients.
func (a *QuotaAPI) changing(read func(*http.Request) (quotas.Change, error)) http.HandlerFunc {
	return a.authorized(func(w http.ResponseWriter, r *http.Request, who author) {
		select {
		case a.turns <- struct{}{}:
			defer func() { <-a.turns }()
		case <-r.Context().Done():
			return // nobody waits for it
		}
		r.Body = http.MaxBytesReader(w, r.Body, mostBody)
		c, err := read(r)
		if err == nil {
			c.By, c.Via = who.by, who.via
			c.IfMatch, err = entityTag(r.Header.Values("If-Match"))
		}
		if err != nil {
			a.Book.LogRefused(who.by, who.via, err)
			writeRequestError(w, err)
			return
		}
		res, err := a.Book.Change(r.Context(), c)
		if res.ETag != "" {
			w.Header().Set("ETag", `"`+res.ETag+`"`)
		}
		if err != nil {
			writeChangeError(w, err)
			return
		}
		writeJSON(w, res)
	})
}

// requestError is what is wrong with the form of a request.
type requestError struct {
	status int
	text   string
}

func (e *requestError) Error() string { return e.text }

func badRequest(format string, args ...any) error {
	return &requestError{http.StatusBadRequest, fmt.Sprintf(format, args...)}
}

// readChange decodes the body of POST.
func readChange(r *http.Request) (c quotas.Change, err error) {
	return c, body(r, &c)
}

// readReplacement decodes the body of PUT.
func readReplacement(r *http.Request) (c quotas.Change, err error) {
	if len(r.Header.Values("If-Match")) == 0 {
		return c, &requestError{http.StatusPreconditionRequired, "PUT replaces all rules, also those that somebody else may set now; send If-Match with the ETag of a GET, or POST single operations"}
	}
	var given struct {
		Rules        []policy.QuotaRuleSpec `json:"rules"`
		ValidateOnly bool                   `json:"validate_only"`
	}
	if err := body(r, &given); err != nil {
		return c, err
	}
	if given.Rules == nil {
		return c, badRequest(`rules is missing; write {"rules": [...]}, or DELETE to remove all`)
	}
	c.ValidateOnly = given.ValidateOnly
	gate := r.PathValue("gate")
	c.Ops = append(c.Ops, quotas.Op{Gate: gate, Replace: given.Rules})
	return c, nil
}

// readRemoval decodes the query of DELETE.
func readRemoval(r *http.Request) (c quotas.Change, err error) {
	rule, named, err := readParts(r)
	if err != nil {
		return c, err
	}
	if !named && (r.URL.ForceQuery || r.URL.RawQuery != "") {
		return c, badRequest("the query names no rule; leave out the question mark to delete all rules")
	}
	op := quotas.Op{Gate: r.PathValue("gate"), Clear: !named}
	if named {
		op.Delete = &rule
	}
	c.Ops = []quotas.Op{op}
	return c, nil
}

// readParts decodes a query of parts of an identity; named says whether it has any.
func readParts(r *http.Request) (rule quota.Rule, named bool, err error) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return rule, false, badRequest("the query cannot be decoded: %v", err)
	}
	for key, values := range query {
		part := rule.Part(key)
		switch {
		case part == nil:
			return rule, false, badRequest("%.40q in the query is not known; it may have %s", key, strings.Join(quota.Parts(), ", "))
		case len(values) > 1 || values[0] == "":
			return rule, false, badRequest("%s in the query needs exactly one value", key)
		}
		*part = quota.Match(values[0])
	}
	return rule, len(query) > 0, nil
}

// body decodes JSON. The request has to say that it is JSON, which a form on a web page cannot.
func body(r *http.Request, v any) error {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return &requestError{http.StatusUnsupportedMediaType, "the body must be JSON and say so; send Content-Type: application/json"}
	}
	data, err := io.ReadAll(r.Body)
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return &requestError{http.StatusRequestEntityTooLarge, fmt.Sprintf("the body is larger than %d bytes; split it into several requests", large.Limit)}
	case err != nil:
		return badRequest("the body broke off: %v", err)
	}
	if err := quotas.Decode(data, v); err != nil {
		return badRequest("%v", err)
	}
	return nil
}

// entityTag parses If-Match: one strong tag, or * for any.
func entityTag(values []string) (string, error) {
	if len(values) == 0 {
		return "", nil
	}
	text := strings.TrimSpace(values[0])
	if text == "*" && len(values) == 1 {
		return "*", nil
	}
	inner, found := strings.CutPrefix(text, `"`)
	inner, ended := strings.CutSuffix(inner, `"`)
	if len(values) > 1 || !found || !ended || inner == "" || strings.ContainsAny(inner, `",`) {
		return "", badRequest(`If-Match must be one ETag as an answer had it, in its quotes; a weak one (W/"...") never matches`)
	}
	return inner, nil
}

// writeRequestError answers a request that is wrong, or of somebody who may not write.
func writeRequestError(w http.ResponseWriter, err error) {
	status := http.StatusBadRequest
	var wrong *requestError
	if errors.As(err, &wrong) {
		status = wrong.status
	}
	if status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	problem(w, status, err.Error(), nil)
}

// writeChangeError answers why a change was not made.
func writeChangeError(w http.ResponseWriter, err error) {
	var faults quotas.Faults
	switch {
	case errors.As(err, &faults):
		status := http.StatusUnprocessableEntity
		if len(faults) == 1 && faults[0].Missing {
			status = http.StatusNotFound
		}
		problem(w, status, "nothing was changed: "+faults.Error(), faults)
	case errors.Is(err, quotas.ErrPrecondition):
		problem(w, http.StatusPreconditionFailed, err.Error(), nil)
	case errors.Is(err, quotas.ErrNowhere), errors.Is(err, quotas.ErrChanged):
		problem(w, http.StatusConflict, err.Error(), nil)
	case errors.Is(err, quotas.ErrUnchanged):
		problem(w, http.StatusServiceUnavailable, err.Error(), nil)
	default:
		problem(w, http.StatusServiceUnavailable, "the change may have been kept; read the rules before you repeat it: "+err.Error(), nil)
	}
}

// problem answers with a problem document (RFC 9457).
func problem(w http.ResponseWriter, status int, detail string, faults quotas.Faults) {
	writeDocument(w, status, "application/problem+json", struct {
		Title  string        `json:"title"`
		Status int           `json:"status"`
		Detail string        `json:"detail"`
		Faults quotas.Faults `json:"faults,omitempty"`
	}{http.StatusText(status), status, detail, faults})
}

// reset fills a bucket. The query names its owner, as for DELETE; there is no body.
func (a *QuotaAPI) reset(w http.ResponseWriter, r *http.Request, who author) {
	whose, _, err := readParts(r)
	if err == nil && r.ContentLength != 0 {
		err = badRequest("a reset has no body; name the owner of the bucket in the query, as in ?user=alice")
	}
	if err != nil {
		a.Book.LogRefused(who.by, who.via, err)
		writeRequestError(w, err)
		return
	}
	res, err := a.Book.Reset(r.Context(), quotas.Reset{Gate: r.PathValue("gate"), Whose: whose, By: who.by, Via: who.via})
	var faults quotas.Faults
	switch {
	case errors.As(err, &faults):
		writeChangeError(w, err)
	case err != nil:
		problem(w, http.StatusServiceUnavailable, err.Error(), nil)
	default:
		writeJSON(w, res)
	}
}
