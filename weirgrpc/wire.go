package weirgrpc

import (
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	spb "google.golang.org/genproto/googleapis/rpc/status"

	"github.com/weir-go/weir"
)

// The headers or trailers of a status.
const (
	statusHeader  = "Grpc-Status"
	messageHeader = "Grpc-Message"
	detailsHeader = "Grpc-Status-Details-Bin"
)

// SetStatus writes a status into the header of an answer without a body, which gRPC calls trailers-only. The
// answer's HTTP status is 200. It is for servers that answer calls without grpc-go, such as proxies.
func SetStatus(h http.Header, st *status.Status) {
	h["Content-Type"] = []string{"application/grpc"}
	h[statusHeader] = []string{strconv.Itoa(int(st.Code()))}
	delete(h, messageHeader)
	delete(h, detailsHeader)
	if m := st.Message(); m != "" {
		h[messageHeader] = []string{escaped(m)}
	}
	if p := st.Proto(); len(p.GetDetails()) > 0 {
		if b, err := proto.Marshal(p); err == nil { // an error means a text that is not UTF-8
			h[detailsHeader] = []string{base64.RawStdEncoding.EncodeToString(b)}
		}
	}
}

// SetRefusal is SetStatus for a refusal, with [PushbackHeader].
func (s Statuses) SetRefusal(h http.Header, rej *weir.Rejection) {
	SetStatus(h, s.Of(rej))
	if ms, ok := Pushback(rej); ok {
		h[http.CanonicalHeaderKey(PushbackHeader)] = []string{ms}
	}
}

// longestDetails bounds the details that are decoded, in bytes of base64.
const longestDetails = 16 << 10

// StatusOf returns the status in the header or trailer of an answer, with its details if they are complete. It
// returns false if there is none. A status that is not a number becomes codes.Unknown, as in gRPC's own
// clients.
func StatusOf(h http.Header) (st *status.Status, ok bool) {
	values := h[statusHeader]
	if len(values) == 0 {
		return nil, false
	}
	n, err := strconv.ParseUint(values[0], 10, 31)
	if err != nil {
		return status.New(codes.Unknown, "the status is not a number"), true
	}
	p := &spb.Status{Code: int32(n), Message: h.Get(messageHeader)}
	if text := h.Get(detailsHeader); text != "" && len(text) <= longestDetails {
		var full spb.Status
		b, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(text, "="))
		if err == nil && proto.Unmarshal(b, &full) == nil && full.Code == p.Code {
			p = &full
		}
	}
	return status.FromProto(p), true
}

// escaped writes a message as gRPC sends it: printable ASCII as it is, and percent signs and all other bytes as
// %XX.
func escaped(message string) string {
	const digits = "0123456789ABCDEF"
	var b strings.Builder
	for _, c := range []byte(message) {
		if c < ' ' || c > '~' || c == '%' {
			b.Write([]byte{'%', digits[c>>4], digits[c&15]})
			continue
		}
		b.WriteByte(c)
	}
	return b.String()
}
