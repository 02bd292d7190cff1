package kafka

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// connectionModel is a connection and a naive model of it: lists of all events, from which each answer is computed anew. The two goroutines
// of a relay are two places in the test that take steps in turn.
type connectionModel struct {
	*testing.T
	connection
	step int
	now  time.Time

	clients  string    // the longest client id
	sent     []int32   // requests, in their order
	toBroker []pending // those of them that the broker has yet to answer
	written  []int32   // answers, in their order
	writers  [2][]byte // what each goroutine writes now: requests, answers

	mutes []mute
	left  bool // the client is let go

	users     []string // to whom the broker has agreed, in their order
	handshake bool     // a login has begun, and its end is not known
	claims    string   // whom it is for; empty until that is said
	refused   bool     // a login has failed
	ended     bool     // by a fault of the protocol
}

func (m *connectionModel) fatal(format string, args ...any) {
	m.Helper()
	m.Fatalf("step %d: %s", m.step, fmt.Sprintf(format, args...))
}

// wouldRead reports whether a request of the client would be read now.
func (m *connectionModel) wouldRead() bool {
	return m.writers[0] == nil && !m.full() && !m.leaving && m.mutedFor(m.now) == 0 && m.login.may(keyMetadata, 100) == nil
}

// request makes a request arrive. If own is set, the gateway itself answers it.
func (m *connectionModel) request(p pending, own bool) {
	if !m.wouldRead() || len(m.sent) > 250 {
		return
	}
	m.mayRead()
	p.correlation = int32(len(m.sent))
	p.client = m.clients[:len(m.clients)*(len(m.sent)%3)/2]
	m.sent = append(m.sent, p.correlation)
	if own {
		p.own = []byte{byte(p.correlation)}
		m.expect(p)
		m.writers[0] = m.firstOwn()
		return
	}
	m.toBroker = append(m.toBroker, p)
	m.expect(p)
}

// mayRead checks that a request may be read now. During a login a request may be read even if the connection is muted.
func (m *connectionModel) mayRead() {
	m.Helper()
	if m.left || m.refused || !m.handshake && m.until().After(m.now) {
		m.fatal("a request is read that must not be: %+v", m)
	}
}

// until is the end of the last mute.
func (m *connectionModel) until() (last time.Time) {
	for _, one := range m.mutes {
		if one.until.After(last) {
			last = one.until
		}
	}
	return last
}

// logIn makes the next request of a login arrive, for one of three principals.
func (m *connectionModel) logIn(who int) {
	if !m.wouldRead() || len(m.sent) > 250 || m.handshake && m.claims != "" {
		return // clients wait for the end of one
	}
	m.mayRead()
	if !m.handshake {
		m.handshake = true
		m.request(pending{request: request{key: keySaslHandshake}, step: m.login.handshake(&kmsg.SASLHandshakeRequest{Mechanism: plain})}, false)
		return
	}
	m.claims = []string{"alice", "bob", "eve"}[who%3]
	m.request(pending{request: request{key: keySaslAuthenticate}, step: m.login.authenticate(&kmsg.SASLAuthenticateRequest{SASLAuthBytes: []byte("\x00" + m.claims + "\x00secret")})}, false)
}

// answer makes the broker answer its first request. It accepts a login or not.
func (m *connectionModel) answer(agrees bool) {
	if m.writers[1] != nil || m.ended {
		return
	}
	if len(m.pending) > 0 && m.pending[0].own != nil {
		if _, err := m.requestFor(m.pending[0].correlation); err == nil {
			m.fatal("an answer of the broker is taken for one of the gateway's own")
		}
	}
	if len(m.toBroker) == 0 {
		if _, err := m.requestFor(int32(len(m.sent)) + 1000); err == nil {
			m.fatal("an answer to nothing is taken")
		}
		return
	}
	next := m.toBroker[0]
	if _, err := m.requestFor(next.correlation + 1); err == nil {
		m.fatal("an answer to request %d is taken for one to %d", next.correlation+1, next.correlation)
	}
	if m.pending[0].own != nil {
		return // what is before it has yet to be written, and only then the broker's answer can be read
	}
	p, err := m.requestFor(next.correlation)
	if err != nil || p.correlation != next.correlation {
		m.fatal("%+v, %v", p, err)
	}
	switch p.key {
	case keySaslHandshake:
		m.login.handshaken(p.step, new(kmsg.SASLHandshakeResponse))
	case keySaslAuthenticate:
		m.agree(p.step, agrees)
	}
	m.toBroker, m.written = m.toBroker[1:], append(m.written, p.correlation)
	m.answered()
	m.writers[1] = m.firstOwn()
}

// agree makes the broker decide about a login.
func (m *connectionModel) agree(s step, agrees bool) {
	resp := new(kmsg.SASLAuthenticateResponse)
	if !agrees {
		resp.ErrorCode = kerr.SaslAuthenticationFailed.Code
	}
	before := m.login.principal()
	ended, err := m.login.authenticated(s, resp)
	other := len(m.users) > 0 && m.users[0] != m.claims
	if ended != (agrees && !other) || (err != nil) != (agrees && other) {
		m.fatal("%q after %v, agreed %v: ended %v, %v", m.claims, m.users, agrees, ended, err)
	}
	switch {
	case !agrees:
		m.refused = true
	case other:
		m.ended = true // and who it was stays
	default:
		m.users = append(m.users, m.claims)
	}
	if (!agrees || other) && m.login.principal() != before {
		m.fatal("%+v, and it was %+v", m.login.principal(), before)
	}
	m.handshake, m.claims = false, ""
}

// wrote lets a goroutine end the writing of an own answer.
func (m *connectionModel) wrote(writer int) {
	if own := m.writers[writer]; own != nil {
		m.written = append(m.written, int32(own[0]))
		m.writers[writer] = m.nextOwn()
	}
}

// check compares the visible state with the model.
func (m *connectionModel) check() {
	who := anonymous
	if len(m.users) > 0 {
		who = m.users[0] // nobody becomes somebody else
	}
	if p := m.login.principal(); p.name != who || !p.known {
		m.fatal("it is %+v, not %q", p, who)
	}
	left := max(m.until().Sub(m.now), 0)
	if m.left || m.handshake || m.ended {
		left = 0
	}
	if got := m.mutedFor(m.now); got != left {
		m.fatal("muted for %v, not %v", got, left)
	}
	if left > 0 && !slices.ContainsFunc(m.mutes, func(one mute) bool { return one == m.muted && one.until.Equal(m.until()) }) {
		m.fatal("muted by %+v, of %+v", m.muted, m.mutes)
	}
	if m.writers[0] != nil && m.writers[1] != nil {
		m.fatal("both goroutines write")
	}
	if len(m.sent)-len(m.written) != len(m.pending) || !slices.Equal(m.written, m.sent[:len(m.written)]) {
		m.fatal("answers to %v, of requests %v, %d pending", m.written, m.sent, len(m.pending))
	}
	kept := 0
	for i := range m.pending {
		p := &m.pending[i]
		kept += int(unsafe.Sizeof(*p)) + len(p.client) + len(p.own) + len(p.step.mechanism) + len(p.step.user.name) + len(p.step.user.token) + len(p.rule) + len(p.bucket)
	}
	if m.connection.kept != kept || m.full() != (kept >= mostKept) {
		m.fatal("%d bytes are kept of %d pending, not %d; full: %v", m.connection.kept, len(m.pending), kept, m.full())
	}
	if m.over() != (m.left && len(m.written) == len(m.sent)) {
		m.fatal("over: %v, with %d of %d answered, let go %v", m.over(), len(m.written), len(m.sent), m.left)
	}
}

// A connection agrees with a model of it. Answers are in the order of their requests, and each is written once, by one goroutine at a time.
// The principal follows the broker's answers. No request is read while the connection is muted or drained, and it is over when the last
// answer is written.
func FuzzConnection(f *testing.F) {
	f.Add([]byte{0, 1, 1, 2, 3, 1, 3, 2, 4})
	f.Add([]byte{1, 3, 1, 0, 1, 2, 4, 1, 3, 3, 4, 4})
	f.Add([]byte{5, 2, 5, 2, 0, 8, 90, 7, 200, 0, 2, 5, 2, 15, 2})                                    // a login, a mute, and again as somebody else
	f.Add([]byte{5, 2, 5, 6, 0, 1, 2})                                                                // one that fails
	f.Add([]byte{0, 0, 1, 7, 5, 9, 2, 0, 2, 4, 1})                                                    // let go with answers under way
	f.Add([]byte{5, 8, 250, 2, 15, 2, 0, 7, 251, 0})                                                  // muted while a login is under way, and from its end on
	f.Add([]byte{5, 2, 5, 2, 5, 15, 8, 48})                                                           // muted, and its login ends it
	f.Add([]byte{8, 250, 8, 10, 7, 9, 0, 7, 240, 0, 8, 3, 9, 0, 2, 2, 2, 2})                          // two mutes, of which the longer counts
	f.Add(slices.Concat(slices.Repeat([]byte{0}, 40), slices.Repeat([]byte{2}, 40), []byte{0, 1, 3})) // more than is kept
	f.Fuzz(func(t *testing.T, program []byte) {
		if len(program) > 2000 {
			return // the model looks at everything after each step
		}
		m := &connectionModel{T: t, now: time.Unix(1e9, 0), clients: strings.Repeat("c", 32<<10)}
		at := 0
		arg := func() int {
			if at++; at < len(program) {
				return int(program[at])
			}
			return 0
		}
		for ; at < len(program) && !m.ended; at++ {
			m.step = at
			switch op := program[at]; op % 10 {
			case 0:
				m.request(pending{}, false)
			case 1:
				m.request(pending{}, true)
			case 2:
				m.answer(true)
			case 3, 4:
				m.wrote(int(op%10) - 3)
			case 5:
				m.logIn(int(op / 10))
			case 6:
				m.answer(false)
			case 7:
				m.now = m.now.Add(time.Duration(arg()) * time.Millisecond)
			case 8:
				one := mute{m.now.Add(time.Duration(arg()) * time.Millisecond), "produce", fmt.Sprint(len(m.mutes))}
				m.mutes = append(m.mutes, one)
				m.mute(one)
			case 9:
				m.left = true
				m.leave()
			}
			m.check()
		}
		for m.step = -1; len(m.pending) > 0 && !m.ended; { // let all end
			before := len(m.written)
			m.wrote(0)
			m.wrote(1)
			m.answer(true)
			m.check()
			if len(m.written) == before {
				m.fatal("nobody writes, and %d answers are pending", len(m.pending))
			}
		}
	})
}
