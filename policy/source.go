package policy

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

// maxDocument bounds what is read from a file or an answer for one number.
const maxDocument = 64 << 10

// numberClient asks for numbers. It follows no redirects, which would let whoever answers
// choose what else this machine asks, and takes no more of a header than of a body.
var numberClient = &http.Client{
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	Transport: &http.Transport{
		Proxy: http.ProxyFromEnvironment, MaxResponseHeaderBytes: maxDocument, IdleConnTimeout: time.Minute,
	},
}

// fromFile reads the number that a file holds. A pipe is refused, because opening
// one waits for whoever writes to it, possibly for ever.
func (s SignalSpec) fromFile(context.Context) (float64, error) {
	switch info, err := os.Stat(s.Path); {
	case err != nil:
		return 0, err
	case !info.Mode().IsRegular():
		return 0, fmt.Errorf("%s is no regular file (%s)", s.Path, info.Mode())
	}
	f, err := os.Open(s.Path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return numberIn(f, s.Field)
}

// fromHTTP asks a server for a number.
func (s SignalSpec) fromHTTP(ctx context.Context) (float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL, nil)
	if err != nil {
		return 0, err
	}
	res, err := numberClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("the answer is %s, not 200 OK", res.Status)
	}
	return numberIn(res.Body, s.Field)
}

// numberIn returns the number that the text is, or the one at field in the JSON
// that it is.
func numberIn(r io.Reader, field string) (float64, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxDocument+1))
	switch {
	case err != nil:
		return 0, err
	case len(data) > maxDocument:
		return 0, fmt.Errorf("longer than %d bytes", maxDocument)
	case field == "":
		return parseNumber(strings.TrimSpace(string(data)))
	}
	var v any
	if err := json.Unmarshal(data, &v); err != nil {
		return 0, fmt.Errorf("no JSON: %w", err)
	}
	for step := range strings.SplitSeq(field, ".") {
		if v, err = stepInto(v, step); err != nil {
			return 0, fmt.Errorf("field %s: %w", field, err)
		}
	}
	switch v := v.(type) {
	case float64:
		return v, nil
	case string:
		return parseNumber(v)
	}
	return 0, fmt.Errorf("field %s: holds no number", field)
}

// stepInto returns the value under a key of an object, or at an index of a list.
func stepInto(v any, step string) (any, error) {
	switch v := v.(type) {
	case map[string]any:
		if in, ok := v[step]; ok {
			return in, nil
		}
	case []any:
		if i, err := strconv.Atoi(step); err == nil && i >= 0 && i < len(v) {
			return v[i], nil
		}
	}
	return nil, fmt.Errorf("there is no %q", step)
}

func parseNumber(text string) (float64, error) {
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return 0, fmt.Errorf("%.40q is no number", text)
	}
	return v, nil
}
