package admin

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

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
	// Logger logs who was refused.
	Logger *slog.Logger

	mu     sync.Mutex // guards what follows
	logged time.Time
	unsaid int
}

// shortestToken keeps out tokens that can be guessed.
const (
	shortestToken = 16
	longestToken  = 4 << 10
)

// Reasons why somebody may not write.
var (
	errNoWriters = errors.New("nobody may write here: the configuration names neither admin: {socket: ...} nor admin: {token_file: ...}")
	errPage      = errors.New("web pages may not write here")
	errToken     = errors.New("the token is wrong")
	errNoToken   = errors.New("a write needs the token: send Authorization: Bearer and what is in the gateway's token file")
)

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
		a.logRefusal(r, err)
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
		return "", fmt.Errorf("writes are taken over the socket only; use unix:%s, or name a token by admin: {token_file: ...} in the configuration", socket)
	}
	scheme, given, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") || given == "" {
		return "", fmt.Errorf("%w%s", errNoToken, a.orSocket())
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

func (a *Writers) orSocket() string {
	socket := a.Socket()
	if socket == "" {
		return ""
	}
	return ", or ask over unix:" + socket
}

// readToken returns the token of a file. No error contains any of it.
func readToken(name string) (string, error) {
	info, err := os.Stat(name) // before it is opened: to open a pipe waits for a writer
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no plain file", name)
	}
	if err != nil {
		return "", fmt.Errorf("the gateway cannot read its token: %w", err)
	}
	f, err := os.Open(name)
	if err != nil {
		return "", fmt.Errorf("the gateway cannot read its token: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, longestToken+1))
	if err != nil {
		return "", fmt.Errorf("the gateway cannot read its token: %w", err)
	}
	token := strings.TrimSpace(string(data))
	if len(token) < shortestToken || len(data) > longestToken {
		return "", fmt.Errorf("the token in %s has %d bytes, which is not from %d to %d: nobody may write; make one by openssl rand -hex 32", name, len(token), shortestToken, longestToken)
	}
	return token, nil
}

// logRefusal logs who was refused, at most once a second, and how many were not logged.
func (a *Writers) logRefusal(r *http.Request, err error) {
	a.mu.Lock()
	now := time.Now()
	if now.Sub(a.logged) < time.Second {
		a.unsaid++
		a.mu.Unlock()
		return
	}
	unsaid := a.unsaid
	a.logged, a.unsaid = now, 0
	a.mu.Unlock()
	a.Logger.Warn("admin write refused", "from", r.RemoteAddr, "method", r.Method, "path", r.URL.Path, "because", err.Error(), "more_before", unsaid)
}

func refuseWriter(w http.ResponseWriter, err error) {
	if errors.Is(err, errToken) || errors.Is(err, errNoToken) {
		w.Header().Set("WWW-Authenticate", "Bearer")
		problem(w, http.StatusUnauthorized, err.Error(), nil)
		return
	}
	problem(w, http.StatusForbidden, err.Error(), nil)
}

// peerKey is the key of a connection's context for who is at the other end of a Unix socket.
type peerKey struct{}

// withPeer is an http.Server.ConnContext for the Unix socket. Only users that may write can open
// it.
func withPeer(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, peerKey{}, peerOf(c))
}
