package kafka

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// decodedRequests are the requests that the gateway decodes completely.
var decodedRequests = []int16{keyMetadata, keySaslHandshake, keyCreateTopics, keyDeleteTopics, keySaslAuthenticate, keyCreatePartitions, keyDescribeQuotas, keyAlterQuotas}

// seeds are requests as clients send them: those of real ones, and each API that is offered, in its first and its last version.
func seeds(f *testing.F, add func(b []byte)) {
	for _, e := range recordedExchanges(f) {
		for _, s := range e.frames {
			if !s.answer {
				add(s.b)
			}
		}
	}
	for key, of := range offered {
		for _, version := range []int16{of.min, of.max} {
			add(sent("app", version, kmsg.RequestForKey(key)))
		}
	}
	fetch := kmsg.NewPtrFetchRequest()
	fetch.MaxBytes = 1 << 20
	add(sent("", 15, fetch))
	txn := kmsg.NewPtrProduceRequest()
	txn.TransactionID = kmsg.StringPtr("t")
	add(sent("app", 3, txn))
	add(sent("app", 9, txn))
	add(sent("app", 7, create(7, "a", 3, "b", -1)))
	name := "a"
	remove := kmsg.NewPtrDeleteTopicsRequest()
	remove.TopicNames = []string{name}
	add(sent("app", 1, remove))
	add(sent("app", 12, metadata(12, true, "a")))
	f.Add([]byte{0, 1, 0, 12, 0, 0, 0, 7, 0xff, 0xff, 1, 77, 4, 'h', 'e', 'a', 'd'})
	f.Add(bytes.Repeat([]byte{0xff}, 40))
}

// The beginning of a request may arrive in any pieces. The result is always the same, lies within the request, and needs no bytes beyond
// the request.
func FuzzReadRequest(f *testing.F) {
	seeds(f, func(b []byte) { f.Add(b) })
	f.Fuzz(func(t *testing.T, b []byte) {
		whole, more, err := readRequest(b, len(b))
		if len(b) >= leastRequest && more && err == nil {
			t.Fatalf("more than its %d bytes is wanted", len(b))
		}
		for cut := range b {
			part, more, errPart := readRequest(b[:cut], len(b))
			if more && errPart == nil {
				continue
			}
			if (errPart == nil) != (err == nil) || errPart == nil && part != whole {
				t.Fatalf("of %d bytes %+v, %v; of all %+v, %v", cut, part, errPart, whole, err)
			}
			break
		}
		if err != nil {
			var why endError
			if !errors.As(err, &why) {
				t.Fatalf("%T", err)
			}
			return
		}
		if whole.maxBytes > 0 && whole.maxBytes+4 > len(b) {
			t.Fatalf("max_bytes at %d of %d", whole.maxBytes, len(b))
		}
		if own := whole.ownAnswer(); own != nil && (int(binary.BigEndian.Uint32(own)) != len(own)-4 || int32(binary.BigEndian.Uint32(own[4:])) != whole.correlation) {
			t.Fatalf("an answer of its own: %x", own)
		}
	})
}

// The bytes of a client are read, or end its connection. A request that is written again has the same content and header. Questions about a
// mutation can be asked. Whichever topics are refused, each topic is in the answer.
func FuzzDecodedRequests(f *testing.F) {
	seeds(f, func(b []byte) { f.Add(b) })
	f.Fuzz(func(t *testing.T, b []byte) {
		r, more, err := readRequest(b, len(b))
		if err != nil || more {
			return
		}
		req := requestIn(r.key)
		if req == nil {
			return
		}
		req.SetVersion(r.version)
		if readBody(b, req) != nil {
			return
		}
		frame := likeRequest(b, req, req)
		again := requestIn(r.key)
		again.SetVersion(r.version)
		same, more, err := readRequest(frame[4:], len(frame)-4)
		if int(binary.BigEndian.Uint32(frame)) != len(frame)-4 || err != nil || more || same.key != r.key || same.version != r.version || same.correlation != r.correlation || same.client != r.client {
			t.Fatalf("%+v, %v, %v; it was %+v", same, more, err, r)
		}
		if err := readBody(frame[4:], again); err != nil {
			t.Fatal(err)
		}
		if a, b := req.AppendTo(nil), again.AppendTo(nil); !bytes.Equal(a, b) {
			t.Fatalf("%x\n%x", a, b)
		}
		if strictFrom[r.key] == 0 {
			return
		}
		m, err := readMutation(&r, b)
		if err != nil {
			t.Fatal(err)
		}
		for _, q := range m.questions() {
			_ = likeRequest(b, m, q)
			m.hear(q.ResponseKind())
		}
		for i, n := range m.count(new(noSizes)) {
			if n > 0 {
				t.Fatalf("%d partitions of topic %d, of which no broker knows", n, i)
			}
			m.all[i].code, m.all[i].why = 89, "owed"
		}
		resp := m.merged(nil, m.all)
		resp.SetVersion(r.version)
		resp.AppendTo(nil)
		if len(m.results(resp)) == 0 && len(m.all) > 0 {
			t.Fatalf("%d topics, and none is in the answer", len(m.all))
		}
	})
}

// noSizes knows no topic.
type noSizes struct{}

func (*noSizes) byDefault() int64    { return 1 }
func (*noSizes) lately(string) int64 { return 1 }

// requestIn returns an empty request of a kind that is decoded, nil for any other.
func requestIn(key int16) kmsg.Request {
	for _, k := range decodedRequests {
		if k == key {
			return kmsg.RequestForKey(key)
		}
	}
	return nil
}

// The answer of a broker is read, or ends the connection. In any answer, nodes are replaced, and a throttle time is set.
func FuzzDecodedAnswers(f *testing.F) {
	for key, of := range offered {
		r := request{key: key}
		for version := of.min; version <= of.max; version++ {
			if resp := r.response(); resp != nil {
				f.Add(key, version, answer(version, resp)[4:])
			}
		}
	}
	for _, e := range recordedExchanges(f) {
		for _, s := range e.frames {
			if s.answer {
				f.Add(s.of.key, s.of.version, s.b)
			}
		}
	}
	fetched := kmsg.NewPtrFetchResponse()
	f.Add(int16(keyFetch), int16(15), answer(15, fetched)[4:])
	f.Add(int16(keyFetch), int16(12), []byte("0"))
	f.Fuzz(func(t *testing.T, key, version int16, b []byte) {
		of, ok := offered[key]
		if !ok || version < of.min || version > of.max {
			return
		}
		if key == keyFetch {
			was := bytes.Clone(b)
			if err := raiseFetch(b, version, 1000); err == nil && len(b) != len(was) {
				t.Fatal("an answer to a fetch has another size")
			}
			return
		}
		r := request{key: key, version: version}
		if r.response() == nil {
			return
		}
		resp, body, err := r.decode(b)
		if err != nil {
			return
		}
		replace(resp, func(int32, string, int32) (string, int32, bool) { return "gateway", 9100, true })
		raise(resp, 1000)
		out := encode(b[:body], resp)
		if int(binary.BigEndian.Uint32(out)) != len(out)-4 || !bytes.HasPrefix(out[4:], b[:body]) {
			t.Fatalf("%x", out)
		}
		if _, _, err := r.decode(out[4:]); err != nil {
			t.Fatal(err)
		}
	})
}

// Steps of logins come in any order, with any answers, pipelined or not. The principal is always one that the broker has accepted, and
// never changes. After a failure no request is passed on.
func FuzzLoginSteps(f *testing.F) {
	f.Add([]byte{0, 4, 8, 1, 12})
	f.Add([]byte{1, 5, 6, 9, 10, 1, 5, 6, 13, 14})
	f.Add([]byte{2, 7, 3, 7, 11, 15, 19, 23})
	f.Fuzz(func(t *testing.T, program []byte) {
		mechanisms := []string{plain, scram256, oauthBearer, "GSSAPI"}
		says := []string{"\x00alice\x00x", "n,,n=alice,r=x", "c=biws,r=xy,p=z", token(`{"sub":"bob"}`), "n,,n=tid,r=x,tokenauth=true", "\x01", "", "\x00bob\x00x"}
		answered := []string{"", "v=x", "r=xy", "e=no", "{}"}
		l := login{claim: "sub"}
		type question struct {
			step
			handshake bool
		}
		var asked []question
		agreed := map[string]bool{anonymous: true, "": true}
		was := principal{}
		for _, op := range program {
			n := int(op / 4)
			switch op % 4 {
			case 0:
				asked = append(asked, question{l.handshake(&kmsg.SASLHandshakeRequest{Mechanism: mechanisms[n%len(mechanisms)]}), true})
			case 1:
				asked = append(asked, question{l.authenticate(&kmsg.SASLAuthenticateRequest{SASLAuthBytes: []byte(says[n%len(says)])}), false})
			default:
				if len(asked) == 0 {
					continue
				}
				q := asked[0]
				asked = asked[1:]
				code := int16(0)
				if op%4 == 3 {
					code = 58
				}
				if q.handshake {
					resp := &kmsg.SASLHandshakeResponse{ErrorCode: code, SupportedMechanisms: mechanisms}
					l.handshaken(q.step, resp)
					if len(resp.SupportedMechanisms) != 3 {
						t.Fatalf("%v are offered", resp.SupportedMechanisms)
					}
					continue
				}
				failed := l.failed
				resp := &kmsg.SASLAuthenticateResponse{ErrorCode: code, SASLAuthBytes: []byte(answered[n%len(answered)])}
				ended, err := l.authenticated(q.step, resp)
				if ended {
					agreed[q.user.name] = true
				}
				if ended && (code != 0 || err != nil) || failed && !l.failed {
					t.Fatalf("code %d, ended %v, %v, failed %v and then %v", code, ended, err, failed, l.failed)
				}
				if err != nil {
					return // the connection has ended
				}
			}
			if l.failed && l.may(keyMetadata, 10) == nil {
				t.Fatal("a request is let through after a failure")
			}
			p := l.principal()
			if !agreed[p.name] {
				t.Fatalf("the client is %q, to whom no broker has agreed", p.name)
			}
			if was.known && l.done && p.name != was.name {
				t.Fatalf("%q becomes %q", was.name, p.name)
			}
			if l.done {
				was = p
			}
		}
	})
}

// A connection with any bytes ends. The broker has got only whole requests, and perhaps the beginning of the last one.
func FuzzFraming(f *testing.F) {
	for _, e := range recordedExchanges(f) {
		f.Add(e.stream(false))
	}
	seeds(f, func(b []byte) { f.Add(append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)) })
	f.Fuzz(func(t *testing.T, b []byte) {
		for at := 0; at+4 <= len(b); {
			n := int(int32(binary.BigEndian.Uint32(b[at:])))
			at += 4
			if n < leastRequest || at+n > len(b) {
				return
			}
			req, more, err := readRequest(b[at:at+n], n)
			if err != nil {
				return
			}
			if more {
				t.Fatalf("a whole request of %d bytes needs more: %+v", n, req)
			}
			var moved bytes.Buffer
			if err := copyN(&moved, bytes.NewReader(b[at:]), n, make([]byte, 16)); err != nil || moved.Len() != n {
				t.Fatalf("%d of %d bytes, %v", moved.Len(), n, err)
			}
			if err := copyN(io.Discard, bytes.NewReader(b[at:at+n-1]), n, make([]byte, 16)); !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Fatalf("what is cut off is copied: %v", err)
			}
			at += n
		}
	})
}
