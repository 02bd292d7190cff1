package policy

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// methods are the methods that a pattern is likely to name, to tell a forgotten
// space from a host.
var methods = []string{
	http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch,
	http.MethodDelete, http.MethodConnect, http.MethodOptions, http.MethodTrace,
}

// register adds a pattern to the mux and turns its panics into errors.
func register(mux *http.ServeMux, pattern string, h http.Handler) (err error) {
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("%v", fault)
		}
	}()
	mux.Handle(pattern, h)
	return nil
}

// patternFault says what is wrong with a pattern by itself: what ServeMux
// refuses, and what it accepts but could never match here.
func patternFault(pattern string) (problem, instead string) {
	if pattern == "" {
		return "the pattern is empty", "write \"/\" to match everything"
	}
	method, rest := "", pattern
	if i := strings.IndexAny(pattern, " \t"); i >= 0 {
		method, rest = pattern[:i], strings.TrimLeft(pattern[i:], " \t")
	}
	slash := strings.IndexByte(rest, '/')
	if slash < 0 {
		return fmt.Sprintf("%q has no path", pattern), fmt.Sprintf("write %q", strings.TrimSpace(method+" /"+rest))
	}
	host, path := rest[:slash], rest[slash:]
	switch {
	case method != strings.ToUpper(method):
		return fmt.Sprintf("the method %s is not in upper case, and methods are compared by letter", method),
			fmt.Sprintf("write %q", strings.ToUpper(method)+" "+rest)
	case strings.Contains(path, "?"):
		path, _, _ := strings.Cut(path, "?")
		return "a pattern matches the path, not the query", fmt.Sprintf("write %q", strings.TrimSpace(method+" "+host+path))
	case strings.ContainsAny(path, " \t"):
		return fmt.Sprintf("the path %q has a space in it", path), "write %20 for a space"
	case method == "" && slices.Contains(methods, host):
		return fmt.Sprintf("a space is missing between the method %s and the path", host), fmt.Sprintf("write %q", host+" "+path)
	case host != hostname(host) && !strings.Contains(host, "{"):
		return fmt.Sprintf("the host %s would match nothing: hosts are compared in lower case and without port", host),
			fmt.Sprintf("write %q", strings.TrimSpace(method+" "+hostname(host)+path))
	case path != cleanPath(path):
		return fmt.Sprintf("%q would match nothing: paths are compared without empty, . and .. segments", path),
			fmt.Sprintf("write %q", strings.TrimSpace(method+" "+host+cleanPath(path)))
	}
	if err := register(http.NewServeMux(), pattern, endpoint{}); err != nil {
		return muxProblem(err), "write [METHOD ][HOST]/PATH, with wildcards such as /v1/{name} or /files/{path...}"
	}
	return "", ""
}

// muxProblem is ServeMux's word on a pattern, without the parts about Go code.
func muxProblem(err error) string {
	text := err.Error()
	if _, after, ok := strings.Cut(text, "at offset "); ok {
		if _, after, ok := strings.Cut(after, ": "); ok {
			return after
		}
	}
	return strings.TrimPrefix(text, "http: ")
}

// mostCompared bounds the search for the pattern that another conflicts with, so
// that a file with thousands of them is refused in good time.
const mostCompared = 1000

// conflict explains why a pattern that is fine by itself cannot stand beside the
// earlier ones.
func (s *patterns) conflict(pattern string, err error) (problem, instead string) {
	for i, earlier := range s.earlier[:min(len(s.earlier), mostCompared)] {
		if normalPattern(pattern) == normalPattern(earlier) {
			return fmt.Sprintf("%q stands at %v already", pattern, s.at[i]), "leave one of them out"
		}
		pair := http.NewServeMux()
		if register(pair, earlier, endpoint{}) != nil || register(pair, pattern, endpoint{}) == nil {
			continue
		}
		_, why, _ := strings.Cut(err.Error(), "):\n")
		why = strings.Join(strings.Fields(why), " ")
		return strings.TrimSpace(fmt.Sprintf("%q conflicts with %q at %v: %s", pattern, earlier, s.at[i], strings.TrimSuffix(why, "."))),
			"make one of them more specific than the other"
	}
	return muxProblem(err), "change one of the two patterns"
}

// normalPattern writes a pattern with single spaces.
func normalPattern(pattern string) string { return strings.Join(strings.Fields(pattern), " ") }
