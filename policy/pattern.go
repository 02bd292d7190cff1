package policy

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/weir-go/weir/internal/fault"
)

// methods are the methods that a pattern is likely to name, to tell a forgotten
// space from a host.
var methods = []string{
	http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch,
	http.MethodDelete, http.MethodConnect, http.MethodOptions, http.MethodTrace,
}

// KnownMethod reports whether a method is one that most servers know. Methods are in upper case.
func KnownMethod(method string) bool { return slices.Contains(methods, method) }

// MethodMeant returns the method that the one of a pattern was probably meant to be. It returns "" if the pattern has no
// method, or one that is known or like none that is.
func MethodMeant(pattern string) string {
	method, _, ok := strings.Cut(pattern, " ")
	if !ok || KnownMethod(method) {
		return ""
	}
	return fault.Nearest(method, methods)
}

// patternFault says what is wrong with a pattern by itself: what ServeMux
// refuses, and what it accepts but could never match here.
func patternFault(pattern string) (problem, instead string) {
	problem, instead = plainFault(pattern)
	if problem == "" {
		return "", ""
	}
	meant := PatternMeant(pattern)
	if meant != "" {
		instead = "write " + meant
	}
	if foreignMatcher.MatchString(pattern) || foreignRule.MatchString(pattern) {
		problem = fmt.Sprintf("%.80q is a rule of another proxy", pattern)
		if meant == "" {
			instead = "write [METHOD ][HOST]/PATH; a path that ends with / matches everything below it"
		}
	}
	return problem, instead
}

// plainFault is patternFault without a look at other products.
func plainFault(pattern string) (problem, instead string) {
	if pattern == "" {
		return "the pattern is empty", "write \"/\" to match everything"
	}
	method, rest := "", pattern
	if i := strings.IndexAny(pattern, " \t"); i >= 0 {
		method, rest = pattern[:i], strings.TrimLeft(pattern[i:], " \t")
	}
	if i := strings.IndexByte(method, '/'); i >= 0 {
		return fmt.Sprintf("the path %q has a space in it", pattern[i:]), "write %20 for a space"
	}
	slash := strings.IndexByte(rest, '/')
	if slash < 0 {
		return fmt.Sprintf("%q has no path", pattern), fmt.Sprintf("write %q", strings.TrimSpace(method+" /"+rest))
	}
	host, path := rest[:slash], rest[slash:]
	var noEscape url.EscapeError
	_, err := url.PathUnescape(path)
	switch {
	case strings.ContainsAny(method+host, curlyQuotes):
		return fmt.Sprintf("%q has typographic quotes, which are a part of the text", pattern), "write straight quotes, or none"
	case method != strings.ToUpper(method):
		return fmt.Sprintf("the method %s is not in upper case, and methods are compared by letter", method),
			fmt.Sprintf("write %q", strings.ToUpper(method)+" "+rest)
	case strings.Contains(path, "?"):
		path, _, _ := strings.Cut(path, "?")
		return "a pattern matches the path, not the query", fmt.Sprintf("write %q", strings.TrimSpace(method+" "+host+path))
	case strings.Contains(path, "#"):
		path, _, _ := strings.Cut(path, "#")
		return "a pattern matches the path, and no client sends what follows a #",
			fmt.Sprintf("write %q, or %%23 for a # in the path", strings.TrimSpace(method+" "+host+path))
	case errors.As(err, &noEscape):
		return fmt.Sprintf("%q in the path is not a percent sign with two hexadecimal digits", string(noEscape)), "write %25 for a percent sign"
	case strings.ContainsAny(path, " \t"):
		return fmt.Sprintf("the path %q has a space in it", path), "write %20 for a space"
	case method == "" && slices.Contains(methods, host):
		return fmt.Sprintf("a space is missing between the method %s and the path", host), fmt.Sprintf("write %q", host+" "+path)
	case strings.ContainsAny(host, " \t"):
		return fmt.Sprintf("%q has more than one word before the path", pattern), fmt.Sprintf("write %q", strings.TrimSpace(method+" "+strings.TrimSpace(host)+path))
	case !isPrintable(host):
		return fmt.Sprintf("the host %s would match nothing: hosts are compared in ASCII, as clients send them", host),
			"write the name in Punycode, such as xn--bcher-kva.example for bücher.example"
	case host != hostname(host) && !strings.Contains(host, "{"):
		return fmt.Sprintf("the host %s would match nothing: hosts are compared in lower case and without port", host),
			fmt.Sprintf("write %q", strings.TrimSpace(method+" "+hostname(host)+path))
	case strings.Contains(host, ":") && !isIPv6(host):
		name, _, _ := strings.Cut(host, ":")
		return fmt.Sprintf("the host %s would match nothing: requests to a host with several colons are refused", host),
			fmt.Sprintf("write %q", strings.TrimSpace(method+" "+name+path))
	case path != cleanPath(path):
		return fmt.Sprintf("%q would match nothing: paths are compared without empty, . and .. segments", path),
			fmt.Sprintf("write %q", strings.TrimSpace(method+" "+host+cleanPath(path)))
	}
	if err = register(http.NewServeMux(), pattern, endpoint{}); err != nil {
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

// PatternMeant translates a pattern that is written as in nginx, Caddy, Traefik, Envoy or HAProxy,
// or as in a router of another language. The patterns it returns are in quotes, fit for a message.
// It returns "" if the pattern looks like none of those, or if nothing here says the same.
func PatternMeant(pattern string) string {
	var meant []string
	for _, one := range alternatives(strings.TrimSpace(pattern)) {
		if m := translate(one); m != "" {
			if problem, _ := plainFault(m); problem == "" && !slices.Contains(meant, strconv.Quote(m)) {
				meant = append(meant, strconv.Quote(m))
			}
		}
	}
	if len(meant) == 1 && meant[0] == strconv.Quote(normalPattern(pattern)) || len(meant) > mostMeant {
		return ""
	}
	return strings.Join(meant, " and ")
}

// curlyQuotes are the quotes of word processors. YAML takes them for letters.
const curlyQuotes = "“”„‟‘’‚‛«»"

// unquoted returns a text without typographic quotes around it.
func unquoted(text string) string {
	if strings.IndexAny(text, curlyQuotes) == 0 {
		return strings.Trim(text, curlyQuotes)
	}
	return text
}

// mostMeant is how many patterns a message names.
const mostMeant = 4

var (
	// foreignMatcher is a rule of Traefik, such as PathPrefix(`/v1`).
	foreignMatcher = regexp.MustCompile(`\b(Host|HostSNI|HostRegexp|PathPrefix|Path|PathRegexp|Method|Methods|Header|Headers|HeaderRegexp|Query|QueryRegexp|ClientIP)\(`)
	// foreignRule is a regular expression, or the name of what a rule looks at.
	foreignRule = regexp.MustCompile(`^(~|\^|=|!|path_|hdr|host\s|location\s|prefix:|handle)|[)|\\]|\[[^\]]*\][+*]?`)
	foreignHost = regexp.MustCompile(`^(?:hdr\(host\)|req\.hdr\(host\)|host|server_name)\s+(?:-i\s+)?(\S+)$`)
	matcherWord = regexp.MustCompile(`^[\x60"']([^\x60"']*)[\x60"']`)
	// foreignStart is what other products write before a path.
	foreignStart = regexp.MustCompile(`^(location|path_beg|path_dir|path_reg|path|prefix:|handle_path|handle|route|uri|~\*|\^~|=|~)\s*(-i\s+|-m\s+\w+\s+)?`)
	exactStart   = regexp.MustCompile(`^(=|path\s|route|uri|handle\s)`) // of those, what means no more than one path
	methodList   = regexp.MustCompile(`^([A-Za-z]+(?:\s*[,|]\s*[A-Za-z]+)+|` + severalMethods + `)\s+(\S+)$`)
	pathMethod   = regexp.MustCompile(`^(/\S*)\s+([A-Za-z]+)$`)
	anyMethod    = regexp.MustCompile(`^(?i:any|all|\*)\s+`)
	// regexpEnd is the end of a regular expression that matches all below a path.
	regexpEnd   = regexp.MustCompile(`(/?\(\?:?/\.\*\)\??|\(/\|\$\)(\(\.\*\))?|/?\(/?\.[*+]\)\??|/?\.[*+]|/?\*{1,2})\$?$`)
	segmentName = regexp.MustCompile(`^(?::([A-Za-z_]\w*)\??|<(?:\w+:)?([A-Za-z_]\w*)>|\{([A-Za-z_]\w*):[^{}]*\}|\[([A-Za-z_]\w*)\])$`)
	restName    = regexp.MustCompile(`^(?:\*([A-Za-z_]\w*)|\{([A-Za-z_]\w*)[+*]\}|\{\*\*?([A-Za-z_]\w*)\}|\[\.\.\.([A-Za-z_]\w*)\]|<path:([A-Za-z_]\w*)>)$`)
)

// severalMethods is a regular expression for known methods with nothing between them but space.
var severalMethods = `(?i:(?:` + strings.Join(methods, "|") + `)(?:\s+(?:` + strings.Join(methods, "|") + `))+)`

// alternatives splits what is several patterns here: rules joined by ||, and lists of methods.
func alternatives(pattern string) []string {
	if foreignMatcher.MatchString(pattern) {
		return strings.Split(pattern, "||")
	}
	if m := methodList.FindStringSubmatch(pattern); m != nil {
		var list []string
		for method := range strings.FieldsFuncSeq(m[1], func(r rune) bool { return strings.ContainsRune(",| \t", r) }) {
			list = append(list, strings.ToUpper(method)+" "+m[2])
		}
		return list
	}
	return []string{pattern}
}

// translate returns one pattern as it is written here, empty if it cannot tell.
func translate(text string) string {
	text = unquoted(text)
	if foreignMatcher.MatchString(text) {
		return fromMatchers(text)
	}
	if m := foreignHost.FindStringSubmatch(text); m != nil {
		text = hostname(m[1]) + "/"
	}
	if m := pathMethod.FindStringSubmatch(text); m != nil && slices.Contains(methods, strings.ToUpper(m[2])) {
		text = strings.ToUpper(m[2]) + " " + m[1]
	}
	text = anyMethod.ReplaceAllString(text, "")
	method, rest := "", text
	if word, behind, ok := strings.Cut(text, " "); ok && slices.Contains(methods, strings.ToUpper(word)) {
		method, rest = strings.ToUpper(word)+" ", unquoted(strings.TrimSpace(behind))
	} else if slices.Contains(methods, text) {
		return text + " /"
	}
	if before, path, ok := strings.Cut(rest, "/"); ok && slices.Contains(methods, before) { // a space is missing
		method, rest = before+" ", "/"+path
	}
	bare := foreignStart.ReplaceAllString(rest, "")
	if bare == "" || bare != rest && !strings.ContainsAny(bare[:1], "/^*\\.") {
		bare = rest
	}
	below := strings.HasPrefix(bare, "^") || bare != rest && !exactStart.MatchString(rest)
	host, path := splitHost(bare)
	if strings.Contains(host, "*") || host == "" && path == "" {
		return ""
	}
	exact := strings.HasSuffix(path, "$")
	if path = plainPath(path); path == "" {
		return ""
	}
	if below && !exact && !strings.HasSuffix(path, "/") && !strings.HasSuffix(path, "}") {
		path += "/"
	}
	return method + host + path
}

// splitHost separates host and path. A word without a dot, before or without a slash, is the
// first part of a path.
func splitHost(text string) (host, path string) {
	for _, scheme := range []string{"http://", "https://", "//"} {
		if behind, ok := strings.CutPrefix(text, scheme); ok {
			host, path, _ = strings.Cut(behind, "/")
			return hostname(host), "/" + path
		}
	}
	if strings.HasPrefix(text, "/") || strings.HasPrefix(text, "^") || strings.HasPrefix(text, "\\") {
		return "", text
	}
	host, path, slash := strings.Cut(text, "/")
	switch name := hostname(host); {
	case host == "*" && !slash:
		return "", "/"
	case host == "":
		return "", ""
	case strings.ContainsAny(host, ".:") || name == "localhost":
		return name, "/" + path
	case slash:
		return "", "/" + text
	}
	return "", "/" + text + "/"
}

// plainPath writes a path without regular expressions and with the wildcards of net/http; empty
// if it cannot tell.
func plainPath(path string) string {
	path = strings.TrimPrefix(path, "^")
	path, _, _ = strings.Cut(path, "?x")
	exact := strings.HasSuffix(path, "$") && !strings.HasSuffix(path, "{$}")
	if end := regexpEnd.FindStringIndex(path); end != nil {
		path, exact = strings.TrimSuffix(path[:end[0]], "/")+"/", false
	}
	if exact {
		path = strings.TrimSuffix(path, "$")
	}
	segments := strings.Split(path, "/")
	for i, s := range segments {
		switch name, rest := submatch(segmentName, s), submatch(restName, s); {
		case rest != "" && i == len(segments)-1:
			segments[i] = "{" + rest + "...}"
		case rest != "":
			return ""
		case name != "":
			segments[i] = "{" + name + "}"
		case s == "*":
			segments[i] = "{any" + strconv.Itoa(i) + "}"
		case strings.ContainsAny(s, "^*()[]|+\\<>") || strings.Contains(s, "?") && !strings.HasPrefix(s, "?"):
			return ""
		}
	}
	path = strings.Join(segments, "/")
	if !strings.HasPrefix(path, "/") {
		return ""
	}
	return cleanPath(path)
}

func submatch(re *regexp.Regexp, text string) string {
	for i, m := range re.FindStringSubmatch(text) {
		if i > 0 && m != "" {
			return m
		}
	}
	return ""
}

// fromMatchers translates a rule of Traefik with a host, a path and a method, each at most once.
func fromMatchers(rule string) string {
	if strings.ContainsAny(rule, "!") {
		return ""
	}
	host, path, method := "", "", ""
	for _, at := range foreignMatcher.FindAllStringSubmatchIndex(rule, -1) {
		kind := rule[at[2]:at[3]]
		word := matcherWord.FindStringSubmatch(strings.TrimSpace(rule[at[1]:]))
		if word == nil {
			return ""
		}
		switch kind {
		case "Host":
			host = hostname(word[1])
		case "Path":
			path = plainPath(word[1])
		case "PathPrefix":
			path = plainPath(strings.TrimSuffix(word[1], "/") + "/")
		case "Method", "Methods":
			method = strings.ToUpper(word[1]) + " "
		default:
			return ""
		}
	}
	if path == "" {
		path = "/"
	}
	return method + host + path
}
