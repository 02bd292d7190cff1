package kafka

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Keys of APIs whose requests or answers are not only passed on.
const (
	keyProduce          = 0
	keyFetch            = 1
	keyMetadata         = 3
	keyFindCoord        = 10
	keySaslHandshake    = 17
	keyApiVersions      = 18
	keyCreateTopics     = 19
	keyDeleteTopics     = 20
	keySaslAuthenticate = 36
	keyCreatePartitions = 37
	keyDescribeQuotas   = 48
	keyAlterQuotas      = 49
	keyDescribeClust    = 60
	keyShareFetch       = 78
	keyShareAck         = 79
	apiVersionsNames    = 3 // from this version on, a request names the client's software
	lastApiVersions     = 4 // the last version that can be decoded
	produceThrottles    = 1 // from this version on, an answer has a throttle time
	produceNamesNodes   = 10
	firstFlexibleFetch  = 12
	fetchWithoutReplica = 15 // from this version on, requests do not begin with the id of a replica
)

// span is the versions of an API that clients are offered.
type span struct{ min, max int16 }

// offered are the APIs for clients, with the versions of Kafka 4.2. An API is missing if it is between brokers, or so new that its answers
// may name brokers. Some end below the newest version, because its answers name brokers, or must be held in memory as a whole: Fetch from
// 16 on, DescribeQuorum from 2 on.
var offered = map[int16]span{
	keyProduce: {0, 13}, keyFetch: {4, 15}, 2: {0, 11}, keyMetadata: {0, 13}, 8: {0, 10}, 9: {0, 10}, keyFindCoord: {0, 6}, 11: {0, 9}, 12: {0, 4}, 13: {0, 5}, 14: {0, 5},
	15: {0, 6}, 16: {0, 5}, keySaslHandshake: {1, 1}, keyApiVersions: {0, lastApiVersions}, keyCreateTopics: {2, 7}, keyDeleteTopics: {1, 6}, 21: {0, 2}, 22: {0, 5}, 23: {0, 4}, 24: {0, 5},
	25: {0, 4}, 26: {0, 5}, 28: {0, 5}, 29: {0, 3}, 30: {0, 3}, 31: {0, 3}, 32: {0, 4}, 33: {0, 2}, 34: {0, 2}, 35: {0, 4}, keySaslAuthenticate: {0, 2}, keyCreatePartitions: {0, 3}, 38: {0, 3},
	39: {0, 2}, 40: {0, 2}, 41: {0, 3}, 42: {0, 2}, 43: {0, 2}, 44: {0, 1}, 45: {0, 1}, 46: {0, 0}, 47: {0, 0}, keyDescribeQuotas: {0, 1}, keyAlterQuotas: {0, 1}, 50: {0, 0}, 51: {0, 0},
	55: {0, 1}, 57: {0, 2}, keyDescribeClust: {0, 2}, 61: {0, 0}, 64: {0, 0}, 65: {0, 0}, 66: {0, 2}, 68: {0, 1}, 69: {0, 1}, 71: {0, 0}, 72: {0, 0}, 74: {0, 1},
	75: {0, 0}, 76: {0, 1}, 77: {0, 1}, keyShareFetch: {1, 2}, keyShareAck: {1, 2}, 80: {0, 1}, 81: {0, 0}, 88: {0, 0}, 89: {0, 0}, 90: {0, 1}, 91: {0, 0}, 92: {0, 0},
}

// request is the beginning of a request.
type request struct {
	key, version int16
	correlation  int32
	client       string
	software     string // of the client, with its version, from ApiVersions 3 on
	silent       bool   // there is no answer: Produce with acks 0
	maxBytes     int    // the offset of max_bytes in a Fetch or ShareFetch, after the size of the frame; 0 for other requests
}

// leastRequest is the size of the fields that every request has: key, version and correlation id.
const leastRequest = 8

// mostHeader bounds the bytes of a request before the fields that are read: up to three texts of 32,767 bytes, and tags. Brokers bound the
// tags only by the size of the request.
const mostHeader = mostRequest

// endError is why a connection ends.
type endError string

// Error implements error.
func (e endError) Error() string { return string(e) }

func endErrorf(format string, args ...any) error { return endError(fmt.Sprintf(format, args...)) }

// readRequest reads the beginning of a request, whose frame has this size. more is true if b is too short.
func readRequest(b []byte, size int) (r request, more bool, err error) {
	in := reader{b: b}
	r.key, r.version, r.correlation = in.int16(), in.int16(), in.int32()
	if in.short {
		return r, true, nil
	}
	of, ok := offered[r.key]
	if !ok {
		return r, false, endErrorf("API %d is not offered", r.key)
	}
	r.client = in.nullable()
	if r.key == keyApiVersions && r.version > of.max {
		return r, in.short && len(b) < size, nil // the gateway answers it, whatever else is in it
	}
	if r.version < of.min || r.version > of.max {
		return r, false, endErrorf("version %d of %s is not offered; versions %d to %d are", r.version, kmsg.NameForKey(r.key), of.min, of.max)
	}
	switch r.key {
	case keyApiVersions:
		if r.version < apiVersionsNames {
			break
		}
		if in.tags(); in.short {
			break
		}
		r.software = strings.TrimSpace(string(in.compact()) + " " + string(in.compact()))
		if in.short && len(b) >= size {
			in.short, r.software = false, "" // the broker reports the fault
		}
	case keyFetch:
		if r.version >= firstFlexibleFetch {
			in.tags()
		}
		if r.version < fetchWithoutReplica {
			in.int32()
		}
		in.next(8) // max_wait and min_bytes
		r.maxBytes = in.at
		in.int32()
	case keyShareFetch:
		in.tags()
		in.compact() // the group
		in.compact() // the member
		in.next(12)  // the epoch, max_wait and min_bytes
		r.maxBytes = in.at
		in.int32()
	case keyProduce:
		if r.version >= 9 {
			in.tags()
			in.compact()
		} else if r.version >= 3 {
			in.nullable()
		}
		r.silent = in.int16() == 0
	}
	if in.short && len(b) >= min(size, mostHeader) {
		return r, false, endErrorf("a request of %d bytes ends within its header, or its header has more than %d bytes", size, mostHeader)
	}
	return r, in.short, nil
}

// ownAnswer is the gateway's own answer to a request, or nil if the broker must answer. An ApiVersions of an unknown newer version gets
// error 35 in version 0, as from a broker that does not know the version.
func (r *request) ownAnswer() []byte {
	if r.key != keyApiVersions || r.version <= lastApiVersions {
		return nil
	}
	body := kmsg.NewPtrApiVersionsResponse()
	body.ErrorCode = kerr.UnsupportedVersion.Code
	key := kmsg.NewApiVersionsResponseApiKey()
	key.ApiKey, key.MaxVersion = keyApiVersions, lastApiVersions
	body.ApiKeys = append(body.ApiKeys, key)
	frame := binary.BigEndian.AppendUint32(make([]byte, 4, 32), uint32(r.correlation))
	frame = body.AppendTo(frame)
	binary.BigEndian.PutUint32(frame, uint32(len(frame)-4))
	return frame
}

// decoded reports whether the answer must be decoded: it may name nodes, APIs or mechanisms, or may say who the client is. If a quota
// counts, further answers are decoded.
func (r *request) decoded() bool {
	switch r.key {
	case keyProduce:
		return r.version >= produceNamesNodes
	case keyCreateTopics, keyDeleteTopics, keyCreatePartitions, keyDescribeQuotas, keyAlterQuotas:
		return false
	}
	return r.response() != nil
}

// lower lowers max_bytes of a fetch, whose frame begins with these bytes.
func (r *request) lower(frame []byte, most float64) {
	field := frame[4+r.maxBytes:]
	asked := float64(int32(binary.BigEndian.Uint32(field)))
	binary.BigEndian.PutUint32(field, uint32(int32(min(asked, most))))
}

// response returns an empty answer to r, or nil if such answers are not decoded. kmsg could make an answer of every kind, but that would
// add 2 MB to the binary.
func (r *request) response() kmsg.Response {
	switch r.key {
	case keyProduce:
		return new(kmsg.ProduceResponse)
	case keyMetadata:
		return new(kmsg.MetadataResponse)
	case keyFindCoord:
		return new(kmsg.FindCoordinatorResponse)
	case keyApiVersions:
		return new(kmsg.ApiVersionsResponse)
	case keySaslHandshake:
		return new(kmsg.SASLHandshakeResponse)
	case keySaslAuthenticate:
		return new(kmsg.SASLAuthenticateResponse)
	case keyCreateTopics:
		return new(kmsg.CreateTopicsResponse)
	case keyDeleteTopics:
		return new(kmsg.DeleteTopicsResponse)
	case keyCreatePartitions:
		return new(kmsg.CreatePartitionsResponse)
	case keyDescribeQuotas:
		return new(kmsg.DescribeClientQuotasResponse)
	case keyAlterQuotas:
		return new(kmsg.AlterClientQuotasResponse)
	case keyDescribeClust:
		return new(kmsg.DescribeClusterResponse)
	case keyShareFetch:
		return new(kmsg.ShareFetchResponse)
	case keyShareAck:
		return new(kmsg.ShareAcknowledgeResponse)
	}
	return nil
}

// advertise returns the address at which clients reach a node that an answer names. ok is false if clients cannot reach it.
type advertise func(id int32, host string, port int32) (newHost string, newPort int32, ok bool)

// login reads a login request; b is everything after the size of its frame. It returns nil for any other request.
func (r *request) login(b []byte) (kmsg.Request, error) {
	var req kmsg.Request
	switch r.key {
	case keySaslHandshake:
		req = new(kmsg.SASLHandshakeRequest)
	case keySaslAuthenticate:
		req = new(kmsg.SASLAuthenticateRequest)
	default:
		return nil, nil
	}
	req.SetVersion(r.version)
	if readBody(b, req) != nil {
		return nil, endErrorf("a login request cannot be read") // without its content, which may be secret
	}
	return req, nil
}

// readBody reads the fields of a request of a known version; b is everything after the size of its frame.
func readBody(b []byte, to kmsg.Request) error {
	in := reader{b: b, at: leastRequest}
	in.nullable()
	if to.IsFlexible() {
		in.tags()
	}
	if in.short {
		return errors.New("the request ends within its header")
	}
	return to.ReadFrom(b[in.at:])
}

// likeRequest returns the frame of a request q that replaces other; b is everything after the size of other's frame. Correlation id, client
// id and tags are those of other.
func likeRequest(b []byte, other, q kmsg.Request) []byte {
	frame := binary.BigEndian.AppendUint16(make([]byte, 4, 256), uint16(q.Key()))
	frame = binary.BigEndian.AppendUint16(frame, uint16(q.GetVersion()))
	in := reader{b: b, at: leastRequest}
	in.nullable()
	frame = append(frame, b[4:in.at]...)
	if q.IsFlexible() {
		tags := []byte{0}
		if from := in.at; other.IsFlexible() {
			in.tags()
			tags = b[from:in.at]
		}
		frame = append(frame, tags...)
	}
	frame = q.AppendTo(frame)
	binary.BigEndian.PutUint32(frame, uint32(len(frame)-4))
	return frame
}

// decode reads the answer to r; b is everything after the size of its frame. body is the offset of its fields.
func (r *request) decode(b []byte) (resp kmsg.Response, body int, err error) {
	resp = r.response()
	resp.SetVersion(r.version)
	if r.key == keyApiVersions && len(b) >= 6 && int16(binary.BigEndian.Uint16(b[4:])) == kerr.UnsupportedVersion.Code {
		resp.SetVersion(0) // an error about the version has version 0
	}
	in := reader{b: b}
	in.int32() // the correlation id
	if resp.IsFlexible() && r.key != keyApiVersions {
		in.tags()
	}
	if in.short {
		return nil, 0, endErrorf("an answer to %s ends within its header", kmsg.NameForKey(r.key))
	}
	if err := resp.ReadFrom(b[in.at:]); err != nil {
		return nil, 0, endErrorf("an answer to %s cannot be read: %v", kmsg.NameForKey(r.key), err)
	}
	return resp, in.at, nil
}

// encode returns an answer with the size of its frame and the header that it came with.
func encode(header []byte, resp kmsg.Response) []byte {
	frame := append(make([]byte, 4, 256), header...)
	frame = resp.AppendTo(frame)
	binary.BigEndian.PutUint32(frame, uint32(len(frame)-4))
	return frame
}

// replace changes the addresses of nodes to those that clients reach. It removes nodes that clients cannot reach, and APIs that are not
// offered.
func replace(resp kmsg.Response, to advertise) {
	switch resp := resp.(type) {
	case *kmsg.ApiVersionsResponse:
		kept := resp.ApiKeys[:0]
		for _, k := range resp.ApiKeys {
			of, ok := offered[k.ApiKey]
			// Version 0 of SaslHandshake is named but not served, because bytes without a frame follow it. librdkafka 2.0 does not log in
			// unless it is named.
			if k.ApiKey != keySaslHandshake {
				k.MinVersion = max(k.MinVersion, of.min)
			}
			if k.MaxVersion = min(k.MaxVersion, of.max); ok && k.MinVersion <= k.MaxVersion {
				kept = append(kept, k)
			}
		}
		resp.ApiKeys = kept
	case *kmsg.MetadataResponse:
		resp.Brokers = among(resp.Brokers, to, func(b *kmsg.MetadataResponseBroker) (int32, *string, *int32) { return b.NodeID, &b.Host, &b.Port })
	case *kmsg.DescribeClusterResponse:
		resp.Brokers = among(resp.Brokers, to, func(b *kmsg.DescribeClusterResponseBroker) (int32, *string, *int32) {
			return b.NodeID, &b.Host, &b.Port
		})
	case *kmsg.ProduceResponse:
		resp.Brokers = among(resp.Brokers, to, func(b *kmsg.ProduceResponseBroker) (int32, *string, *int32) { return b.NodeID, &b.Host, &b.Port })
	case *kmsg.ShareFetchResponse:
		resp.NodeEndpoints = among(resp.NodeEndpoints, to, func(b *kmsg.ShareFetchResponseNodeEndpoint) (int32, *string, *int32) {
			return b.NodeID, &b.Host, &b.Port
		})
	case *kmsg.ShareAcknowledgeResponse:
		resp.NodeEndpoints = among(resp.NodeEndpoints, to, func(b *kmsg.ShareAcknowledgeResponseNodeEndpoint) (int32, *string, *int32) {
			return b.NodeID, &b.Host, &b.Port
		})
	case *kmsg.FindCoordinatorResponse:
		coordinator(&resp.NodeID, &resp.Host, &resp.Port, &resp.ErrorCode, to)
		for i := range resp.Coordinators {
			c := &resp.Coordinators[i]
			coordinator(&c.NodeID, &c.Host, &c.Port, &c.ErrorCode, to)
		}
	}
}

// among returns the nodes that clients can reach.
func among[N any](nodes []N, to advertise, fields func(*N) (int32, *string, *int32)) []N {
	kept := nodes[:0]
	for _, n := range nodes {
		id, host, port := fields(&n)
		var ok bool
		if *host, *port, ok = to(id, *host, *port); ok {
			kept = append(kept, n)
		}
	}
	return kept
}

// coordinator does the same for a coordinator. If clients cannot reach it, the answer says that there is none.
func coordinator(id *int32, host *string, port *int32, code *int16, to advertise) {
	if *id < 0 || *host == "" {
		return // there is none
	}
	newHost, newPort, ok := to(*id, *host, *port)
	if !ok {
		*id, newHost, newPort, *code = -1, "", -1, kerr.CoordinatorNotAvailable.Code
	}
	*host, *port = newHost, newPort
}

// reader reads the fields of a header. short is true once a field was incomplete.
type reader struct {
	b     []byte
	at    int
	short bool
}

// next returns the next n bytes, or nil if there are fewer.
func (r *reader) next(n int) []byte {
	if r.short || n < 0 || n > len(r.b)-r.at {
		r.short = true
		return nil
	}
	r.at += n
	return r.b[r.at-n : r.at]
}

func (r *reader) int16() int16 {
	if b := r.next(2); b != nil {
		return int16(binary.BigEndian.Uint16(b))
	}
	return 0
}

func (r *reader) int32() int32 {
	if b := r.next(4); b != nil {
		return int32(binary.BigEndian.Uint32(b))
	}
	return 0
}

// nullable is a text with its length before it, -1 for none.
func (r *reader) nullable() string {
	if n := r.int16(); n > 0 {
		return string(r.next(int(n)))
	}
	return ""
}

// compact is the same with a length of variable size, plus one.
func (r *reader) compact() []byte {
	if n := r.uvarint(); n > 1 {
		return r.next(n - 1)
	}
	return nil
}

func (r *reader) uvarint() int {
	if r.short {
		return 0
	}
	n, size := binary.Uvarint(r.b[r.at:])
	if size <= 0 || n > 1<<31-1 {
		r.short = true
		return 0
	}
	r.at += size
	return int(n)
}

// tags skips tagged fields.
func (r *reader) tags() {
	for n := r.uvarint(); n > 0 && !r.short; n-- {
		r.uvarint()
		r.next(r.uvarint())
	}
}
