package kafka

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// token is an unsigned token of OAUTHBEARER.
func token(claims string) string {
	return "n,,\x01auth=Bearer " + base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none"}`)) + "." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".\x01\x01"
}

// twice is a message of OAUTHBEARER with the content of two messages.
func twice(first, second string) string {
	return strings.TrimSuffix(first, "\x01") + strings.TrimPrefix(second, "n,,\x01")
}

// The claimed principal is the one that a broker reads in the message.
func TestWhoIsClaimed(t *testing.T) {
	for _, c := range []struct{ mechanism, said, want string }{
		{plain, "\x00alice\x00secret", "alice"},
		{plain, "alice\x00alice\x00secret", "alice"},
		{plain, "bob\x00alice\x00secret", ""}, // to act as somebody else, which brokers refuse
		{plain, "\x00\x00secret", ""},
		{plain, "alice\x00secret", ""},
		{plain, "\x00alice\x00se\x00cret", ""},
		{plain, "\x00ali\xffce\x00secret", ""},
		{scram256, "n,,n=alice,r=nonce", "alice"},
		{scram512, "n,a=alice,n=alice,r=nonce", "alice"},
		{scram512, "n,,n=a=2Cb=3Dc,r=nonce", "a,b=c"},
		{scram512, "n,,n=a=3D2C,r=nonce", "a=2C"},
		{scram512, "n,,n=a=b,r=nonce", ""},
		{scram512, "n,,m=later,n=alice,r=nonce", "alice"},
		{scram512, "n,,n=alice,r=nonce,tokenauth=false", "alice"},
		{scram512, "n,,n=id,r=nonce,tokenauth=True", ""},
		{scram512, "n,,n=id,r=nonce,tokenauth=false,tokenauth=true", ""},
		{scram512, "n,,n=alice,r=nonce,tokenauth=true,tokenauth=false", "alice"},
		{scram512, "n,,r=nonce,n=alice", ""},
		{scram512, "y,,n=alice,r=nonce", ""},
		{scram512, "n,,n=,r=nonce", ""},
		{scram512, "", ""},
		{oauthBearer, token(`{"sub":"alice"}`), "alice"},
		{oauthBearer, token(`{"SUB":"bob","sub":"alice","Sub":"eve"}`), "alice"},
		{oauthBearer, token(`{"Sub":"alice"}`), ""},
		{oauthBearer, token(`{"sub":"bob","sub":"alice"}`), "alice"},
		{oauthBearer, twice(token(`{"sub":"bob"}`), token(`{"sub":"alice"}`)), "alice"},
		{oauthBearer, twice(token(`{"sub":"bob"}`), "n,,\x01auth=Basic YTpi\x01\x01"), ""},
		{oauthBearer, strings.Replace(token(`{"sub":"a\u0001auth"}`), ",,", ",a=a\x01auth,", 1), "a\x01auth"},
		{oauthBearer, token(`{"sub":7}`), ""},
		{oauthBearer, token(`{`), ""},
		{oauthBearer, "n,,\x01auth=Basic YTpi\x01\x01", ""},
		{oauthBearer, "n,,\x01auth=Bearer a.b\x01\x01", ""},
		{oauthBearer, "n,,", ""},
		{"GSSAPI", "\x00alice\x00secret", ""},
	} {
		l := login{claim: "sub"}
		l.handshake(&kmsg.SASLHandshakeRequest{Mechanism: c.mechanism})
		got := l.authenticate(&kmsg.SASLAuthenticateRequest{SASLAuthBytes: []byte(c.said)}).user
		if got.name != c.want || got.known != (c.want != "") {
			t.Errorf("%s %q: %+v, not %q", c.mechanism, c.said, got, c.want)
		}
	}
}

// A delegation token is named by its id, and another claim may be the name.
func TestTokensNameTheirOwner(t *testing.T) {
	if got := userOfScram("n,,n=a=2Cb,r=nonce,tokenauth=true"); got != (principal{token: "a,b"}) {
		t.Errorf("%+v", got)
	}
	if got := userOfToken(token(`{"sub":"alice","client_id":"app"}`), "client_id"); got.name != "app" {
		t.Errorf("%+v", got)
	}
}

// The owner of a token is asked for once, by one lookup at a time, and other owners in an answer are kept.
func TestOwners(t *testing.T) {
	tokens := map[string]string{"a": "alice", "b": "bob"}
	asked, trouble := 0, error(nil)
	var code int16
	o := newOwners(func(context.Context) (*kmsg.DescribeDelegationTokenResponse, error) {
		asked++ // by one at a time: the race detector sees to it
		resp := kmsg.NewPtrDescribeDelegationTokenResponse()
		resp.ErrorCode = code
		for id, owner := range tokens {
			d := kmsg.NewDescribeDelegationTokenResponseTokenDetail()
			d.TokenID, d.PrincipalType, d.PrincipalName = id, "User", owner
			resp.TokenDetails = append(resp.TokenDetails, d)
		}
		return resp, trouble
	})
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if name, err := o.lookup(t.Context(), "a"); name != "alice" || err != nil {
				t.Errorf("%q, %v", name, err)
			}
		})
	}
	all.Wait()
	if name, err := o.lookup(t.Context(), "b"); name != "bob" || err != nil || asked != 1 {
		t.Errorf("%q, %v, asked %d times", name, err, asked)
	}
	for i := range mostOwners + 1000 {
		tokens[fmt.Sprint(i)] = "carol"
	}
	for i := range 100 { // also those that are not remembered
		if name, err := o.lookup(t.Context(), fmt.Sprint(i*100)); name != "carol" || err != nil {
			t.Fatalf("%q, %v", name, err)
		}
	}
	if name, err := o.lookup(t.Context(), "c"); name != "" || err == nil || !strings.Contains(err.Error(), "right to describe") {
		t.Errorf("%q, %v", name, err)
	}
	code = kerr.DelegationTokenAuthDisabled.Code
	if _, err := o.lookup(t.Context(), "c"); !errors.Is(err, kerr.DelegationTokenAuthDisabled) {
		t.Error(err)
	}
	code, trouble = 0, io.ErrUnexpectedEOF
	if _, err := o.lookup(t.Context(), "c"); err != trouble {
		t.Error(err)
	}
	trouble = nil
	for i := range mostOwners + 10 {
		tokens[strconv.Itoa(i)] = "many"
	}
	if name, _ := o.lookup(t.Context(), "7"); name == "" && len(o.known) != mostOwners || len(o.known) > mostOwners {
		t.Errorf("%d are remembered", len(o.known))
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	o.asking <- struct{}{}
	if _, err := o.lookup(gone, "unknown"); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// exchange is a login: the messages of the client and the answers of the broker, with the expected error.
type exchange struct {
	mechanism string
	refused   int16 // by the handshake
	said      []string
	answers   []string
	code      int16 // of the last answer
}

// run takes the exchange through l, the requests ahead of all answers if they are pipelined.
func (e exchange) run(l *login, pipelined bool) (ended bool, err error) {
	var steps []step
	shake := l.handshake(&kmsg.SASLHandshakeRequest{Mechanism: e.mechanism})
	handshaken := func() {
		l.handshaken(shake, &kmsg.SASLHandshakeResponse{ErrorCode: e.refused, SupportedMechanisms: []string{plain}})
	}
	if !pipelined {
		handshaken()
	}
	answer := func(i int) {
		resp := &kmsg.SASLAuthenticateResponse{SASLAuthBytes: []byte(e.answers[i])}
		if i == len(e.answers)-1 {
			resp.ErrorCode = e.code
		}
		one, trouble := l.authenticated(steps[i], resp)
		ended = ended || one
		if trouble != nil {
			err = trouble
		}
	}
	for i, said := range e.said {
		steps = append(steps, l.authenticate(&kmsg.SASLAuthenticateRequest{SASLAuthBytes: []byte(said)}))
		if !pipelined {
			answer(i)
		}
	}
	if pipelined {
		handshaken()
		for i := range e.said {
			answer(i)
		}
	}
	return ended, err
}

// A name counts once the broker has accepted it, whether or not requests are pipelined.
func TestLogin(t *testing.T) {
	scram := func(name string) exchange {
		return exchange{scram512, 0, []string{"n,,n=" + name + ",r=x", "c=biws,r=xy,p=proof"}, []string{"r=xy,s=salt,i=4096", "v=signature"}, 0}
	}
	half := scram("alice")
	half.said, half.answers = half.said[:1], half.answers[:1]
	liar := scram("alice")
	liar.answers = []string{"r=xy,s=salt,i=4096", "e=other-error"}
	failed := kerr.SaslAuthenticationFailed.Code
	for _, c := range []struct {
		name     string
		logins   []exchange
		want     string
		ended    bool
		underway bool
		failed   bool
		trouble  string
	}{
		{"nobody", nil, anonymous, false, false, false, ""},
		{"plain", []exchange{{plain, 0, []string{"\x00alice\x00x"}, []string{""}, 0}}, "alice", true, false, false, ""},
		{"plain, wrong", []exchange{{plain, 0, []string{"\x00alice\x00x"}, []string{""}, failed}}, anonymous, false, false, true, ""},
		{"scram", []exchange{scram("alice")}, "alice", true, false, false, ""},
		{"scram, its first half", []exchange{half}, anonymous, false, true, false, ""},
		{"scram, an answer that agrees to nobody", []exchange{liar}, anonymous, false, true, false, ""},
		{"token", []exchange{{oauthBearer, 0, []string{token(`{"sub":"alice"}`)}, []string{""}, 0}}, "alice", true, false, false, ""},
		{"token, refused", []exchange{{oauthBearer, 0, []string{token(`{"sub":"alice"}`), "\x01"}, []string{`{"status":"invalid_token"}`, ""}, failed}}, anonymous, false, false, true, ""},
		{"mechanism that the broker refuses", []exchange{{plain, kerr.UnsupportedSaslMechanism.Code, nil, nil, 0}}, anonymous, false, false, false, ""},
		{"and goes on nevertheless", []exchange{{plain, kerr.UnsupportedSaslMechanism.Code, []string{"\x00alice\x00x"}, []string{""}, kerr.IllegalSaslState.Code}}, anonymous, false, false, false, ""},
		{"mechanism that is not relayed", []exchange{{"GSSAPI", 0, nil, nil, 0}}, anonymous, false, false, true, ""},
		{"again", []exchange{scram("alice"), {plain, 0, []string{"\x00alice\x00x"}, []string{""}, 0}}, "alice", true, false, false, ""},
		{"again, as somebody else", []exchange{scram("alice"), scram("bob")}, "alice", false, true, false, "another principal"},
		{"again, as nobody knows whom", []exchange{scram("alice"), scram("id,r=x,tokenauth=true")}, "alice", true, false, false, ""},
		{"again, as known now", []exchange{scram("id,r=x,tokenauth=true"), scram("alice")}, "alice", true, false, false, ""},
		{"again, refused", []exchange{scram("alice"), {plain, kerr.IllegalSaslState.Code, nil, nil, 0}}, "alice", false, false, false, ""},
		{"again, failed", []exchange{scram("alice"), {plain, 0, []string{"\x00alice\x00y"}, []string{""}, failed}}, "alice", false, false, true, ""},
	} {
		for _, pipelined := range []bool{false, true} {
			l := login{claim: "sub"}
			var ended bool
			var err error
			for _, e := range c.logins {
				ended, err = e.run(&l, pipelined)
			}
			if l.principal().name != c.want || ended != c.ended || l.underway != c.underway || l.failed != c.failed || (err != nil) != (c.trouble != "") || err != nil && !strings.Contains(err.Error(), c.trouble) {
				t.Errorf("%s, pipelined %v: %+v, ended %v, %v", c.name, pipelined, l, ended, err)
			}
			if trouble := l.may(keyMetadata, 10); (trouble != nil) != c.failed {
				t.Errorf("%s: a request after it: %v", c.name, trouble)
			}
		}
	}
}

func TestLoginBounds(t *testing.T) {
	for _, c := range []struct {
		name string
		l    login
		key  int16
		n    int
		ok   bool
	}{
		{"a login", login{}, keySaslAuthenticate, mostLogin, true},
		{"a login that is too large", login{}, keySaslAuthenticate, mostLogin + 1, false},
		{"a handshake that is too large", login{}, keySaslHandshake, mostLogin + 1, false},
		{"a request without a login", login{}, keyProduce, 1 << 30, true},
		{"a request before a login", login{required: true}, keyProduce, 30, false},
		{"one for metadata", login{required: true}, keyMetadata, 30, false},
		{"the versions before a login", login{required: true}, keyApiVersions, 30, true},
		{"versions that are too large", login{required: true}, keyApiVersions, mostLogin + 1, false},
		{"the login itself", login{required: true}, keySaslHandshake, 30, true},
		{"a request after a login", login{required: true, done: true}, keyProduce, 1 << 30, true},
	} {
		if err := c.l.may(c.key, c.n); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// The buffer for a request grows with the bytes that have arrived, so an announced size costs no memory.
func TestRestGrowsWithWhatComes(t *testing.T) {
	const said = mostLogin
	client, other := net.Pipe()
	r := newRelay(&Server{}, nil, client)
	sent := make([]byte, 100<<10)
	for i := range sent {
		sent[i] = byte(i)
	}
	go func() {
		_, _ = other.Write(sent)
		_ = other.Close()
	}()
	frame := binary.BigEndian.AppendUint32(nil, said)
	if whole, err := r.rest(frame, said); whole != nil || err != io.ErrUnexpectedEOF {
		t.Errorf("%d bytes, %v", len(whole), err)
	}
	if _, err := r.rest(frame, 1<<50); err != io.EOF { // more than any machine has
		t.Error(err)
	}

	client, other = net.Pipe()
	r = newRelay(&Server{}, nil, client)
	go func() { _, _ = other.Write(sent) }()
	if whole, err := r.rest(frame, len(sent)); err != nil || !bytes.Equal(whole[4:], sent) {
		t.Errorf("%d bytes, %v", len(whole), err)
	}
}

// Mechanisms that are not relayed are in no answer.
func TestMechanisms(t *testing.T) {
	var l login
	resp := &kmsg.SASLHandshakeResponse{SupportedMechanisms: []string{"GSSAPI", plain, "CUSTOM", scram512}}
	l.handshaken(l.handshake(&kmsg.SASLHandshakeRequest{Mechanism: "GSSAPI"}), resp)
	if !slices.Equal(resp.SupportedMechanisms, []string{plain, scram512}) || resp.ErrorCode != kerr.UnsupportedSaslMechanism.Code {
		t.Errorf("%+v", resp)
	}
}

// No login message causes a panic, and an accepted principal stays.
func FuzzLogin(f *testing.F) {
	f.Add(plain, []byte("\x00alice\x00secret"))
	f.Add(scram256, []byte("n,a=x,m=y,n=a=2Cb,r=nonce,tokenauth=true"))
	f.Add(oauthBearer, []byte(token(`{"sub":"alice"}`)))
	f.Fuzz(func(t *testing.T, mechanism string, said []byte) {
		l := login{user: principal{name: "alice", known: true}, done: true, claim: "sub"}
		l.handshake(&kmsg.SASLHandshakeRequest{Mechanism: mechanism})
		s := l.authenticate(&kmsg.SASLAuthenticateRequest{SASLAuthBytes: said})
		if s.user.known == (s.user.name == "") || s.user.known && s.user.token != "" {
			t.Fatalf("%+v", s.user)
		}
		_, err := l.authenticated(s, &kmsg.SASLAuthenticateResponse{})
		if l.principal().name != "alice" {
			t.Fatalf("%+v, %v", l.principal(), err)
		}
		r := request{key: keySaslAuthenticate, version: 2}
		_, _ = r.login(said)
	})
}
