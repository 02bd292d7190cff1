package config

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/weir-go/weir/internal/fault"
)

// someTarget is the example in messages.
const someTarget = "http://127.0.0.1:3000"

// checkTarget says what is wrong with the URL of an upstream server.
func checkTarget(target string) error {
	u, err := url.Parse(target)
	switch {
	case target == "":
		return fault.New(`"" is empty`, "write a URL, for instance "+someTarget)
	case strings.ContainsAny(target, "${"):
		return fault.New(fmt.Sprintf("%s has a variable that is not replaced", quote(target)), "write "+bracedVariable(target))
	case err == nil && u.Scheme == "unix":
		return checkSocket(u)
	case err != nil || !slices.Contains([]string{"http", "https", "h2c"}, u.Scheme):
		return fault.New(fmt.Sprintf("%s is not an http, https, h2c or unix URL", quote(target)), "write "+targetMeant(target))
	case u.Host == "" || u.Hostname() == "":
		return fault.New(fmt.Sprintf("%s names no host", quote(target)), "write "+targetMeant(target))
	case u.Hostname() == "unix":
		return fault.New(fmt.Sprintf("%s names the host unix", quote(target)), "write "+targetMeant(target)+" for a Unix socket")
	case u.User != nil:
		return fault.New(fmt.Sprintf("%s carries a user name", quote(u.Redacted())), "leave it out, the gateway passes credentials through from the client")
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return fault.New(fmt.Sprintf("%s has a query or fragment", quote(target)), "write only scheme, host, port and path")
	case strings.Contains(u.Hostname(), "*"):
		return fault.New(fmt.Sprintf("%s has a wildcard for a host", quote(target)), "write the address of one server")
	}
	if p := u.Port(); p != "" {
		if _, err := strconv.ParseUint(p, 10, 16); err != nil || p == "0" {
			return fault.New(fmt.Sprintf("%s has the port %s, which is not from 1 to 65535", quote(target), p), fmt.Sprintf("write for instance %s://%s:3000", u.Scheme, u.Hostname()))
		}
	}
	return nil
}

// checkSocket says what is wrong with a Unix socket as a target.
func checkSocket(u *url.URL) error {
	switch path := u.Host + u.Path; {
	case u.Opaque == "" && u.Path == "" && u.Host == "":
		return fault.New("names no socket", "write unix:/run/app.sock")
	case u.Opaque != "":
		return fault.New(fmt.Sprintf("%s is not absolute", quote(u.String())), "write unix: and a path that begins with /")
	case u.Host != "":
		return fault.New(fmt.Sprintf("%s names a host", quote(u.String())), "write unix:/"+path)
	case u.RawQuery != "" || u.Fragment != "":
		return fault.New(fmt.Sprintf("%s has a query or fragment", quote(u.String())), "write only the path of the socket")
	case strings.Contains(u.Path, ":"):
		socket, _, _ := strings.Cut(u.Path, ":")
		return fault.New(fmt.Sprintf("%s has something behind the socket", quote(u.String())), "write unix:"+socket)
	case len(u.Path) > longestSocket:
		return fault.New(fmt.Sprintf("a path of %d bytes is too long for a socket", len(u.Path)), "write a shorter one, such as unix:/run/app.sock")
	}
	return nil
}

// otherSchemes are schemes of other products, and what they are here.
var otherSchemes = map[string]string{
	"tcp": "http", "h2": "h2c", "grpc": "h2c", "grpcs": "https", "ws": "http", "wss": "https", "htpp": "http", "htp": "http", "htttp": "http", "hhtp": "http", "httpss": "https", "tls": "https",
}

// notHTTP are protocols that no gateway of HTTP can speak.
var notHTTP = []string{"fastcgi", "fcgi", "uwsgi", "scgi", "ajp", "memcached", "redis", "postgres", "mysql", "file", "srv", "udp"}

// targetMeant guesses the URL that was meant. It begins with one that is right.
func targetMeant(text string) string {
	text = strings.TrimSuffix(strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(text), "server ")), ";")
	if path := socketMeant(text); path != "" {
		return "unix:" + path
	}
	scheme, rest, has := strings.Cut(text, "://")
	lower := strings.ToLower(scheme)
	switch {
	case has && otherSchemes[lower] != "":
		return otherSchemes[lower] + "://" + strings.ToLower(rest)
	case has && slices.Contains(notHTTP, lower):
		return someTarget + ": the address of a server that speaks HTTP"
	case has && rest == "":
		return someTarget
	case has:
		return "for instance " + someTarget
	}
	for _, scheme := range []string{"https", "http"} { // http:/host, http//host, http:host
		if behind, ok := strings.CutPrefix(lower, scheme); ok && strings.Trim(behind, ":/") != "" && strings.ContainsAny(behind[:1], ":/") {
			return scheme + "://" + strings.TrimLeft(behind, ":/")
		}
	}
	text = strings.TrimPrefix(text, "//")
	if port := strings.TrimPrefix(text, ":"); port != "" {
		if _, err := strconv.ParseUint(port, 10, 16); err == nil {
			return "http://127.0.0.1:" + port
		}
	}
	if addr, err := netip.ParseAddr(text); err == nil && addr.Is6() {
		return "http://[" + text + "]:3000"
	}
	if hostPort.MatchString(text) {
		return "http://" + text
	}
	return "for instance " + someTarget
}

// hostPort is a host with or without a port, and perhaps a path.
var hostPort = regexp.MustCompile(`^(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9_.-]+)(:[0-9]{1,5})?(/[^\s?#]*)?$`)

// socketMeant returns the path of a socket as other products write it, empty if it is none:
// unix//run/app.sock, http://unix:/run/app.sock:/ and /run/app.sock.
func socketMeant(text string) string {
	for _, prefix := range []string{"http://unix:", "http+unix://", "unix+http://", "unix://", "unix@", "unix/", "unix:"} {
		if behind, ok := strings.CutPrefix(text, prefix); ok && strings.Trim(behind, "/:") != "" {
			path, _, _ := strings.Cut("/"+strings.TrimLeft(behind, "/"), ":")
			return path
		}
	}
	if strings.HasPrefix(text, "/") && !strings.HasPrefix(text, "//") && strings.HasSuffix(text, ".sock") {
		return text
	}
	return ""
}

var (
	templateVariable = regexp.MustCompile(`\{\{\s*(?:env\s+)?["']?\$?\.?(?:Env\.)?([A-Za-z_][A-Za-z0-9_]*)["']?\s*\}\}`)
	templateMark     = regexp.MustCompile("\x00<([A-Za-z0-9_]*)>")
	caddyVariable    = regexp.MustCompile(`\{\$?(?:env\.)?([A-Za-z_][A-Za-z0-9_]*)(?::([^}]*))?\}`)
	shellVariable    = regexp.MustCompile(`\$([A-Za-z_][A-Za-z0-9_]*)`)
)

// bracedVariable writes the variables in a text as they are written here. Other products write
// $NAME, {$NAME:default} and {env.NAME}.
func bracedVariable(text string) string {
	text = templateVariable.ReplaceAllString(text, "\x00<$1>")
	text = caddyVariable.ReplaceAllStringFunc(text, func(v string) string {
		m := caddyVariable.FindStringSubmatch(v)
		if m[2] != "" {
			return "\x00{" + m[1] + ":-" + m[2] + "}"
		}
		return "\x00{" + m[1] + "}"
	})
	text = strings.ReplaceAll(shellVariable.ReplaceAllString(text, "$${$1}"), "\x00{", "${")
	return templateMark.ReplaceAllString(text, "$${$1}")
}

// Guess implements setting.Guesser: a URL in the place of an upstream is its target.
func (u *Upstream) Guess(scalar string) string {
	switch {
	case strings.ContainsAny(scalar, " =\n"):
		return ""
	case checkTarget(scalar) != nil:
		if scalar = targetMeant(scalar); strings.Contains(scalar, " ") {
			scalar = someTarget
		}
	}
	return "{targets: [" + flowText(scalar) + "]}"
}

// Guess implements setting.Guesser: an address in the place of a listener is its address.
func (l *Listener) Guess(scalar string) string {
	if strings.ContainsAny(scalar, " =\n") {
		return ""
	}
	return "{address: " + flowText(addressMeant(scalar)) + "}"
}

// addressMeant guesses the address that was meant.
func addressMeant(text string) string {
	if checkAddress(text) == nil {
		return text
	}
	if _, err := strconv.ParseUint(text, 10, 16); err == nil {
		return ":" + text
	}
	if _, rest, ok := strings.Cut(text, "://"); ok {
		rest = strings.TrimSuffix(rest, "/")
		if _, _, err := net.SplitHostPort(rest); err == nil && checkAddress(rest) == nil {
			return rest
		}
	}
	return DefaultListen
}

var plainInFlow = regexp.MustCompile(`^[A-Za-z0-9/][A-Za-z0-9/._:%~+-]*$`)

// flowText writes a text so that it can stand inside brackets.
func flowText(s string) string {
	if plainInFlow.MatchString(s) {
		return s
	}
	return strconv.Quote(s)
}
