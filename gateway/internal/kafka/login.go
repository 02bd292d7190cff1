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

// relayed are the mechanisms that clients may use. GSSAPI is not among them, because its token names the host that the client has dialled.
var relayed = []string{plain, scram256, scram512, oauthBearer}

// anonymous is Kafka's name for a client without SASL.
const anonymous = "ANONYMOUS"

// principal is who a client is. The zero value has an unknown name.
type principal struct {
	name  string
	known bool
	token string // the delegation token of the login; its owner is the principal
}

// mostName bounds the name of a principal, in bytes. It is the longest text of Kafka.
const mostName = 1<<15 - 1

// kept is a copy of the principal that does not keep the message of the login in memory.
func (p principal) kept() principal {
	if len(p.name)+len(p.token) > mostName {
		return principal{}
	}
	return principal{strings.Clone(p.name), p.known, strings.Clone(p.token)}
}

// is reports whether two principals are the same. An unknown one may be any.
func (p principal) is(other principal) bool { return !p.known || !other.known || p.name == other.name }

// login follows the exchanges of SASL on a connection. The broker decides, and login reads its answers. A name counts once the broker has
// accepted it. A client may send requests before it has answers, so each request keeps its claim as a [step].
type login struct {
	mechanism string    // of the last handshake, empty before it
	steps     int       // since that handshake
	claimed   principal // by the first step

	claim    string    // the claim of an OAUTHBEARER token that has the name
	required bool      // clients must log in
	user     principal // the last one that the broker has accepted
	done     bool      // the broker has accepted a principal
	underway bool      // a handshake was sent, and the broker has accepted nobody since
	failed   bool      // the broker has refused, or the mechanism is not relayed
}

// step is the effect of one request of an exchange if the broker accepts it.
type step struct {
	mechanism string
	user      principal
	last      bool // the answer to it may end the exchange
}

// principal is who the client is now.
func (l *login) principal() principal {
	if !l.done {
		return principal{name: anonymous, known: true}
	}
	return l.user
}

// mostLogin bounds a login request, in bytes. If a login is required, it bounds every request before the end of the login. Brokers have the
// same bound.
const mostLogin = 512 << 10

// may returns why a request of n bytes is not passed on, or nil if it is. As with brokers, a client that must log in may do nothing else
// before. Otherwise it would be charged under another name.
func (l *login) may(key int16, n int) error {
	asks := key == keySaslHandshake || key == keySaslAuthenticate
	switch {
	case l.failed:
		return endErrorf("a request after a failed login")
	case l.required && !l.done && !asks && key != keyApiVersions:
		return endErrorf("a request for %s before the login; this cluster requires a login", kmsg.NameForKey(key))
	case n > mostLogin && (asks || l.required && !l.done):
		return endErrorf("a request of %d bytes before the end of the login; at most %d bytes are allowed", n, mostLogin)
	}
	return nil
}

// pending reports whether nobody has logged in, and somebody is to, or has begun. While a client logs in again it stays who it is. Its broker
// answers earlier requests first, such as a Fetch that waits, and bounds how long the first login holds.
func (l *login) pending() bool { return !l.done && (l.underway || l.required) }

// handshake notes that a client asks for a mechanism.
func (l *login) handshake(req *kmsg.SASLHandshakeRequest) step {
	l.mechanism, l.steps, l.claimed, l.underway = req.Mechanism, 0, principal{}, true
	return step{mechanism: req.Mechanism}
}

// authenticate notes the proof of identity that a client sends.
func (l *login) authenticate(req *kmsg.SASLAuthenticateRequest) step {
	l.steps++
	said := string(req.SASLAuthBytes)
	if !utf8.ValidString(said) {
		said = "" // brokers may read it in different ways
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

// handshaken handles the broker's answer to a handshake. It removes the mechanisms that are not relayed from the answer.
func (l *login) handshaken(s step, resp *kmsg.SASLHandshakeResponse) {
	resp.SupportedMechanisms = slices.DeleteFunc(resp.SupportedMechanisms, func(m string) bool { return !slices.Contains(relayed, m) })
	if resp.ErrorCode == 0 && !slices.Contains(relayed, s.mechanism) {
		resp.ErrorCode = kerr.UnsupportedSaslMechanism.Code
		l.failed = true // broker and client are in different states
	}
	if resp.ErrorCode != 0 {
		l.underway = false
	}
}

// agrees reports whether an answer of the broker completes an exchange with success.
func (s step) agrees(resp *kmsg.SASLAuthenticateResponse) bool {
	switch said := resp.SASLAuthBytes; {
	case resp.ErrorCode != 0 || !s.last:
		return false
	case s.mechanism == oauthBearer:
		return len(said) == 0 // otherwise it says why the token is refused, and the client must confirm
	case s.mechanism == scram256 || s.mechanism == scram512:
		return strings.HasPrefix(string(said), "v=")
	}
	return true
}

// authenticated handles the broker's answer to a step. ended reports whether the login has succeeded. Brokers let no client log in again as
// another principal (KIP-368). So if the name is unknown this time, the principal stays.
func (l *login) authenticated(s step, resp *kmsg.SASLAuthenticateResponse) (ended bool, err error) {
	if resp.ErrorCode != 0 {
		l.underway, l.failed = false, l.failed || l.underway
		return false, nil
	}
	if !s.agrees(resp) || !l.underway {
		return false, nil
	}
	if l.done && !l.user.is(s.user) {
		return false, endErrorf("a second login with another principal")
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

// userOfScram reads the first message of SCRAM (RFC 5802). With a delegation token (KIP-48) the message has the name of the token, and not
// its owner.
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
	for _, f := range fields[2:] { // if there are several, brokers take the last
		if key, value, _ := strings.Cut(f, "="); key == "tokenauth" {
			token = strings.EqualFold(value, "true")
		}
	}
	if token {
		return principal{token: name}
	}
	return principal{name: name, known: true}
}

// userOfToken reads the message of OAUTHBEARER (RFC 7628). The name is in a claim of the token (RFC 7519).
func userOfToken(said, claim string) principal {
	_, pairs, _ := strings.Cut(said, ",\x01") // brokers allow a \x01 in the name before it, but no comma
	var auth string
	for pair := range strings.SplitSeq(pairs, "\x01") { // if there are several, brokers take the last
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
