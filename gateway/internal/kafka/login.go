package kafka

import (
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Mechanisms of SASL whose exchange says who a client is.
const (
	plain       = "PLAIN"
	scram256    = "SCRAM-SHA-256"
	scram512    = "SCRAM-SHA-512"
	oauthBearer = "OAUTHBEARER"
)

// relayed are the mechanisms that clients may use. GSSAPI is none: its token names the host that the client has dialled.
var relayed = []string{plain, scram256, scram512, oauthBearer}

// anonymous is who a client is without SASL, in Kafka's word.
const anonymous = "ANONYMOUS"

// principal is who a client is. The zero value is somebody whose name cannot be told.
type principal struct {
	name  string
	known bool
	token string // the delegation token that the client has shown; its owner is who the client is
}

// mostName bounds the name of a principal that is told apart, in bytes. It is that of a text of Kafka's.
const mostName = 1<<15 - 1

// kept is the principal without the message that it stood in, which may be much longer.
func (p principal) kept() principal {
	if len(p.name)+len(p.token) > mostName {
		return principal{}
	}
	return principal{strings.Clone(p.name), p.known, strings.Clone(p.token)}
}

// is reports whether two are the same, as far as can be told.
func (p principal) is(other principal) bool { return !p.known || !other.known || p.name == other.name }

// login follows the exchanges of SASL on a connection. The broker decides; here is only seen what it says. A name counts once
// the broker has agreed to it. Requests may run ahead of answers: what one claims stays with it, as a [step].
type login struct {
	mechanism string    // of the last handshake, empty before it
	steps     int       // since then
	claimed   principal // by the first of them

	claim    string    // of a token of OAUTHBEARER that is the name
	required bool      // nobody is served without one
	user     principal // to whom the broker has agreed last
	done     bool      // it has agreed to somebody
	underway bool      // a handshake has been sent, and the broker has not agreed since
	failed   bool      // the broker has refused, or the mechanism is not relayed
}

// step is what one request of an exchange comes to if the broker agrees.
type step struct {
	mechanism string
	user      principal
	last      bool // the answer to it may end the exchange
}

// principal is who asks now.
func (l *login) principal() principal {
	if !l.done {
		return principal{name: anonymous, known: true}
	}
	return l.user
}

// mostLogin bounds a request of a login, in bytes, and where a login is required everything before its end. Brokers have the same bound.
const mostLogin = 512 << 10

// may returns why a request of n bytes is not let through, nil if it is. As with brokers, a client that has to log in may do nothing else
// before, or it would be charged in the name of others.
func (l *login) may(key int16, n int) error {
	asks := key == keySaslHandshake || key == keySaslAuthenticate
	switch {
	case l.failed:
		return endErrorf("a request after a login that failed")
	case l.required && !l.done && !asks && key != keyApiVersions:
		return endErrorf("a request for %s before the login that this cluster asks for", kmsg.NameForKey(key))
	case n > mostLogin && (asks || l.required && !l.done):
		return endErrorf("a request of %d bytes before the login has ended; at most %d are read", n, mostLogin)
	}
	return nil
}

// pending reports whether the broker has yet to agree to somebody.
func (l *login) pending() bool { return l.underway || l.required && !l.done }

// handshake is told that a client asks for a mechanism.
func (l *login) handshake(req *kmsg.SASLHandshakeRequest) step {
	l.mechanism, l.steps, l.claimed, l.underway = req.Mechanism, 0, principal{}, true
	return step{mechanism: req.Mechanism}
}

// authenticate is told what a client says to prove who it is.
func (l *login) authenticate(req *kmsg.SASLAuthenticateRequest) step {
	l.steps++
	said := string(req.SASLAuthBytes)
	if !utf8.ValidString(said) {
		said = "" // a broker may read it in more than one way
	}
	if l.steps == 1 {
		switch l.mechanism {
		case plain:
			l.claimed = userOfPlain(said)
		case scram256, scram512:
			l.claimed = userOfScram(said)
		case oauthBearer:
			l.claimed = userOfToken(said, l.claim)
		}
		l.claimed = l.claimed.kept()
	}
	last := 1
	if l.mechanism == scram256 || l.mechanism == scram512 {
		last = 2
	}
	return step{mechanism: l.mechanism, user: l.claimed, last: l.steps == last}
}

// handshaken is told what the broker says of a mechanism. It takes those out of the answer that are not relayed.
func (l *login) handshaken(s step, resp *kmsg.SASLHandshakeResponse) {
	resp.SupportedMechanisms = slices.DeleteFunc(resp.SupportedMechanisms, func(m string) bool { return !slices.Contains(relayed, m) })
	if resp.ErrorCode == 0 && !slices.Contains(relayed, s.mechanism) {
		resp.ErrorCode = kerr.UnsupportedSaslMechanism.Code
		l.failed = true // the broker is in another state than the client
	}
	if resp.ErrorCode != 0 {
		l.underway = false
	}
}

// agrees reports whether an answer of the broker ends an exchange well.
func (s step) agrees(resp *kmsg.SASLAuthenticateResponse) bool {
	switch said := resp.SASLAuthBytes; {
	case resp.ErrorCode != 0 || !s.last:
		return false
	case s.mechanism == oauthBearer:
		return len(said) == 0 // else it is why the token is refused; the client has to say that it has understood
	case s.mechanism == scram256 || s.mechanism == scram512:
		return strings.HasPrefix(string(said), "v=")
	}
	return true
}

// authenticated is told what the broker says to a step. ended reports whether the login has succeeded by it. Brokers let nobody log in
// again as somebody else (KIP-368). So who cannot be told this time is who it was.
func (l *login) authenticated(s step, resp *kmsg.SASLAuthenticateResponse) (ended bool, err error) {
	if resp.ErrorCode != 0 {
		l.underway, l.failed = false, l.failed || l.underway
		return false, nil
	}
	if !s.agrees(resp) || !l.underway {
		return false, nil
	}
	if l.done && !l.user.is(s.user) {
		return false, endErrorf("a login again with another principal")
	}
	if s.user.known || !l.user.known {
		l.user = s.user
	}
	l.done, l.underway = true, false
	return true, nil
}

// userOfPlain reads the message of PLAIN (RFC 4616): an identity to act as, a name, a password.
func userOfPlain(said string) principal {
	parts := strings.Split(said, "\x00")
	if len(parts) != 3 || parts[1] == "" || parts[0] != "" && parts[0] != parts[1] {
		return principal{}
	}
	return principal{name: parts[1], known: true}
}

// userOfScram reads the first message of SCRAM (RFC 5802). The name of one with a delegation token (KIP-48) is the token's, and its
// owner is not in the message.
func userOfScram(said string) principal {
	flag, rest, _ := strings.Cut(said, ",")
	as, rest, ok := strings.Cut(rest, ",")
	if flag != "n" || !ok || as != "" && !strings.HasPrefix(as, "a=") {
		return principal{}
	}
	fields := strings.Split(rest, ",")
	if strings.HasPrefix(fields[0], "m=") {
		fields = fields[1:]
	}
	if len(fields) < 2 || !strings.HasPrefix(fields[0], "n=") || !strings.HasPrefix(fields[1], "r=") {
		return principal{}
	}
	name := strings.ReplaceAll(fields[0][len("n="):], "=2C", ",")
	if name == "" || strings.Contains(strings.ReplaceAll(name, "=3D", ""), "=") {
		return principal{}
	}
	name = strings.ReplaceAll(name, "=3D", "=")
	token := false
	for _, f := range fields[2:] { // of several, brokers take the last
		if key, value, _ := strings.Cut(f, "="); key == "tokenauth" {
			token = strings.EqualFold(value, "true")
		}
	}
	if token {
		return principal{token: name}
	}
	return principal{name: name, known: true}
}

// userOfToken reads the message of OAUTHBEARER (RFC 7628). Who it is stands in a claim of the token (RFC 7519).
func userOfToken(said, claim string) principal {
	_, pairs, _ := strings.Cut(said, ",\x01") // brokers let a name before it have a \x01, but no comma
	var auth string
	for pair := range strings.SplitSeq(pairs, "\x01") { // of several, brokers take the last
		if key, value, _ := strings.Cut(pair, "="); key == "auth" {
			auth = value
		}
	}
	scheme, token, _ := strings.Cut(auth, " ")
	parts := strings.Split(token, ".")
	if !strings.EqualFold(scheme, "bearer") || len(parts) != 3 {
		return principal{}
	}
	text, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(parts[1], "="))
	var claims map[string]json.RawMessage // a struct would also take Sub and SUB
	if err != nil || json.Unmarshal(text, &claims) != nil {
		return principal{}
	}
	var name string
	if json.Unmarshal(claims[claim], &name) != nil || name == "" {
		return principal{}
	}
	return principal{name: name, known: true}
}
