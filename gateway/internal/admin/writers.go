package admin

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"

	"github.com/weir-go/weir/gateway/internal/eventlog"
	"github.com/weir-go/weir/gateway/internal/quotas"
)

// Writers decides who may write: clients of the Unix socket, and clients with the token. Web pages
// may not, even with a token.
type Writers struct {
	// TokenFile returns the name of the file with the token, empty if there is none. It is
	// called, and the file read, at each write: both can change while the gateway runs.
	TokenFile func() string
	// Socket returns the path of the Unix socket, for messages; empty if there is none.
	Socket func() string
	// Log is told who was refused.
	Log *eventlog.Log
}

// shortestToken keeps out tokens that can be guessed.
const (
	shortestToken = 16
	longestToken  = 4 << 10
)

// Reasons why somebody may not write.
var (
	errNoWriters = &requestError{http.StatusForbidden, "nobody may write here: the configuration names neither admin: {socket: ...} nor admin: {token_file: ...}"}
	errPage      = &requestError{http.StatusForbidden, "web pages may not write here"}
	errToken     = &requestError{http.StatusUnauthorized, "the token is wrong"}
)

func forbidden(format string, args ...any) error {
	return &requestError{http.StatusForbidden, fmt.Sprintf(format, args...)}
}

// who returns who asks to write and how that is known, quotas.ViaSocket or ViaToken; or why
// they may not.
func (a *Writers) who(r *http.Request) (by, via string, err error) {
	switch peer, ok := r.Context().Value(peerKey{}).(string); {
	case r.Header.Get("Origin") != "" || r.Header.Get("Sec-Fetch-Site") != "":
		err = errPage
	case ok:
		return peer, quotas.ViaSocket, nil
	default:
		by, err = a.byToken(r)
	}
	if err != nil {
		a.Log.WriteRefused(r, err)
		return "", quotas.Nobody, err
	}
	return by, quotas.ViaToken, nil
}

// byToken returns who has the token.
func (a *Writers) byToken(r *http.Request) (string, error) {
	file := a.TokenFile()
	if file == "" {
		socket := a.Socket()
		if socket == "" {
			return "", errNoWriters
		}
		return "", forbidden("writes are taken over the socket only; use unix:%s, or name a token by admin: {token_file: ...} in the configuration", socket)
	}
	scheme, given, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") || given == "" {
		text := "a write needs the token: send Authorization: Bearer and what is in the gateway's token file"
		if socket := a.Socket(); socket != "" {
			text += ", or ask over unix:" + socket
		}
		return "", &requestError{http.StatusUnauthorized, text}
	}
	want, err := readToken(file)
	if err != nil {
		return "", err
	}
	// Digests have one length, so that of the token stays secret too.
	x, y := sha256.Sum256([]byte(strings.TrimSpace(given))), sha256.Sum256([]byte(want))
	if subtle.ConstantTimeCompare(x[:], y[:]) != 1 {
		return "", errToken
	}
	return "token from " + r.RemoteAddr, nil
}

// readToken returns the token of a file. No error contains any of it.
func readToken(name string) (string, error) {
	data, err := readPlain(name)
	if err != nil {
		return "", forbidden("the gateway cannot read its token: %v", err)
	}
	token := strings.TrimSpace(string(data))
	if len(token) < shortestToken || len(data) > longestToken {
		return "", forbidden("the token in %s has %d bytes, which is not from %d to %d: nobody may write; make one by openssl rand -hex 32", name, len(token), shortestToken, longestToken)
	}
	return token, nil
}

// readPlain reads a plain file, to one byte beyond the longest token.
func readPlain(name string) ([]byte, error) {
	info, err := os.Stat(name) // before it is opened: to open a pipe waits for a writer
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", name)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, longestToken+1))
}

// peerKey is the key of a connection's context for who is at the other end of a Unix socket.
type peerKey struct{}

// withPeer is an http.Server.ConnContext for the Unix socket. Only users that may write can open
// it.
func withPeer(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, peerKey{}, peerOf(c))
}
