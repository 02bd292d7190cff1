package kafka

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Keys of APIs that are more than passed on.
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
	apiVersionsNames    = 3 // from here on a request says which software asks
	lastApiVersions     = 4 // that the answer of a broker is read in
	produceThrottles    = 1 // from here on an answer says how long to wait
	produceNamesNodes   = 10
	firstFlexibleFetch  = 12
	fetchWithoutReplica = 15 // whose requests do not begin with the id of a replica
)

// span is the versions of an API that clients are offered.
type span struct{ min, max int16 }

// offered are the APIs for clients, with the versions of Kafka 4.2. What is missing is between brokers, or new: nobody knows
// whether its answers name a broker. Some end below the newest version, whose answers do, or have to be held whole for it: Fetch
// from 16 on, DescribeQuorum from 2 on.
var offered = map[int16]span{
	keyProduce: {0, 13}, keyFetch: {4, 15}, 2: {0, 11}, keyMetadata: {0, 13}, 8: {0, 10}, 9: {0, 10}, keyFindCoord: {0, 6}, 11: {0, 9}, 12: {0, 4}, 13: {0, 5}, 14: {0, 5},
	15: {0, 6}, 16: {0, 5}, keySaslHandshake: {1, 1}, keyApiVersions: {0, lastApiVersions}, keyCreateTopics: {2, 7}, keyDeleteTopics: {1, 6}, 21: {0, 2}, 22: {0, 5}, 23: {0, 4}, 24: {0, 5},
	25: {0, 4}, 26: {0, 5}, 28: {0, 5}, 29: {0, 3}, 30: {0, 3}, 31: {0, 3}, 32: {0, 4}, 33: {0, 2}, 34: {0, 2}, 35: {0, 4}, keySaslAuthenticate: {0, 2}, keyCreatePartitions: {0, 3}, 38: {0, 3},
	39: {0, 2}, 40: {0, 2}, 41: {0, 3}, 42: {0, 2}, 43: {0, 2}, 44: {0, 1}, 45: {0, 1}, 46: {0, 0}, 47: {0, 0}, keyDescribeQuotas: {0, 1}, keyAlterQuotas: {0, 1}, 50: {0, 0}, 51: {0, 0},
	55: {0, 1}, 57: {0, 2}, keyDescribeClust: {0, 2}, 61: {0, 0}, 64: {0, 0}, 65: {0, 0}, 66: {0, 2}, 68: {0, 1}, 69: {0, 1}, 71: {0, 0}, 72: {0, 0}, 74: {0, 1},
	75: {0, 0}, 76: {0, 1}, 77: {0, 1}, keyShareFetch: {1, 2}, keyShareAck: {1, 2}, 88: {0, 0}, 89: {0, 0}, 90: {0, 1}, 91: {0, 0}, 92: {0, 0},
}

// request is the beginning of a request.
type request struct {
	key, version int16
	correlation  int32
	client       string
	software     string // that the client is, with its version, from ApiVersions 3 on
	silent       bool   // it has no answer: Produce with acks 0
	maxBytes     int    // where max_bytes of a fetch begins, behind the size of the frame; 0: it is none
}

// leastRequest is what every request has: key, version and correlation id.
const leastRequest = 8

// mostHeader bounds what a request may have before the fields that are read of it, in bytes: up to three texts of 32,767, and tags. Brokers
// bound the tags by the request alone.
const mostHeader = mostRequest

// endError is why a connection ends.
type endError string

// Error implements error.
func (e endError) Error() string { return string(e) }

func endErrorf(format string, args ...any) error { return endError(fmt.Sprintf(format, args...)) }

// readRequest reads the beginning of a request, of the size that its frame says. more is true if it does not reach.
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
		return r, in.short && len(b) < size, nil // it is answered here, whatever else is in it
	}
	if r.version < of.min || r.version > of.max {
		return r, false, endErrorf("version %d of %s is not offered, %d to %d are", r.version, kmsg.NameForKey(r.key), of.min, of.max)
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
			in.short, r.software = false, "" // what is wrong with it the broker says
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
		return r, false, endErrorf("a request of %d bytes ends in its header, or has one of more than %d bytes", size, mostHeader)
	}
	return r, in.short, nil
}

// ownAnswer is the answer to a request that no broker is asked about, nil if it has to be. An ApiVersions that is newer than what
// is understood here gets error 35 in version 0. A broker that does not know it answers so.
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

// decoded reports whether the answer has to be: it may name nodes, APIs or mechanisms, or says who the client is. Others are
// where a quota counts.
func (r *request) decoded() bool {
	switch r.key {
	case keyProduce:
		return r.version >= produceNamesNodes
	case keyCreateTopics, keyDeleteTopics, keyCreatePartitions, keyDescribeQuotas, keyAlterQuotas:
		return false
	}
	return r.response() != nil
}

// response returns an empty answer to r, nil if none of the kind is decoded. kmsg can make one of every kind, but that would make the binary
// larger by 2 MB.
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

// advertise says where clients reach a node that an answer names. ok is false if they cannot.
type advertise func(id int32, host string, port int32) (newHost string, newPort int32, ok bool)

// login reads a request of a login, of which b is everything behind the size of its frame. It returns nil for any other.
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
		return nil, endErrorf("a request to log in cannot be read") // and what is in it is told to nobody
	}
	return req, nil
}

// readBody reads the fields of a request of a known version, of which b is everything behind the size of its frame.
func readBody(b []byte, to kmsg.Request) error {
	in := reader{b: b, at: leastRequest}
	in.nullable()
	if to.IsFlexible() {
		in.tags()
	}
	if in.short {
		return errors.New("it ends in its header")
	}
	return to.ReadFrom(b[in.at:])
}

// likeRequest returns the frame of a request q in place of another, of which b is everything behind the size of its frame. The
// correlation id, the client id and the tags are those of the other.
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

// decode reads the answer to r, of which b is everything behind the size of its frame. body is where its fields begin.
func (r *request) decode(b []byte) (resp kmsg.Response, body int, err error) {
	resp = r.response()
	resp.SetVersion(r.version)
	if r.key == keyApiVersions && len(b) >= 6 && int16(binary.BigEndian.Uint16(b[4:])) == kerr.UnsupportedVersion.Code {
		resp.SetVersion(0) // that of an error about the version
	}
	in := reader{b: b}
	in.int32() // the correlation id
	if resp.IsFlexible() && r.key != keyApiVersions {
		in.tags()
	}
	if in.short {
		return nil, 0, endErrorf("an answer to %s ends in its header", kmsg.NameForKey(r.key))
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

// replace puts nodes where clients reach them, and leaves out those that they do not, and the APIs that are not offered.
func replace(resp kmsg.Response, to advertise) {
	switch resp := resp.(type) {
	case *kmsg.ApiVersionsResponse:
		kept := resp.ApiKeys[:0]
		for _, k := range resp.ApiKeys {
			if of, ok := offered[k.ApiKey]; ok && k.MinVersion <= of.max {
				// The least version stays what it is. Of SaslHandshake version 0 is not served, because bytes in no frame
				// follow it. It is named, because librdkafka 2.0 logs in nowhere else.
				if k.MaxVersion = min(k.MaxVersion, of.max); k.MinVersion <= k.MaxVersion {
					kept = append(kept, k)
				}
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

// among returns the nodes that clients reach.
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

// coordinator does the same for a coordinator. One that clients cannot reach is none that is there.
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

// reader reads the fields of a header. short is true once one of them has not been whole.
type reader struct {
	b     []byte
	at    int
	short bool
}

// next returns the next n bytes, nil if there are not as many.
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

// tags passes over tagged fields.
func (r *reader) tags() {
	for n := r.uvarint(); n > 0 && !r.short; n-- {
		r.uvarint()
		r.next(r.uvarint())
	}
}
