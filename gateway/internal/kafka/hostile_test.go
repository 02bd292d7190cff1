package kafka

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/accept"
	"github.com/weir-go/weir/gateway/internal/await"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/quota"
)

// sized is bytes in a frame that claims another size.
func sized(n uint32, b []byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, n), b...)
}

// Bytes that are not a request end their own connection, and no broker gets them. Other clients are served meanwhile.
func TestWhatIsNoRequest(t *testing.T) {
	list := framed("app", 0, kmsg.NewPtrListGroupsRequest())
	versions := framed("app", 3, kmsg.NewPtrApiVersionsRequest())
	hello := []byte{0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9}
	for name, sent := range map[string][]byte{
		"nothing":                         nil,
		"half of a size":                  {0, 0},
		"a size alone":                    {0, 0, 0, 20},
		"half of a header":                list[:10],
		"-1 bytes":                        sized(1<<32-1, list),
		"0 bytes":                         sized(0, list),
		"3 bytes":                         sized(3, list),
		"7 bytes":                         sized(7, list),
		"2 GiB":                           sized(1<<31, list),
		"a header longer than its frame":  sized(9, list[4:]),
		"a client id of -2 bytes":         sized(20, []byte{0, 0, 0, 9, 0, 0, 0, 7, 0x7f, 0xff, 1, 2, 3}),
		"TLS":                             hello,
		"HTTP":                            []byte("GET / HTTP/1.1\r\nHost: kafka\r\n\r\n"),
		"garbage":                         bytes.Repeat([]byte{0xff}, 1000),
		"an API of brokers":               sized(12, []byte{0, 27, 0, 0, 0, 0, 0, 7, 0xff, 0xff, 0, 0}),
		"a version of tomorrow":           sized(12, []byte{0, 3, 0, 99, 0, 0, 0, 7, 0xff, 0xff, 0, 0}),
		"garbage after ApiVersions":       append(bytes.Clone(versions), bytes.Repeat([]byte{0xff}, 100)...),
		"tags without an end":             append(sized(300_000, []byte{0, 1, 0, 12, 0, 0, 0, 7, 0xff, 0xff}), bytes.Repeat([]byte{0xff}, 300_000)...),
		"SASL before a handshake, 1 MiB":  append(sized(1<<20, framed("app", 2, kmsg.NewPtrSASLAuthenticateRequest())[4:]), make([]byte, 1<<20)...),
		"a handshake of an older version": sized(12, []byte{0, 17, 0, 0, 0, 0, 0, 7, 0xff, 0xff, 0, 0}),
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, policy.Enforce, time.Minute)
			client, broker := r.pair()
			other, otherBroker := r.pair()
			r.write(other, list)
			go func() {
				_, _ = client.Write(sent)
				_ = client.(*net.TCPConn).CloseWrite()
			}()
			got, _ := io.ReadAll(broker) // a reset is an end
			if strings.Contains(name, "after ApiVersions") {
				got = bytes.TrimPrefix(got, versions)
			}
			if len(got) > 0 {
				t.Errorf("the broker gets %d bytes", len(got))
			}
			if n, err := client.Read(make([]byte, 1)); err == nil {
				t.Errorf("answered with %d bytes", n)
			}
			r.frame(otherBroker)
			r.write(otherBroker, answer(0, kmsg.NewPtrListGroupsResponse()))
			r.frame(other)
			if strings.Contains(r.logs.String(), "panic") {
				t.Error(r.logs)
			}
		})
	}
}

// If a client uses a version that is not offered, the log names its software, if that is known.
func TestLogNamesTheSoftware(t *testing.T) {
	r := newRig(t, policy.Enforce, time.Minute)
	client, broker := r.pair()
	versions := kmsg.NewPtrApiVersionsRequest()
	versions.ClientSoftwareName, versions.ClientSoftwareVersion = "librdkafka", strings.Repeat("2", 200)
	r.write(client, framed("app", 3, versions))
	r.frame(broker)
	r.write(broker, answer(3, kmsg.NewPtrApiVersionsResponse()))
	r.frame(client)
	r.write(client, framed("app", 16, kmsg.NewPtrFetchRequest()))
	if _, err := client.Read(make([]byte, 1)); err == nil {
		t.Error("it is answered")
	}
	await.That(t, "the log says so", func() bool {
		line := r.logs.String()
		return strings.Contains(line, `client id \"app\"`) && strings.Contains(line, `software="librdkafka 222`) && strings.Contains(line, "version 16 of Fetch is not offered; versions 4 to 15 are") &&
			!strings.Contains(line, versions.ClientSoftwareVersion)
	})
}

// A request that announces 2 GiB, and one with invalid records, are copied as they arrive: nothing is held in memory or decoded.
func TestRecordsAreNotLookedInto(t *testing.T) {
	r := newRig(t, policy.Off, time.Minute)
	client, broker := r.pair()
	bomb := framed("app", 9, produceOf("app", 200_000))
	for i := range bomb[300:] {
		bomb[300+i] = byte(i * i)
	}
	huge := sized(1<<31-1, bomb[4:])
	go func() {
		_, _ = client.Write(bomb)
		_, _ = client.Write(huge)
		_ = client.(*net.TCPConn).CloseWrite()
	}()
	if got, _ := io.ReadAll(broker); !bytes.Equal(got, append(bomb, huge...)) {
		t.Errorf("the broker gets %d bytes, want %d", len(got), len(bomb)+len(huge))
	}
}

// In each request that is decoded, an array that announces more than there is ends the connection.
func TestArraysThatClaimTooMuch(t *testing.T) {
	for _, c := range []struct {
		req     kmsg.Request
		version int16
	}{
		{kmsg.NewPtrCreateTopicsRequest(), 4}, {kmsg.NewPtrCreateTopicsRequest(), 7}, {kmsg.NewPtrDeleteTopicsRequest(), 3}, {kmsg.NewPtrDeleteTopicsRequest(), 6},
		{kmsg.NewPtrCreatePartitionsRequest(), 1}, {kmsg.NewPtrCreatePartitionsRequest(), 3}, {kmsg.NewPtrMetadataRequest(), 4}, {kmsg.NewPtrMetadataRequest(), 12},
		{kmsg.NewPtrAlterClientQuotasRequest(), 0}, {kmsg.NewPtrAlterClientQuotasRequest(), 1}, {kmsg.NewPtrDescribeClientQuotasRequest(), 0}, {kmsg.NewPtrDescribeClientQuotasRequest(), 1},
	} {
		c.req.SetVersion(c.version)
		header := sent("app", c.version, c.req)[:13]
		if c.req.IsFlexible() {
			header = append(header, 0)
		}
		for _, n := range []uint64{1 << 31, 1<<31 - 1, 1 << 20, 90} {
			body := bytes.Clone(header)
			if c.req.IsFlexible() {
				body = binary.AppendUvarint(body, n)
			} else if body = binary.BigEndian.AppendUint32(body, uint32(n)); n > 1<<31-1 {
				continue // less than none is null, which the broker judges
			}
			body = append(body, make([]byte, 100-len(body))...)
			r := newRigWith(t, policy.QuotaSpec{QuotaLimitSpec: policy.QuotaLimitSpec{Rate: "10/s"}, Debt: true}, policy.Enforce, time.Minute)
			client, broker := r.pair()
			r.write(client, sized(100, body))
			if got, err := broker.Read(make([]byte, 200)); err == nil {
				t.Errorf("%s %d, %d: the broker gets %d bytes", kmsg.NameForKey(c.req.Key()), c.version, n, got)
				continue
			}
			if _, err := client.Read(make([]byte, 1)); err == nil {
				t.Errorf("%s %d, %d: answered", kmsg.NameForKey(c.req.Key()), c.version, n)
			}
		}
	}
}

// A message may announce four billion tags or entries anywhere. It is read to its end at once, and refused if it ends there. kmsg before
// 1.15.1 took minutes.
func TestManyTags(t *testing.T) {
	many := binary.AppendUvarint(nil, 1<<32-1)
	check := func(what string, b []byte, read func(b []byte) error) {
		for at := range b {
			if at < len(b)-len(many) && read(slices.Concat(b[:at], many)) == nil { // the last bytes are those of a tag
				t.Errorf("%s: %d bytes of %d are read", what, at, len(b))
			}
			within := bytes.Clone(b)
			copy(within[at:], many)
			_ = read(within) // may be a text
		}
	}
	for key, of := range offered {
		for version := of.min; version <= of.max; version++ {
			what := fmt.Sprintf("%s %d", kmsg.NameForKey(key), version)
			if req := requestIn(key); req != nil {
				filled(reflect.ValueOf(req).Elem(), 3)
				if req.SetVersion(version); req.IsFlexible() {
					check("request "+what, sent("client", version, req), func(b []byte) error { return readBody(b, req) })
				}
			}
			r := request{key: key, version: version}
			if resp := r.response(); resp != nil {
				filled(reflect.ValueOf(resp).Elem(), 3)
				header := []byte{0, 0, 0, 7, 0}
				if key == keyApiVersions {
					header = header[:4]
				}
				if resp.SetVersion(version); resp.IsFlexible() {
					check("answer "+what, encode(header, resp)[4:], func(b []byte) error {
						_, _, err := r.decode(b)
						return err
					})
				}
			}
		}
	}
}

// filled sets each field of a message: lists have n entries.
func filled(v reflect.Value, n int) {
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		filled(v.Elem(), n)
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Field(i); f.CanSet() && v.Type().Field(i).Name != "Version" {
				filled(f, n)
			}
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		for i := range n {
			filled(v.Index(i), n)
		}
	case reflect.String:
		v.SetString("text")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(1)
	}
	if tags, ok := v.Addr().Interface().(*kmsg.Tags); ok && n > 0 {
		tags.Set(7, []byte("unknown"))
	}
}

// tagged puts a tag into the header of a request that has none.
func tagged(frame []byte, value string) []byte {
	const client = 4 + leastRequest // where the length of the client id is
	at := client + 2 + int(binary.BigEndian.Uint16(frame[client:]))
	tag := append(binary.AppendUvarint([]byte{1, 77}, uint64(len(value))), value...)
	return sized(uint32(len(frame)-4+len(tag)-1), slices.Concat(frame[4:at], tag, frame[at+1:]))
}

// A header may have texts of 32,767 bytes, as for Kafka's own brokers, and tags up to 1 MiB. A larger header ends the connection, with a
// line in the log.
func TestLongHeaders(t *testing.T) {
	long := strings.Repeat("x", 1<<15-1)
	produce, fetch, versions := produceOf("app", 100).(*kmsg.ProduceRequest), kmsg.NewPtrFetchRequest(), kmsg.NewPtrApiVersionsRequest()
	produce.TransactionID, fetch.MaxBytes = &long, 1
	versions.ClientSoftwareName, versions.ClientSoftwareVersion = long, long
	for name, sent := range map[string][]byte{
		"Produce 3":                          framed(long, 3, produce),
		"Produce 9":                          framed(long, 9, produce),
		"Produce 9 with a tag":               tagged(framed(long, 9, produce), long),
		"Produce 9 with the longest tag":     tagged(framed(long, 9, produce), strings.Repeat("t", mostHeader-2*len(long)-1000)),
		"Fetch 4":                            framed(long, 4, fetch),
		"Fetch 15 with a tag":                tagged(framed(long, 15, fetch), long),
		"ApiVersions 3":                      framed(long, 3, versions),
		"ListGroups 0, which is not decoded": framed(long, 0, kmsg.NewPtrListGroupsRequest()),
		"CreateTopics 7, which is":           tagged(framed(long, 7, create(7, "t", 1)), long),
		"more in the frame than is held":     framed(long, 9, produceOf("app", mostHeader+1000)),
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, policy.Enforce, time.Minute)
			client, broker := r.pair()
			go func() { _, _ = client.Write(sent) }()
			if got := r.frame(broker); !bytes.Equal(got, sent[4:]) && !(strings.HasPrefix(name, "Create") && bytes.Contains(got, sent[12:12+2*len(long)])) {
				t.Errorf("the broker gets %d bytes of %d: %s", len(got), len(sent)-4, r.logs)
			}
			_, _ = client.Close(), broker.Close()
			await.That(t, "nothing is held", func() bool { bytes, _ := r.server.memory.held(); return bytes == 0 && len(r.server.all()) == 0 })
		})
	}
	r := newRig(t, policy.Enforce, time.Minute)
	client, broker := r.pair()
	go func() { _, _ = client.Write(tagged(framed(long, 9, produce), strings.Repeat("t", mostHeader))) }()
	if got, _ := io.ReadAll(broker); len(got) > 0 {
		t.Errorf("the broker gets %d bytes", len(got))
	}
	if text := r.logs.String(); !strings.Contains(text, "its header has more than 1048576 bytes (client id") {
		t.Errorf("no line says why: %s", text)
	}
}

// Unknown tags stay in a request that is written again, and in its answer.
func TestUnknownTagsAreKept(t *testing.T) {
	r := newRigWith(t, policy.QuotaSpec{QuotaLimitSpec: policy.QuotaLimitSpec{Rate: "5/s", Burst: 10}, Debt: true}, policy.Enforce, time.Hour)
	client, broker := r.pair()
	req := create(7, "a", 12, "b", 1) // of which b is refused
	req.UnknownTags.Set(200, []byte("body"))
	req.Topics[0].UnknownTags.Set(201, []byte("topic"))
	r.write(client, tagged(framed("app", 7, req), "head"))
	made := func(names ...string) []byte {
		resp := kmsg.NewPtrCreateTopicsResponse()
		for _, n := range names {
			t := kmsg.NewCreateTopicsResponseTopic()
			t.Topic, t.NumPartitions = n, 1
			resp.Topics = append(resp.Topics, t)
		}
		resp.UnknownTags.Set(202, []byte("answer"))
		return answer(7, resp)
	}
	for i, names := range [][]string{{"a", "b"}, {"a"}} {
		got := string(r.frame(broker))
		for _, tag := range []string{"head", "body", "topic"} {
			if !strings.Contains(got, tag) {
				t.Errorf("request %d: the tag of %s is lost: %q", i, tag, got)
			}
		}
		r.write(broker, made(names...))
	}
	resp := kmsg.NewPtrCreateTopicsResponse()
	resp.Version = 7
	if err := resp.ReadFrom(r.frame(client)[5:]); err != nil || len(resp.Topics) != 2 || resp.Topics[0].ErrorCode != 0 || resp.Topics[1].ErrorCode != 89 || resp.UnknownTags.Len() != 1 {
		t.Errorf("%+v, %v", resp, err)
	}
}

// Requests with the same correlation id are answered in their order. An answer to another request, or to no request, ends the connection.
func TestCorrelationIDs(t *testing.T) {
	r := newRig(t, policy.Enforce, time.Minute)
	client, broker := r.pair()
	for range 3 {
		r.write(client, framed("app", 0, kmsg.NewPtrListGroupsRequest()))
	}
	for i := range 3 {
		r.frame(broker)
		resp := kmsg.NewPtrListGroupsResponse()
		resp.ErrorCode = int16(i + 1)
		r.write(broker, answer(0, resp))
	}
	for i := range 3 {
		if b := r.frame(client); b[5] != byte(i+1) {
			t.Errorf("answer %d: %v", i, b)
		}
	}
	for name, id := range map[string]int32{"of another request": 8, "negative": -1} {
		client, broker := r.pair()
		r.write(client, framed("app", 0, kmsg.NewPtrListGroupsRequest()))
		r.frame(broker)
		b := answer(0, kmsg.NewPtrListGroupsResponse())
		binary.BigEndian.PutUint32(b[4:], uint32(id))
		r.write(broker, b)
		if _, err := client.Read(make([]byte, 1)); err == nil {
			t.Errorf("%s: it is taken", name)
		}
	}
	client, broker = r.pair()
	r.write(broker, answer(0, kmsg.NewPtrListGroupsResponse()))
	if _, err := client.Read(make([]byte, 1)); err == nil {
		t.Error("an answer to nothing is taken")
	}
}

// If a broker dies within an answer, or sends an invalid one, the client's connection ends. The client has got the beginning of that
// answer.
func TestBrokerDiesWithinAnAnswer(t *testing.T) {
	meta := kmsg.NewPtrMetadataResponse()
	meta.ClusterID = kmsg.StringPtr(strings.Repeat("c", 200)) // more than what is read of an answer first
	tags := answer(12, kmsg.NewPtrMetadataResponse())[4:]
	tags = binary.AppendUvarint(tags[:len(tags)-1], 1<<32-1)
	fetched, topic, part := kmsg.NewPtrFetchResponse(), kmsg.NewFetchResponseTopic(), kmsg.NewFetchResponseTopicPartition()
	part.RecordBatches = make([]byte, 100_000)
	topic.Partitions = append(topic.Partitions, part)
	fetched.Topics = append(fetched.Topics, topic)
	for name, c := range map[string]struct {
		req  kmsg.Request
		resp []byte
		cut  int
		why  string // in the log
	}{
		"in its size":           {kmsg.NewPtrListGroupsRequest(), answer(0, kmsg.NewPtrListGroupsResponse()), 2, ""},
		"in its header":         {kmsg.NewPtrListGroupsRequest(), answer(0, kmsg.NewPtrListGroupsResponse()), 6, ""},
		"in one that is copied": {kmsg.NewPtrFetchRequest(), answer(12, fetched), 50_000, ""},
		"in one that is read":   {kmsg.NewPtrMetadataRequest(), answer(12, meta), 100, ""},
		"of -1 bytes":           {kmsg.NewPtrListGroupsRequest(), sized(1<<32-1, nil), 4, "an answer of -1 bytes"},
		"of 3 bytes":            {kmsg.NewPtrListGroupsRequest(), sized(3, []byte{1, 2, 3}), 7, "an answer of 3 bytes"},
		"that is too large":     {kmsg.NewPtrMetadataRequest(), sized(mostDecoded+1, answer(12, meta)[4:]), 100, "is too large; answers of at most"},
		"of nonsense":           {kmsg.NewPtrMetadataRequest(), sized(100, append([]byte{0, 0, 0, 7}, bytes.Repeat([]byte{0xff}, 96)...)), 104, "ends within its header"},
		"with too many tags":    {kmsg.NewPtrMetadataRequest(), sized(uint32(len(tags)), tags), 4 + len(tags), "an answer to Metadata cannot be read"},
		"with a header alone":   {kmsg.NewPtrMetadataRequest(), sized(100, append([]byte{0, 0, 0, 7, 0}, bytes.Repeat([]byte{0xff}, 95)...)), 104, "cannot be read"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, policy.Off, time.Minute)
			client, broker := r.pair()
			version := int16(12)
			if c.req.Key() == 16 {
				version = 0
			}
			r.write(client, framed("app", version, c.req))
			r.frame(broker)
			r.write(broker, c.resp[:c.cut])
			_ = broker.Close()
			if got, _ := io.ReadAll(client); !bytes.HasPrefix(c.resp, got) || len(got) > c.cut {
				t.Errorf("the client gets %d bytes, of %d", len(got), c.cut)
			}
			await.That(t, "the connection is gone", func() bool { return len(r.server.all()) == 0 })
			if text := r.logs.String(); !strings.Contains(text, c.why) {
				t.Errorf("no line with %q:\n%s", c.why, text)
			}
		})
	}
}

// A user named * is a user like every other, and not the default.
func TestNamesThatLookLikeSomethingElse(t *testing.T) {
	b := newBench(t, ruleFor(quota.Every, "", 100, 1000), ruleFor(quota.Named("*"), "", 1000, 1000), ruleFor(quota.Named("a,client=b"), "", 2000, 1000))
	for user, rate := range map[string]int32{"*": 1000, "alice": 100, "a,client=b": 2000, strings.Repeat("x", 300): 100, "\x01": 100} {
		begin := time.Now()
		ms, _ := b.asks(user, "app", produceOf("app", 11_000)).(kmsg.ThrottleResponse).Throttle()
		want, passed := 10_000*1000/rate, int32(time.Since(begin)/time.Millisecond)+1
		if ms > want || ms < want-passed {
			t.Errorf("%.20q: told to wait %d ms, want %d", user, ms, want)
		}
	}
}

// A client that a rule blocks creates no topic, whatever it knows of quotas, and is delayed for Longest. Other clients are not.
func TestBlocked(t *testing.T) {
	b := newBench(t, policy.QuotaRuleSpec{Rule: quota.Rule{User: "mallory", Blocked: true}}, ruleFor(quota.Every, "", 1e6, 1e6))
	made := func(user string, version int16) (int16, int32) {
		resp := b.asks(user, "app", create(version, user, 1)).(*kmsg.CreateTopicsResponse)
		return resp.Topics[0].ErrorCode, resp.ThrottleMillis
	}
	for _, version := range []int16{4, 7} {
		if code, ms := made("mallory", version); code != kerr.PolicyViolation.Code || ms != 0 || b.cluster.topics["mallory"] != 0 {
			t.Errorf("version %d: error %d, %d ms to wait, the cluster has %v", version, code, ms, b.cluster.topics)
		}
	}
	begin := time.Now()
	ms, _ := b.asks("mallory", "app", produceOf("app", 1000)).(kmsg.ThrottleResponse).Throttle()
	if most, passed := int32(time.Hour/time.Millisecond), int32(time.Since(begin)/time.Millisecond)+1; ms > most || ms < most-passed {
		t.Errorf("told to wait %d ms, want %d", ms, most)
	}
	if code, ms := made("alice", 7); code != 0 || ms != 0 {
		t.Errorf("somebody else: error %d, %d ms to wait", code, ms)
	}
}

// Each of many client ids has a quota of its own, and does not affect others.
func TestManyClientIDs(t *testing.T) {
	r := newRig(t, policy.Enforce, time.Minute)
	client, broker := r.pair()
	ids := 100_000
	if testing.Short() {
		ids = 20_000
	}
	go func() {
		var all []byte
		for i := range ids {
			all = append(all, framed(strconv.Itoa(i), 0, kmsg.NewPtrProduceRequest())...) // with acks 0
		}
		_, _ = client.Write(all)
		_ = client.(*net.TCPConn).CloseWrite()
	}()
	if n, _ := io.Copy(io.Discard, broker); n < int64(26*ids) {
		t.Errorf("the broker gets %d bytes", n)
	}
	if r.left() != 10_000 {
		t.Errorf("another client has %v left", r.left())
	}
	d, _ := r.gate.Quota().Peek(t.Context(), weir.Work{User: anonymous, Client: "77"})
	if d.Remaining >= 10_000 || d.Remaining < 9_900 {
		t.Errorf("one of them has %v left", d.Remaining)
	}
}

// Clients that come and go at once leave nothing behind.
func TestStormOfReconnects(t *testing.T) {
	r := newRig(t, policy.Enforce, time.Minute)
	go func() {
		for {
			c, err := r.broker.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	in, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			for i := range 50 {
				c, err := net.Dial("tcp", in.Addr().String())
				if err != nil {
					continue // the queue of the kernel is full
				}
				if i%2 == 0 {
					_, _ = c.Write(framed("app", 3, kmsg.NewPtrApiVersionsRequest()))
				}
				_ = c.Close()
			}
		})
	}
	go func() { all.Wait(); _ = in.Close() }()
	for {
		c, err := in.Accept()
		if err != nil {
			break
		}
		r.server.startRelay(c, &r.server.bootstrap)
	}
	await.That(t, "all connections have ended", func() bool { return len(r.server.all()) == 0 && r.server.Snapshot().Connections == 0 })
	if strings.Contains(r.logs.String(), "panic") {
		t.Error(r.logs)
	}
}

// If a node moves to another address, the next connection finds it there, and clients notice nothing.
func TestNodeMoves(t *testing.T) {
	r := newRig(t, policy.Off, time.Minute)
	old, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := func(l net.Listener) (string, int32, bool) {
		host, port, _ := net.SplitHostPort(l.Addr().String())
		n, _ := strconv.Atoi(port)
		return r.server.nodes.advertised(7, host, int32(n))
	}
	host, port, ok := at(old)
	_ = old.Close()
	again, portAgain, okAgain := at(r.broker)
	if host != again || port != portAgain || ok != okAgain {
		t.Errorf("clients are told %s:%d, and then %s:%d", host, port, again, portAgain)
	}
	c, address, err := r.server.dial(t.Context(), r.server.nodes.known[7])
	if err != nil || address != r.broker.Addr().String() {
		t.Fatalf("%s, %v", address, err)
	}
	_ = c.Close()
}

// A connection with TLS to a plain port ends at once, and so does a plain connection to a port with TLS.
func TestPlainOnTLS(t *testing.T) {
	r := newRig(t, policy.Off, time.Minute)
	client, broker := r.pairWithTLS()
	plain := r.come()
	r.write(plain, framed("app", 3, kmsg.NewPtrApiVersionsRequest()))
	if said, err := io.ReadAll(plain); len(said) > 7 { // an alert of TLS
		t.Errorf("%q, %v", said, err)
	}
	r.write(client, framed("app", 0, kmsg.NewPtrListGroupsRequest()))
	if got := r.frame(broker); len(got) != len(framed("app", 0, kmsg.NewPtrListGroupsRequest()))-4 {
		t.Errorf("the broker gets %d bytes", len(got))
	}
}

// pairWithTLS is pair with TLS at the client, and at those that come later.
func (r *rig) pairWithTLS() (client, broker net.Conn) {
	r.Helper()
	r.overTLS()
	over := tls.Client(r.come(), &tls.Config{InsecureSkipVerify: true})
	if err := over.HandshakeContext(r.Context()); err != nil {
		r.Fatal(err)
	}
	broker, err := r.broker.Accept()
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { _ = broker.Close() })
	return over, broker
}

// overTLS makes clients come over TLS.
func (r *rig) overTLS() {
	r.Helper()
	cert, key := selfSigned(r.T)
	k := config.KafkaListen{TLS: &config.TLS{Cert: cert, Key: key}}
	k.SetDefaults()
	conns, err := accept.Open(accept.Options{Config: k.Listener("127.0.0.1:0"), Bare: true})
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { _ = conns.Close() })
	r.server.opts.Conns = conns
}

// selfSigned writes a certificate and its key into files.
func selfSigned(t *testing.T) (cert, key string) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"localhost"}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for file, block := range map[string]*pem.Block{"cert": {Type: "CERTIFICATE", Bytes: der}, "key": {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(filepath.Join(dir, file), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "cert"), filepath.Join(dir, "key")
}
