package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"

	"github.com/weir-go/weir/gateway/internal/config"
)

// ask sends a request to the admin listener, with body as JSON unless it is nil, and
// returns the answer to it. The error says what the gateway has against it.
func (o *quotaOptions) ask(ctx context.Context, method, path string, body any) ([]byte, error) {
	base, client, err := adminClient(o.Admin)
	if err != nil {
		return nil, err
	}
	defer client.CloseIdleConnections()
	var content io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		content = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, base+path, content)
	if err != nil {
		return nil, usage("--admin %q is no address; write host:port, for instance %s, or unix:/run/weir/admin.sock", o.Admin, config.DefaultAdmin)
	}
	if err := o.dress(req, body != nil); err != nil {
		return nil, err
	}
	res, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("no gateway answers at %s: %w; --admin names the address of its admin listener, or unix:PATH of its socket", o.Admin, errors.Unwrap(err))
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, most))
	if err != nil {
		return nil, fmt.Errorf("the answer of %s broke off: %w; look by weir quota list whether it was done", o.Admin, err)
	}
	if res.StatusCode != http.StatusOK {
		return nil, o.refusal(res, text)
	}
	return text, nil
}

// adminClient returns the URL before each path, and a client that gets there.
func adminClient(at string) (base string, client *http.Client, err error) {
	if path, ok := strings.CutPrefix(at, "unix:"); ok {
		dialer := new(net.Dialer)
		return "http://localhost", &http.Client{Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return dialer.DialContext(ctx, "unix", strings.TrimPrefix(path, "//"))
			},
		}}, nil
	}
	if !strings.Contains(at, "://") {
		at = "http://" + at
	}
	// A redirection or a proxy would get to see the token.
	stay := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return strings.TrimSuffix(at, "/"), &http.Client{CheckRedirect: stay, Transport: new(http.Transport)}, nil
}

// dress adds the header of a write.
func (o *quotaOptions) dress(req *http.Request, write bool) error {
	if write {
		req.Header.Set("Content-Type", "application/json")
	}
	if o.IfMatch != "" {
		req.Header.Set("If-Match", `"`+strings.Trim(o.IfMatch, `"`)+`"`)
	}
	if o.TokenFile == "" {
		return nil
	}
	token, err := os.ReadFile(o.TokenFile)
	if err != nil {
		return usage("--token-file: %v", err)
	}
	text := strings.TrimSpace(string(token))
	if strings.ContainsAny(text, " \r\n\t") || text == "" {
		return usage("--token-file %s does not hold one token; it is one word", o.TokenFile)
	}
	req.Header.Set("Authorization", "Bearer "+text)
	return nil
}

// refusal is the error of an answer that is not 200.
func (o *quotaOptions) refusal(res *http.Response, text []byte) error {
	var doc struct {
		Detail string `json:"detail"`
	}
	if json.Unmarshal(text, &doc) != nil || doc.Detail == "" {
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
