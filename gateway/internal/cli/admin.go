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
	"time"

	"github.com/spf13/cobra"

	"github.com/weir-go/weir/gateway/internal/config"
)

// patience is how long a command waits for an answer, and mostAnswer how much it reads.
const (
	patience   = 5 * time.Second
	mostAnswer = 16 << 20
)

// adminFlag adds the flag for the address of the admin listener.
func adminFlag(cmd *cobra.Command, at *string) {
	cmd.Flags().StringVar(at, "admin", config.DefaultAdmin, "address of the gateway's admin listener, or unix:PATH of its socket")
}

// answer is the answer of an admin listener.
type answer struct {
	*http.Response // without its body
	from           string
	text           []byte
}

// decode decodes the answer into v, if it has a field that every gateway sends. So no other service is
// taken for a gateway. Its errors name the listener.
func (a *answer) decode(v any, field string) error {
	var fields map[string]json.RawMessage
	err := json.Unmarshal(a.text, &fields)
	if _, has := fields[field]; err == nil && !has {
		err = fmt.Errorf("its answer has no %q; set --admin to the address of an admin listener, such as %s", field, config.DefaultAdmin)
	}
	if err == nil {
		err = json.Unmarshal(a.text, v)
	}
	if err != nil {
		return fmt.Errorf("%s does not answer as a gateway does: %w", a.from, err)
	}
	return nil
}

// problem is the error of an answer that is not as hoped for.
func (a *answer) problem() error {
	var doc struct {
		Detail string `json:"detail"`
	}
	if json.Unmarshal(a.text, &doc) != nil || doc.Detail == "" {
		return fmt.Errorf("%s answers %s; is it the admin listener of a gateway, and as new as this weir?", a.from, a.Status)
	}
	return errors.New(doc.Detail)
}

// tokenHeader returns the header of a write with the token of a file, and none without one.
func tokenHeader(file string) (http.Header, error) {
	h := http.Header{}
	if file == "" {
		return h, nil
	}
	token, err := readToken(file)
	if err != nil {
		return nil, usage("--token-file: %v", err)
	}
	text := strings.TrimSpace(string(token))
	if strings.ContainsAny(text, " \r\n\t\x00") || text == "" || len(token) > longestToken {
		return nil, usage("--token-file %s does not hold one token; it is one word", file)
	}
	h.Set("Authorization", "Bearer "+text)
	return h, nil
}

// longestToken is the largest file of a token, in bytes. A gateway takes none that is larger.
const longestToken = 4096

// readToken reads as much of a file as shows that it is too large.
func readToken(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return io.ReadAll(io.LimitReader(f, longestToken+1))
}

// askAdmin sends a request to the admin listener at host:port, a URL or unix:PATH, and
// returns the answer, whatever its status is. header and body may be nil.
func askAdmin(ctx context.Context, at, method, path string, header http.Header, body []byte) (*answer, error) {
	base, client := adminClient(at)
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, method, base+path, bytes.NewReader(body))
	if err != nil || req.URL.Host == "" {
		return nil, usage("--admin %q is not an address; write host:port, for instance %s, or unix:/run/weir/admin.sock", at, config.DefaultAdmin)
	}
	for name, values := range header {
		req.Header[name] = values
	}
	asked := time.Now()
	late := func(err error) error { // in words, where the time is over
		if errors.Is(err, context.DeadlineExceeded) {
			return lateError{time.Since(asked)}
		}
		return err
	}
	res, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("no gateway answers at %s: %w; set --admin to the address of its admin listener, or to unix:PATH of its socket", at, late(errors.Unwrap(err)))
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, mostAnswer))
	if err != nil {
		return nil, fmt.Errorf("the answer of %s %w: %w", at, errBrokeOff, late(err))
	}
	return &answer{res, at, text}, nil
}

// errBrokeOff is the error of an answer that ended too early.
var errBrokeOff = errors.New("broke off")

// lateError is the error of an answer that has not come in time.
type lateError struct{ after time.Duration }

// Error says how long the answer was waited for.
func (e lateError) Error() string {
	return fmt.Sprintf("there was no whole answer within %v", e.after.Round(100*time.Millisecond))
}

// Unwrap returns the error of the context that ended.
func (lateError) Unwrap() error { return context.DeadlineExceeded }

// adminClient returns a client for an address, and the URL that stands before each path.
func adminClient(at string) (base string, client *http.Client) {
	if path, ok := strings.CutPrefix(at, "unix:"); ok {
		dialer := new(net.Dialer)
		return "http://localhost", &http.Client{Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return dialer.DialContext(ctx, "unix", strings.TrimPrefix(path, "//"))
			},
		}}
	}
	scheme, host, isURL := strings.Cut(at, "://")
	if !isURL {
		scheme, host = "http", at
	}
	// A redirect or a proxy would see the token.
	stay := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return scheme + "://" + strings.TrimSuffix(host, "/"), &http.Client{CheckRedirect: stay, Transport: new(http.Transport)}
}
