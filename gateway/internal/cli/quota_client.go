package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
)

// ask sends a request to the admin listener, with body as JSON unless it is nil, and
// returns the answer to it. The error says what the gateway has against it.
func (o *quotaOptions) ask(ctx context.Context, method, path string, body any) ([]byte, error) {
	header, err := o.header()
	if err != nil {
		return nil, err
	}
	var text []byte
	if body != nil {
		header.Set("Content-Type", "application/json")
		if text, err = json.Marshal(body); err != nil {
			return nil, err
		}
	}
	res, err := askAdmin(ctx, o.Admin, method, path, header, text)
	switch {
	case body != nil && (errors.Is(err, errBrokeOff) || errors.Is(err, context.DeadlineExceeded)):
		return nil, fmt.Errorf("%w; look by weir quota list whether it was done", err)
	case err != nil:
		return nil, err
	case res.StatusCode != http.StatusOK:
		return nil, o.refusal(res)
	}
	return res.text, nil
}

// header returns what the flags say in the header of a request.
func (o *quotaOptions) header() (http.Header, error) {
	h := http.Header{}
	if o.IfMatch != "" {
		h.Set("If-Match", `"`+strings.Trim(o.IfMatch, `"`)+`"`)
	}
	if o.TokenFile == "" {
		return h, nil
	}
	token, err := os.ReadFile(o.TokenFile)
	if err != nil {
		return nil, usage("--token-file: %v", err)
	}
	text := strings.TrimSpace(string(token))
	if strings.ContainsAny(text, " \r\n\t") || text == "" {
		return nil, usage("--token-file %s does not hold one token; it is one word", o.TokenFile)
	}
	h.Set("Authorization", "Bearer "+text)
	return h, nil
}

// refusal is the error of an answer that is not 200.
func (o *quotaOptions) refusal(res *answer) error {
	var doc struct {
		Detail string `json:"detail"`
	}
	if json.Unmarshal(res.text, &doc) != nil || doc.Detail == "" {
		return fmt.Errorf("%s answers %s; is it the admin listener of a gateway that knows quotas?", o.Admin, res.Status)
	}
	err := errors.New(doc.Detail)
	switch res.StatusCode {
	case http.StatusPreconditionFailed:
		return &ExitError{Code: exitConflict, Err: fmt.Errorf("%w (now %s)", err, res.Header.Get("ETag"))}
	case http.StatusUnauthorized:
		return fmt.Errorf("%w; --token-file names the file with the gateway's token", err)
	}
	return err
}
