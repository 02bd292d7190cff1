//go:build integration

package integration

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/weir-go/weir/gateway/internal/await"
)

// smuggled is the request that an attacker hides in the body of another one.
const smuggled = "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"

// attack1 is what an attacker sends over HTTP/1, in one piece.
type attack1 struct {
	name, text string
	most       int // how many requests these bytes may be, by RFC 9112
}

// attacks1 are attempts to have two servers disagree on where a request ends, where it goes
// or what it is.
func attacks1() (all []attack1) {
	const post = "POST / HTTP/1.1\r\nHost: x\r\n"
	add := func(name, text string) { all = append(all, attack1{name, text, 1}) }
	two := func(name, text string) { all = append(all, attack1{name, text, 2}) }
	sized := func(body string) string { return fmt.Sprintf("Content-Length: %d\r\n", len(body)) }

	// Both lengths, and what one of two servers may not take for Transfer-Encoding.
	hidden := "0\r\n\r\n" + smuggled
	for _, te := range []string{
		"Transfer-Encoding : chunked", "Transfer-Encoding\t: chunked", " Transfer-Encoding: chunked", "X: y\r\n Transfer-Encoding: chunked",
		"X: y\rTransfer-Encoding: chunked", "X: y\r\r\nTransfer-Encoding: chunked", "Transfer-Encoding\r\n : chunked", "Transfer-Encoding",
		"Transfer-Encoding: xchunked", "Transfer-Encoding: chunk", "Transfer-Encoding: chunked, identity", "Transfer-Encoding: identity, chunked",
		"Transfer-Encoding: gzip, chunked", "Transfer-Encoding: chunked, chunked", "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
		"Transfer-Encoding: identity\r\nTransfer-Encoding: chunked", "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
		"Transfer-Encoding: identity", "Transfer-Encoding: \"chunked\"", "Transfer-Encoding: chunked;q=1", "Transfer-Encoding: ,chunked", "Transfer-Encoding: chunked,",
		"Transfer-Encoding: \x0bchunked", "Transfer-Encoding: chunked\x00", "Transfer-Encoding\x00: chunked", "\x0bTransfer-Encoding: chunked",
		"Transfer-Encoding: chun\r\n ked", "Transfer-Encoding:", "Transfer_Encoding: chunked", "TransferEncoding: chunked", "Transfer-Encodin\u0261: chunked",
		"Transfer-Encoding: \u212ahunked", "Content-Encoding: chunked", "TE: chunked", ": chunked", "Transfer-Encoding: chunked\x7f",
	} {
		add(fmt.Sprintf("lengths and %q", te), post+sized(hidden)+te+"\r\n\r\n"+hidden)
	}
	for _, te := range []string{
		"Transfer-Encoding: chunked", "Transfer-Encoding:chunked", "Transfer-Encoding:\tchunked", "Transfer-Encoding: chunked ", "transfer-encoding: CHUNKED",
		"X: y\nTransfer-Encoding: chunked", "Transfer-Encoding: \r\n chunked",
	} {
		two(fmt.Sprintf("chunks before lengths, %q", te), post+sized(hidden)+te+"\r\n\r\n"+hidden)
	}
	two("lengths shorter than chunks", post+"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n"+fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(smuggled), smuggled))
	add("chunks of HTTP/1.0", "POST / HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"+hidden)
	add("chunks of HTTP/1.0 that is kept", "POST / HTTP/1.0\r\nHost: x\r\nConnection: keep-alive\r\n"+sized(hidden)+"Transfer-Encoding: chunked\r\n\r\n"+hidden)

	// Lengths that are none, or two.
	for _, length := range []string{
		"+5", "-5", "0x5", "5 5", "5,5", "5, 6", "5\x0b", "5.0", "5e0", "", " ", "\u0665", "99999999999999999999", "9223372036854775808", "five", "5;x", "_5", "1_0",
		"5\r\nContent-Length: 6", "6\r\nContent-Length: 5", "0\r\nContent-Length: 5", "5\r\ncontent-length: 05", "5\r\nContent-Length: +5",
	} {
		add(fmt.Sprintf("length %q", length), post+"Content-Length: "+length+"\r\n\r\nhello"+smuggled)
	}
	two("equal lengths twice", post+"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello"+smuggled)
	two("a length in zeros", post+"Content-Length: 0000000005 \r\n\r\nhello"+smuggled)
	add("a length with a space before the colon", post+"Content-Length : 5\r\n\r\nhello"+smuggled)
	two("a folded length, which is none", post+"X: y\r\n Content-Length: 5\r\n\r\nhello"+smuggled)
	add("a length and a body of GET", "GET / HTTP/1.1\r\nHost: x\r\n"+sized(smuggled)+"\r\n"+smuggled)
	add("a length and a body of HEAD", "HEAD / HTTP/1.1\r\nHost: x\r\n"+sized(smuggled)+"\r\n"+smuggled)
	add("a length and a body of OPTIONS", "OPTIONS / HTTP/1.1\r\nHost: x\r\n"+sized(smuggled)+"\r\n"+smuggled)

	// Chunks.
	chunked := post + "Transfer-Encoding: chunked\r\n\r\n"
	for _, size := range []string{
		"0x5", "+5", "-5", " 5", "5 5", "g", "", "5\x00", "00000000000000005", "fffffffffffffffff", "10000000000000005", "5_", "5,5", "5\r", "\t5", "5.0",
	} {
		add(fmt.Sprintf("chunk size %q", size), chunked+size+"\r\nhello\r\n0\r\n\r\n")
	}
	add("a chunk longer than its size", chunked+"5\r\nhello!\r\n0\r\n\r\n"+smuggled)
	add("a chunk shorter than its size", chunked+"7\r\nhello\r\n0\r\n\r\n")
	add("a chunk without an end", chunked+"5\r\nhello0\r\n\r\n")
	add("a chunk that ends with LF", chunked+"5\r\nhello\n0\r\n\r\n")
	add("a chunk that ends with CR", chunked+"5\r\nhello\r0\r\n\r\n")
	add("a chunk whose size ends with LF", chunked+"5\nhello\r\n0\r\n\r\n")
	add("an extension with LF", chunked+"5;a\nb\r\nhello\r\n0\r\n\r\n")
	add("an extension with CR", chunked+"5;a\rb\r\nhello\r\n0\r\n\r\n")
	add("an extension with a quoted end", chunked+"5;a=\"\r\nhello\r\n0\r\n\r\n\"\r\n"+smuggled)
	add("an extension without end", chunked+"5;"+strings.Repeat("a", 8<<10)+"\r\nhello\r\n0\r\n\r\n")
	add("extensions in every chunk", chunked+strings.Repeat("1;"+strings.Repeat("a", 1000)+"\r\nx\r\n", 64)+"0\r\n\r\n")
	add("a plain extension", chunked+"5;name=value\r\nhello\r\n0\r\n\r\n")
	add("a last chunk with LF alone", chunked+"5\r\nhello\r\n0\n\n"+smuggled)
	add("no last chunk", chunked+"5\r\nhello\r\n")
	add("a trailer with a length", post+"Trailer: Content-Length\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nContent-Length: 50\r\n\r\n")
	add("a trailer with an encoding", post+"Trailer: Transfer-Encoding\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n")
	add("a trailer with a host", post+"Trailer: Host\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nHost: other\r\n\r\n")
	add("a trailer that nobody has announced", chunked+"5\r\nhello\r\n0\r\nX-Late: 1\r\n\r\n")
	two("a trailer with a space before the colon", chunked+"0\r\nX : 1\r\n\r\n"+smuggled)
	add("a folded trailer", chunked+"0\r\nX: 1\r\n Y: 2\r\n\r\n")

	// Request lines and header lines.
	for _, text := range []string{
		"GET  / HTTP/1.1\r\nHost: x\r\n\r\n", "GET / HTTP/1.1 \r\nHost: x\r\n\r\n", "GET / x HTTP/1.1\r\nHost: x\r\n\r\n", "GET\t/ HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET /\r\nHost: x\r\n\r\n", "GET / HTTP/1.1\rHost: x\r\n\r\n", "GET / HTTP/1.1\r\nHost: x\r\nX\r\n\r\n", "GET / HTTP/1.1\r\nHost: x\r\n X: y\r\n\r\n",
		"GET / HTTP/2.0\r\nHost: x\r\n\r\n", "GET / HTTP/0.9\r\n\r\n", "GET / HTTP/1.2\r\nHost: x\r\n\r\n", "GET / HTTP/01.1\r\nHost: x\r\n\r\n", "GET / http/1.1\r\nHost: x\r\n\r\n",
		"G(T / HTTP/1.1\r\nHost: x\r\n\r\n", "GET /\x00 HTTP/1.1\r\nHost: x\r\n\r\n", "GET /\r HTTP/1.1\r\nHost: x\r\n\r\n", "GET a HTTP/1.1\r\nHost: x\r\n\r\n", "GET ?a HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: x\r\nA b: c\r\n\r\n", "GET / HTTP/1.1\r\nHost: x\r\nA(: c\r\n\r\n", "GET / HTTP/1.1\r\nHost: x\r\nX: a\x00b\r\n\r\n",
		"GET / HTTP/1.1\r\n\r\n", "GET / HTTP/1.1\r\nHost:\r\n\r\n", "GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", "GET / HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n", "GET / HTTP/1.1\r\nHost: a b\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: x/y\r\n\r\n", "GET / HTTP/1.1\r\nHost: x@y\r\n\r\n", "GET / HTTP/1.1\r\n Host: x\r\n\r\n", "GET / HTTP/1.1\r\nHost : x\r\n\r\n", "GET / HTTP/1.1\r\nX: y\r\n Host: x\r\n\r\n",
		"GET http://y/ HTTP/1.1\r\nHost: x\r\n\r\n", "GET http://x/ HTTP/1.1\r\n\r\n", "GET http:///a HTTP/1.1\r\nHost: x\r\n\r\n", "GET ftp://y/ HTTP/1.1\r\nHost: x\r\n\r\n", "GET //y/a HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET http://u:p@y/ HTTP/1.1\r\nHost: x\r\n\r\n", "GET /%0d%0aX:%20y HTTP/1.1\r\nHost: x\r\n\r\n", "GET /#/a HTTP/1.1\r\nHost: x\r\n\r\n", "GET /a\\..\\b HTTP/1.1\r\nHost: x\r\n\r\n",
		"CONNECT y:1 HTTP/1.1\r\nHost: y:1\r\n\r\n" + smuggled, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "PRI * HTTP/1.1\r\nHost: x\r\n\r\n",
		"\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n", "\x16\x03\x01\x00\x05hello\r\n\r\n", "GET / HTTP/1.1\r\nHost: x\r\nConnection: Host\r\n\r\n",
	} {
		add(fmt.Sprintf("%.60q", text), text)
	}

	// What one hop is told, and the next is not.
	for _, header := range []string{
		"Connection: Content-Length", "Connection: Transfer-Encoding", "Connection: close, Content-Length", "Connection: X-Forwarded-For", "Connection: Connection",
		"Keep-Alive: timeout=5", "Proxy-Connection: keep-alive", "Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQAAP__",
		"TE: trailers", "TE: trailers, chunked", "Expect: 100-continue", "Expect: 200-ok", "Expect: 100-continue, x", "Expect:",
	} {
		two(fmt.Sprintf("%q and a body", header), post+"Content-Length: 5\r\n"+header+"\r\n\r\nhello"+smuggled)
	}
	two("two requests", post+"Content-Length: 5\r\n\r\nhello"+smuggled)
	return all
}

// Whatever is sent over HTTP/1, the upstream sees as many requests as the gateway has let
// through its gates and answered, each with one length and in one form. What is no request
// by RFC 9112 is refused, or reaches the upstream as one.
func TestSmuggling(t *testing.T) {
	up := startRecorder(t)
	g := startListening(t, "http", "h2c: false\n    read_timeout: 10s", gatewayConfig(up.addr, 8))
	refused := 0
	all := attacks1()
	for _, a := range all {
		before := g.gate(t, "app").Admitted
		statuses := g.say(t, a.text+"GET /last HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
		seen := up.arrived()
		ok := 0
		for _, status := range statuses {
			if status == http.StatusOK {
				ok++
			}
		}
		real := slices.DeleteFunc(slices.Clone(seen), func(line string) bool { return strings.HasPrefix(line, "GET /last ") })
		if admitted := int(g.gate(t, "app").Admitted - before); len(seen) != ok || admitted < ok || len(real) > a.most {
			t.Errorf("%s: answers %v, %d admitted; the upstream saw %q, at most %d are right\n%.300q", a.name, statuses, admitted, seen, a.most, a.text)
		}
		if len(real) == 0 {
			refused++
		}
	}
	for _, wrong := range up.wrong() {
		t.Error(wrong)
	}
	t.Logf("%d attempts, of which %d were refused", len(all), refused)
}

// say sends text on a connection of its own and returns the statuses of all answers.
func (g *gateway) say(t *testing.T, text string) (statuses []int) {
	t.Helper()
	c, err := net.Dial("tcp", g.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(await.Patience))
	go io.WriteString(c, text) // whoever is refused may be reset before it has sent all
	head := strings.HasPrefix(text, "HEAD ")
	for r := bufio.NewReader(c); ; head = false {
		req := &http.Request{Method: "GET"}
		if head {
			req.Method = "HEAD"
		}
		res, err := http.ReadResponse(r, req)
		if err != nil {
			return statuses
		}
		_, _ = io.Copy(io.Discard, res.Body)
		if res.StatusCode >= 200 {
			statuses = append(statuses, res.StatusCode)
		}
	}
}

// recorder is an upstream that reads requests byte by byte and forgives nothing.
type recorder struct {
	addr string

	mu    sync.Mutex
	lines []string // the request lines since the last call of arrived
	bad   []string
}

func startRecorder(t *testing.T) *recorder {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	up := &recorder{addr: l.Addr().String()}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go up.serve(c)
		}
	}()
	return up
}

func (up *recorder) serve(c net.Conn) {
	defer c.Close()
	r := bufio.NewReader(c)
	for {
		line, why := readStrictly(r)
		if line == "" {
			return // between two requests
		}
		up.mu.Lock()
		if why == "" {
			up.lines = append(up.lines, line)
		} else if why != "broken off" { // which the gateway does with what its client has broken off
			up.bad = append(up.bad, line+": "+why)
		}
		up.mu.Unlock()
		if why != "" {
			return
		}
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
	}
}

// arrived returns the request lines since the last call.
func (up *recorder) arrived() []string {
	up.mu.Lock()
	defer up.mu.Unlock()
	lines := up.lines
	up.lines = nil
	return lines
}

// wrong returns what was wrong with requests that arrived.
func (up *recorder) wrong() []string {
	up.mu.Lock()
	defer up.mu.Unlock()
	return up.bad
}

// readStrictly reads one request to its end. It returns the request line, and what two
// servers could understand differently about it.
func readStrictly(r *bufio.Reader) (request, why string) {
	header := map[string][]string{}
	for n := 0; ; n++ {
		raw, err := r.ReadString('\n')
		if err != nil {
			return request, "broken off"
		}
		line, crlf := strings.CutSuffix(raw, "\r\n")
		switch {
		case !crlf || strings.ContainsAny(line, "\r\n\x00"):
			return line, fmt.Sprintf("%q is no line", raw)
		case n == 0:
			request = line
			if words := strings.Split(line, " "); len(words) != 3 || words[2] != "HTTP/1.1" || !strings.HasPrefix(words[1], "/") && words[1] != "*" {
				return line, "it is no request line"
			}
		case line != "":
			name, value, ok := strings.Cut(line, ":")
			if !ok || name == "" || strings.ContainsFunc(name, func(c rune) bool { return c <= ' ' || c >= 0x7f || strings.ContainsRune(`()<>@,;:\"/[]?={}`, c) }) {
				return request, fmt.Sprintf("%q is no header", line)
			}
			name = strings.ToLower(name)
			header[name] = append(header[name], strings.TrimSpace(value))
		default:
			return request, readBody(r, header)
		}
	}
}

func readBody(r *bufio.Reader, header map[string][]string) (why string) {
	for _, hop := range []string{"connection", "keep-alive", "proxy-connection", "upgrade", "http2-settings", "te"} {
		if v := header[hop]; v != nil && !(hop == "te" && slices.Equal(v, []string{"trailers"})) {
			return fmt.Sprintf("%s: %q is for the gateway alone", hop, v)
		}
	}
	length, encoding := header["content-length"], header["transfer-encoding"]
	switch {
	case len(header["host"]) != 1:
		return fmt.Sprintf("it has %d hosts", len(header["host"]))
	case len(length) > 1, length != nil && encoding != nil, encoding != nil && !slices.Equal(encoding, []string{"chunked"}):
		return fmt.Sprintf("it has lengths %q and encodings %q", length, encoding)
	case length != nil:
		n, err := strconv.ParseUint(length[0], 10, 31)
		if err != nil || strconv.FormatUint(n, 10) != length[0] {
			return fmt.Sprintf("its length is %q", length[0])
		}
		if _, err := io.CopyN(io.Discard, r, int64(n)); err != nil {
			return "broken off"
		}
	case encoding != nil:
		return readChunks(r)
	}
	return ""
}

// readChunks reads chunks as they are written by who keeps to the plainest form.
func readChunks(r *bufio.Reader) (why string) {
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return "broken off"
		}
		size, crlf := strings.CutSuffix(line, "\r\n")
		n, err := strconv.ParseUint(size, 16, 31)
		if !crlf || err != nil || strconv.FormatUint(n, 16) != size {
			return fmt.Sprintf("%q is no size of a chunk", line)
		}
		if n == 0 {
			break
		}
		piece := make([]byte, n+2)
		if _, err := io.ReadFull(r, piece); err != nil {
			return "broken off"
		}
		if !bytes.HasSuffix(piece, []byte("\r\n")) {
			return "a chunk has another end than its size says"
		}
	}
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return "broken off"
		}
		if line == "\r\n" {
			return ""
		}
		if name, _, _ := strings.Cut(strings.ToLower(line), ":"); name == "content-length" || name == "transfer-encoding" || name == "host" {
			return fmt.Sprintf("%q is a trailer", line)
		}
	}
}

// Whatever is sent as one stream of HTTP/2, it becomes one request of HTTP/1 at most.
func TestSmugglingOverHTTP2(t *testing.T) {
	up := startRecorder(t)
	g := startGateway(t, gatewayConfig(up.addr, 8))
	plain := [][2]string{{":method", "POST"}, {":scheme", "http"}, {":authority", "x"}, {":path", "/"}}
	with := func(more ...[2]string) [][2]string { return append(slices.Clone(plain), more...) }
	but := func(name, value string) [][2]string {
		fields := slices.Clone(plain)
		fields[slices.IndexFunc(fields, func(f [2]string) bool { return f[0] == name })][1] = value
		return fields
	}
	injected := " HTTP/1.1\r\nHost: x\r\n\r\n" + smuggled
	all := map[string][][2]string{"plain": plain}
	for _, value := range []string{"0", "4", "6", "5 ", "+5", "5,5", "x", "99999999999999999999"} {
		all["length "+value] = with([2]string{"content-length", value})
	}
	all["two lengths"] = with([2]string{"content-length", "5"}, [2]string{"content-length", "6"})
	for _, field := range [][2]string{
		{"transfer-encoding", "chunked"}, {"Transfer-Encoding", "chunked"}, {"connection", "content-length"}, {"connection", "upgrade"}, {"upgrade", "h2c"}, {"keep-alive", "1"},
		{"proxy-connection", "close"}, {"te", "chunked"}, {"te", "trailers"}, {"host", "y"}, {"host", "x"}, {"x y", "z"}, {"x:y", "z"}, {"X", "upper"}, {"", "empty"}, {"x\r\ny", "z"}, {"x", "y\r\nz: a"},
		{"x", "y\nz: a"}, {"x", "y\rz"}, {"x", "y\x00z"}, {"x\x00", "y"}, {":path", "/twice"}, {":method", "GET"}, {":authority", "y"}, {":status", "200"}, {":protocol", "websocket"}, {":late", "x"},
		{"transfer-encoding: chunked\r\nx", "y"}, {"expect", "100-continue"}, {"trailer", "content-length"}, {"x-forwarded-for", "y\r\n\r\n" + smuggled}, {" x", "y"}, {"x ", "y"},
	} {
		all[fmt.Sprintf("%q", field)] = with(field)
	}
	for name, values := range map[string][]string{
		":method":    {"", "GET /smuggled", "GET" + injected, "CONNECT", "PRI", "G T", "get", "POST\r\n"},
		":path":      {"", "*", "x", "/ /", "/" + injected, "/\r\nx: y", "/\n", "/\x00", "http://y/", "//y/", "/a?b=" + injected, "/%0d%0a"},
		":scheme":    {"", "https", "http://y/?", "ftp", "http\r\n", "javascript"},
		":authority": {"", "y", "x y", "x\r\nx: y", "u@x", "x/y", "x:99999", "x\x00", "x, y"},
	} {
		for _, value := range values {
			all[fmt.Sprintf("%s %.40q", name, value)] = but(name, value)
		}
	}
	all["no path"], all["no method"], all["nothing"] = plain[:3], plain[1:], nil
	all["pseudo-headers last"] = append([][2]string{{"x", "y"}}, plain...)

	// A stream may be reset before its request has reached the upstream. So each has a path
	// of its own, and all are judged at the end.
	statuses, paths := map[string]string{}, map[string]string{}
	for name, fields := range all {
		path := fmt.Sprint("/", len(paths))
		if i := slices.Index(fields, [2]string{":path", "/"}); i >= 0 {
			fields = slices.Clone(fields)
			fields[i][1] = path
		}
		paths[name], statuses[name] = path, g.stream(t, fields, "hello")
	}
	g.signal(t, syscall.SIGTERM)
	_ = g.wait(t) // nothing is under way any more
	times := map[string]int{}
	for _, line := range up.arrived() {
		times[strings.Fields(line)[1]]++
	}
	refused := 0
	for name, path := range paths {
		if n := times[path]; n > 1 || statuses[name] == "200" && n != 1 && !strings.HasPrefix(name, ":path") {
			t.Errorf("%s: answer %s; the upstream saw it %d times", name, statuses[name], n)
		}
		if statuses[name] != "200" {
			refused++
		}
	}
	for path, n := range times {
		if n > 1 || strings.Contains(path, "smuggled") && !strings.Contains(path, "b=") {
			t.Errorf("the upstream saw %s %d times", path, n)
		}
	}
	for _, wrong := range up.wrong() {
		t.Error(wrong)
	}
	t.Logf("%d attempts, of which %d were refused", len(all), refused)
}

// stream sends one request on a connection of its own, without any check, and returns the
// status, the code that its stream was reset with, or how the connection ended.
func (g *gateway) stream(t *testing.T, fields [][2]string, body string) string {
	t.Helper()
	c, err := net.Dial("tcp", g.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(await.Patience))
	var block, out bytes.Buffer
	coder := hpack.NewEncoder(&block)
	for _, f := range fields {
		_ = coder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	out.WriteString(http2.ClientPreface)
	framer := http2.NewFramer(&out, c)
	framer.AllowIllegalWrites = true
	_ = framer.WriteSettings()
	_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true})
	_ = framer.WriteData(1, true, []byte(body))
	if _, err := c.Write(out.Bytes()); err != nil {
		t.Fatal(err)
	}
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	for status := ""; ; {
		frame, err := framer.ReadFrame()
		if err != nil {
			return fmt.Sprint("closed: ", err)
		}
		ended := false
		switch f := frame.(type) {
		case *http2.MetaHeadersFrame:
			if v := f.PseudoValue("status"); v != "100" {
				status, ended = v, f.StreamEnded()
			}
		case *http2.DataFrame:
			ended = f.StreamEnded()
		case *http2.GoAwayFrame:
			status, ended = f.ErrCode.String(), f.ErrCode != http2.ErrCodeNo
		case *http2.RSTStreamFrame:
			if status == "" { // else it says that the rest of the body is not wanted
				status = f.ErrCode.String()
			}
			ended = true
		}
		if ended {
			return status
		}
	}
}
