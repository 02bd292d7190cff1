package kafka

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/accept"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/policy"
)

// secret is the password or token of the clients in these tests. It must be in no log.
const secret = "pa55w0rd"

// handshake asks for a mechanism, and returns the broker's answer.
func (r *rig) handshake(client, broker net.Conn, mechanism string, code int16) *kmsg.SASLHandshakeResponse {
	r.Helper()
	req := kmsg.NewPtrSASLHandshakeRequest()
	req.Mechanism = mechanism
	r.write(client, framed("app", 1, req))
	r.frame(broker)
	resp := kmsg.NewPtrSASLHandshakeResponse()
	resp.ErrorCode, resp.SupportedMechanisms = code, []string{"GSSAPI", plain, scram256, scram512, oauthBearer}
	r.write(broker, answer(1, resp))
	resp = kmsg.NewPtrSASLHandshakeResponse()
	resp.SetVersion(1)
	if err := resp.ReadFrom(r.frame(client)[4:]); err != nil {
		r.Fatal(err)
	}
	return resp
}

// says makes a step of a login, with the given answer of the broker.
func (r *rig) says(client, broker net.Conn, said, answered string, code int16) *kmsg.SASLAuthenticateResponse {
	r.Helper()
	req := kmsg.NewPtrSASLAuthenticateRequest()
	req.SASLAuthBytes = []byte(said)
	r.write(client, framed("app", 2, req))
	r.frame(broker)
	resp := kmsg.NewPtrSASLAuthenticateResponse()
	resp.ErrorCode, resp.SASLAuthBytes = code, []byte(answered)
	if code != 0 {
		resp.ErrorMessage = kmsg.StringPtr("no")
	}
	r.write(broker, answer(2, resp))
	resp = kmsg.NewPtrSASLAuthenticateResponse()
	resp.SetVersion(2)
	if err := resp.ReadFrom(r.frame(client)[5:]); err != nil {
		r.Fatal(err)
	}
	return resp
}

// A client that logs in with a delegation token counts as the token's owner. If the owner is unknown, no client is delayed, and the log
// says why.
func TestTokenIsItsOwner(t *testing.T) {
	for owner, named := range map[string]bool{"alice": true, "": false} {
		r := newRig(t, policy.Enforce, time.Minute)
		r.server.owns.ask = func(context.Context) (*kmsg.DescribeDelegationTokenResponse, error) {
			if owner == "" {
				return nil, io.ErrUnexpectedEOF
			}
			resp, d := kmsg.NewPtrDescribeDelegationTokenResponse(), kmsg.NewDescribeDelegationTokenResponseTokenDetail()
			d.TokenID, d.PrincipalName = "tid", owner
			resp.TokenDetails = append(resp.TokenDetails, d)
			return resp, nil
		}
		client, broker := r.pair()
		r.handshake(client, broker, scram256, 0)
		r.says(client, broker, "n,,n=tid,r=x,tokenauth=true", "r=xy,s=c2FsdA==,i=4096", 0)
		r.says(client, broker, "c=biws,r=xy,p="+secret, "v=c2ln", 0)
		r.write(client, produce(9, 0, 4000))
		r.frame(broker)
		d, _ := r.gate.Quota().Peek(t.Context(), weir.Work{User: owner, Client: "app"})
		if d.Remaining != 6000 {
			t.Errorf("%q: %v left", owner, d.Remaining)
		}
		s := r.server.Snapshot()
		if s.Logins != 1 || (s.LoginsUnnamed == 0) != named || strings.Contains(r.logs.String(), "the owner of a delegation token") == named {
			t.Errorf("%q: %+v\n%s", owner, s, r.logs)
		}
	}
}

// A login that fails in any step has the broker's own error, and no request after it is served. The log has nothing of its messages.
func TestLoginsThatFail(t *testing.T) {
	failed := kerr.SaslAuthenticationFailed.Code
	nonce := "n,,n=alice,r=" + secret
	for _, c := range []struct {
		name, mechanism string
		refused         int16
		said, answers   []string // the last is refused
		served          bool     // a request behind it
	}{
		{"a mechanism that nobody has", "X-" + plain, kerr.UnsupportedSaslMechanism.Code, nil, nil, true},
		{"GSSAPI, which the broker would take", "GSSAPI", 0, nil, nil, false},
		{"PLAIN", plain, 0, []string{"\x00alice\x00" + secret}, []string{""}, false},
		{"PLAIN of nothing", plain, 0, []string{""}, []string{""}, false},
		{"SCRAM, the first step", scram512, 0, []string{nonce}, []string{""}, false},
		{"SCRAM, the second", scram512, 0, []string{nonce, "c=biws,r=xy,p=" + secret}, []string{"r=xy,s=c2FsdA==,i=4096", ""}, false},
		{"SCRAM, an error in its own words", scram256, 0, []string{nonce, "c=biws,r=xy,p=" + secret}, []string{"r=xy,s=c2FsdA==,i=4096", "e=invalid-proof"}, false},
		{"OAUTHBEARER", oauthBearer, 0, []string{token(`{"sub":"` + secret + `"}`), "\x01"}, []string{`{"status":"invalid_token"}`, ""}, false},
		{"OAUTHBEARER of nonsense", oauthBearer, 0, []string{"n,,\x01auth=Bearer " + secret + "\x01\x01"}, []string{""}, false},
		{"many steps", scram256, 0, []string{nonce, nonce, nonce, nonce, nonce}, []string{"r=xy,s=c2FsdA==,i=4096", "", "", "", ""}, false},
	} {
		r := newRig(t, policy.Enforce, time.Minute)
		client, broker := r.pair()
		r.handshake(client, broker, c.mechanism, c.refused)
		for i, said := range c.said {
			code := int16(0)
			if i == len(c.said)-1 {
				code = failed
			}
			if resp := r.says(client, broker, said, c.answers[i], code); resp.ErrorCode != code || string(resp.SASLAuthBytes) != c.answers[i] {
				t.Errorf("%s: step %d: %+v", c.name, i, resp)
			}
		}
		r.write(client, framed("app", 0, kmsg.NewPtrListGroupsRequest()))
		_ = broker.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := broker.Read(make([]byte, 4)); (err == nil) != c.served {
			t.Errorf("%s: the broker gets a request behind it: %v", c.name, err)
		}
		if s := r.server.Snapshot(); s.Logins != 0 {
			t.Errorf("%s: %+v", c.name, s)
		}
		isSilent(r, c.name)
	}
}

// A login request that cannot be read ends the connection, and is not in the log either.
func TestLoginsThatCannotBeRead(t *testing.T) {
	whole := func(claimed uint32) []byte {
		req := kmsg.NewPtrSASLAuthenticateRequest()
		req.SASLAuthBytes = []byte("\x00alice\x00" + secret)
		b := framed("app", 1, req)
		at := len(b) - len(req.SASLAuthBytes) - 4
		b[at], b[at+1], b[at+2], b[at+3] = byte(claimed>>24), byte(claimed>>16), byte(claimed>>8), byte(claimed)
		return b
	}
	for _, claimed := range []uint32{1 << 31, 1<<31 - 1, 1 << 20, 100} {
		r := newRig(t, policy.Enforce, time.Minute)
		client, broker := r.pair()
		r.handshake(client, broker, plain, 0)
		r.write(client, whole(claimed))
		if n, err := broker.Read(make([]byte, 1)); err == nil {
			t.Errorf("%d: the broker gets %d bytes", claimed, n)
		}
		isSilent(r, "unreadable")
	}
}

// A login that is not complete after 10 s ends the connection, whatever is sent meanwhile. So does a missing login if the cluster requires
// one. After a login there is no such bound: a client that logs in again may wait for answers first.
func TestLoginsThatNeverEnd(t *testing.T) {
	shake := func(mechanism string) []byte {
		return framed("app", 1, &kmsg.SASLHandshakeRequest{Mechanism: mechanism})
	}
	step := framed("app", 2, &kmsg.SASLAuthenticateRequest{SASLAuthBytes: []byte("\x00alice\x00" + secret)})
	for name, c := range map[string]struct {
		required bool
		says     func(say func([]byte))
		answers  string        // of the broker to each step
		ends     time.Duration // 0: it stays
	}{
		"nothing is said":                        {says: func(func([]byte)) {}},
		"nothing is said, where somebody has to": {required: true, says: func(func([]byte)) {}, ends: loginWithin},
		"it stops behind the handshake": {says: func(say func([]byte)) {
			time.Sleep(time.Minute)
			say(shake(plain))
		}, ends: time.Minute + loginWithin},
		"a byte a second": {says: func(say func([]byte)) {
			say(shake(plain))
			for i := range step {
				time.Sleep(time.Second)
				say(step[i : i+1])
			}
		}, ends: loginWithin},
		"steps without end": {says: func(say func([]byte)) {
			say(shake(scram512))
			for range 100 {
				time.Sleep(time.Second)
				say(step)
			}
		}, answers: "r=xy,s=c2FsdA==,i=4096", ends: loginWithin},
		"handshakes without end": {required: true, says: func(say func([]byte)) {
			for range 100 {
				say(shake(plain))
				time.Sleep(time.Second)
			}
		}, ends: loginWithin},
		"one that ends in time": {required: true, says: func(say func([]byte)) {
			time.Sleep(loginWithin / 2)
			say(shake(plain))
			time.Sleep(loginWithin/2 - time.Millisecond)
			say(step)
		}},
		"a login again": {says: func(say func([]byte)) {
			for range 2 {
				say(shake(plain))
				say(step)
				time.Sleep(time.Minute)
			}
			say(shake(plain)) // the broker bounds how long the login before holds
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, broker, logs := waiting(t)
				client := connected(r)
				r.mu.Lock()
				r.state.login.required = c.required
				r.hurry() // as behind connect
				r.mu.Unlock()
				var all sync.WaitGroup
				defer all.Wait()
				defer r.close()
				all.Go(func() { _ = r.requests() })
				all.Go(func() { _ = r.answers() })
				all.Go(func() { agreeing(broker, c.answers) })
				began, ended := time.Now(), make(chan time.Duration, 1)
				all.Go(func() {
					_, _ = io.Copy(io.Discard, client)
					ended <- time.Since(began)
				})
				all.Go(func() { c.says(func(b []byte) { _, _ = client.Write(b) }) })
				time.Sleep(time.Hour)
				synctest.Wait()
				if over := len(ended) > 0; over != (c.ends > 0) {
					t.Fatalf("ended: %v", over)
				} else if !over {
					return
				}
				if after := <-ended; after != c.ends || !strings.Contains(logs.String(), "a login was not complete within 10s") {
					t.Errorf("ended after %v, want %v\n%s", after, c.ends, logs)
				}
			})
		})
	}
}

// A client that does not complete its TLS handshake is cut off in time, and no broker sees it.
func TestHandshakeThatNeverEnds(t *testing.T) {
	cert, key := selfSigned(t)
	k := config.KafkaListen{TLS: &config.TLS{Cert: cert, Key: key}}
	k.SetDefaults()
	conns, err := accept.Open(accept.Options{Config: k.Listener("127.0.0.1:0"), Bare: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conns.Close() })
	synctest.Test(t, func(t *testing.T) {
		r, _, _ := waiting(t)
		defer r.close()
		client := connected(r)
		r.server.opts.Conns = conns
		go func() { _, _ = client.Write([]byte{0x16, 3, 1, 2, 0, 1}) }() // half of a beginning
		begun := time.Now()
		if err := r.connect(); err == nil || time.Since(begun) != connectWithin {
			t.Errorf("%v after %v", err, time.Since(begun))
		}
	})
}

// agreeing is a broker that accepts every login message, until its connection ends.
func agreeing(c net.Conn, says string) {
	for {
		var head [8]byte // with key and version
		if _, err := io.ReadFull(c, head[:]); err != nil {
			return
		}
		if _, err := io.CopyN(io.Discard, c, int64(binary.BigEndian.Uint32(head[:]))-4); err != nil {
			return
		}
		b := answer(1, kmsg.NewPtrSASLHandshakeResponse())
		if binary.BigEndian.Uint16(head[4:]) == keySaslAuthenticate {
			b = answer(2, &kmsg.SASLAuthenticateResponse{SASLAuthBytes: []byte(says)})
		}
		if _, err := c.Write(b); err != nil {
			return
		}
	}
}

// isSilent checks that the log has nothing of the login messages, in any form.
func isSilent(r *rig, name string) {
	r.Helper()
	text := r.logs.String()
	for _, form := range []string{secret, base64.StdEncoding.EncodeToString([]byte(secret))[:10], base64.RawURLEncoding.EncodeToString([]byte(`{"sub":"` + secret))[:14], "alice", "biws"} {
		if strings.Contains(text, form) {
			r.Errorf("%s: %q is in the log:\n%s", name, form, text)
		}
	}
}

// A muted client may log in again, because without that login its connection would end. The mute holds for requests after the login.
func TestMuteWaitsForLogin(t *testing.T) {
	r := newRig(t, policy.Enforce, 20*time.Second)
	client, broker := r.pair()
	r.write(client, framed("app", 12, kmsg.NewPtrFetchRequest()))
	r.frame(broker)
	shake := kmsg.NewPtrSASLHandshakeRequest()
	shake.Mechanism = plain
	r.write(client, framed("app", 1, shake))
	r.frame(broker) // it has been read: the login is under way
	fetched := kmsg.NewPtrFetchResponse()
	topic, part := kmsg.NewFetchResponseTopic(), kmsg.NewFetchResponseTopicPartition()
	part.RecordBatches = make([]byte, 1<<20)
	topic.Partitions = append(topic.Partitions, part)
	fetched.Topics = append(fetched.Topics, topic)
	r.write(broker, answer(12, fetched))
	r.frame(client)
	r.write(broker, answer(1, kmsg.NewPtrSASLHandshakeResponse()))
	r.frame(client)
	if s := r.server.Snapshot(); s.ThrottledFetch.Times != 1 || s.Muted != 0 {
		t.Fatalf("%d delayed, %d muted", s.ThrottledFetch.Times, s.Muted)
	}
	r.says(client, broker, "\x00alice\x00"+secret, "", 0)
	if s := r.server.Snapshot(); s.Muted != 1 || s.MutedLongest[0].User != "alice" {
		t.Errorf("muted: %+v", s.MutedLongest)
	}
}
