package envoy

import (
	"errors"
	"slices"
	"strconv"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/weir-go/weir/gateway/internal/wire"
)

// The messages of envoy.service.ext_proc.v3 are read and written here, field by field. The module
// that has them all, go-control-plane, would add 3.4 MB to the binary. It also makes a tree of
// objects of each message. The tests hold these functions against it.

// phase is the kind of a message, as its field in ProcessingRequest.
type phase protowire.Number

// The phases of a request and its answer.
const (
	requestHeaders   phase = 2
	responseHeaders  phase = 3
	requestBody      phase = 4
	responseBody     phase = 5
	requestTrailers  phase = 6
	responseTrailers phase = 7
)

var phaseNames = map[phase]string{
	requestHeaders: "request headers", responseHeaders: "response headers", requestBody: "request body",
	responseBody: "response body", requestTrailers: "request trailers", responseTrailers: "response trailers",
}

// String names a phase for messages.
func (p phase) String() string { return phaseNames[p] }

// request is what is read of a ProcessingRequest.
type request struct {
	phase      phase // 0: none that is known
	fields     fields
	last       bool // end_of_stream
	attributes attributes
	observing  bool // observability_mode: nobody reads an answer
	bodies     bool // a body mode is not NONE
	tooMany    bool // there were more fields than are read
}

// field is one header or trailer.
type field struct{ name, value string }

// fields are the headers or trailers of a message, in their order.
type fields []field

// attributes are what Envoy says of the connection.
type attributes struct {
	source   string // source.address
	mutual   bool   // connection.mtls
	uri, dns string // of the client's certificate
}

var errWire = errors.New("the message is not a ProcessingRequest")

// mostFields bounds the headers or trailers of a message. Envoy's own bound is 100 by default.
const mostFields = 1000

// ReadWire fills in r from a ProcessingRequest.
func (r *request) ReadWire(b []byte) error {
	*r = request{}
	return wire.Walk(b, errWire, func(num protowire.Number, value []byte, n uint64) error {
		switch p := phase(num); p {
		case requestHeaders, responseHeaders:
			r.begin(p, false)
			return r.readHeaders(value)
		case requestTrailers, responseTrailers:
			r.begin(p, true)
			return wire.Walk(value, errWire, func(num protowire.Number, value []byte, _ uint64) error {
				if num == 1 {
					return r.readFields(value)
				}
				return nil
			})
		case requestBody, responseBody:
			r.begin(p, false) // what is in it does not matter
		case 9:
			return r.attributes.readEntry(value)
		case 10:
			r.observing = n != 0
		case 11:
			return wire.Walk(value, errWire, func(num protowire.Number, _ []byte, n uint64) error {
				r.bodies = r.bodies || num <= 2 && n != 0 // 0 is NONE
				return nil
			})
		}
		return nil
	})
}

// begin says which phase the message is of. Of several the last counts, as everywhere in protobuf.
func (r *request) begin(p phase, last bool) {
	if p != r.phase {
		r.phase, r.last, r.fields, r.tooMany = p, last, nil, false
	}
}

// readHeaders reads an HttpHeaders.
func (r *request) readHeaders(b []byte) error {
	return wire.Walk(b, errWire, func(num protowire.Number, value []byte, n uint64) error {
		switch num {
		case 1:
			return r.readFields(value)
		case 3:
			r.last = n != 0
		}
		return nil
	})
}

// readFields reads a HeaderMap. Envoy sends values as bytes, and did as strings.
func (r *request) readFields(b []byte) error {
	return wire.Walk(b, errWire, func(num protowire.Number, value []byte, _ uint64) error {
		if num != 1 {
			return nil
		}
		if len(r.fields) == mostFields {
			r.tooMany = true
			return nil
		}
		var one field
		err := wire.Walk(value, errWire, func(num protowire.Number, value []byte, _ uint64) error {
			switch num {
			case 1:
				one.name = string(value)
			case 2, 3:
				if len(value) > 0 {
					one.value = string(value)
				}
			}
			return nil
		})
		r.fields = append(r.fields, one)
		return err
	})
}

// get returns the first value of a header, empty if there is none.
func (f fields) get(name string) string {
	for i := range f {
		if f[i].name == name {
			return f[i].value
		}
	}
	return ""
}

// has reports whether there is a header of this name.
func (f fields) has(name string) bool {
	return slices.ContainsFunc(f, func(one field) bool { return one.name == name })
}

// size returns the bytes of names and values.
func (f fields) size() (n int) {
	for i := range f {
		n += len(f[i].name) + len(f[i].value)
	}
	return n
}

// readEntry reads an entry of the map of attributes: the name of the filter, and a Struct.
func (a *attributes) readEntry(b []byte) error {
	return wire.Walk(b, errWire, func(num protowire.Number, value []byte, _ uint64) error {
		if num != 2 {
			return nil
		}
		return wire.Walk(value, errWire, func(num protowire.Number, value []byte, _ uint64) error {
			if num != 1 {
				return nil
			}
			return a.readField(value)
		})
	})
}

// readField reads an entry of a Struct: a name, and a Value.
func (a *attributes) readField(b []byte) error {
	var name, text string
	var yes bool
	err := wire.Walk(b, errWire, func(num protowire.Number, value []byte, _ uint64) error {
		switch num {
		case 1:
			name = string(value)
		case 2:
			return wire.Walk(value, errWire, func(num protowire.Number, value []byte, n uint64) error {
				switch num {
				case 3:
					text = string(value)
				case 4:
					yes = n != 0
				}
				return nil
			})
		}
		return nil
	})
	switch name {
	case "source.address":
		a.source = text
	case "connection.mtls":
		a.mutual = yes
	case "connection.uri_san_peer_certificate":
		a.uri = text
	case "connection.dns_san_peer_certificate":
		a.dns = text
	}
	return err
}

// response is a ProcessingResponse.
type response struct {
	phase     phase // whose answer it is; 0 for one that only asks for patience, or is immediate
	change    mutation
	immediate *immediate
	patience  time.Duration // override_message_timeout
}

// mutation are headers to set, in place of those of that name, and to remove.
type mutation struct {
	set    fields
	remove []string
}

// immediate is an ImmediateResponse.
type immediate struct {
	status  int
	headers fields
	body    []byte
	grpc    bool
	code    uint32 // of gRPC
	details string // for Envoy's access log
}

// AppendWire writes a ProcessingResponse.
func (r *response) AppendWire(b []byte) []byte {
	switch {
	case r.immediate != nil:
		return appendMessage(b, 7, r.immediate.append(nil))
	case r.patience > 0:
		var d []byte
		d = appendNumber(d, 1, uint64(r.patience/time.Second))
		d = appendNumber(d, 2, uint64(r.patience%time.Second))
		return appendMessage(b, 10, d)
	}
	change := r.change.append(nil)
	switch r.phase {
	case requestTrailers, responseTrailers:
		if len(change) > 0 {
			change = appendMessage(nil, 1, change)
		}
	default:
		var common []byte
		if len(change) > 0 {
			common = appendMessage(nil, 2, change)
		}
		change = appendMessage(nil, 1, common)
	}
	return appendMessage(b, protowire.Number(r.phase)-1, change)
}

// overwrite is OVERWRITE_IF_EXISTS_OR_ADD of HeaderValueOption.HeaderAppendAction.
const overwrite = 2

// append writes a HeaderMutation.
func (m *mutation) append(b []byte) []byte {
	b = m.set.append(b)
	for _, name := range m.remove {
		b = protowire.AppendString(protowire.AppendTag(b, 2, protowire.BytesType), name)
	}
	return b
}

// append writes set_headers of a HeaderMutation.
func (f fields) append(b []byte) []byte {
	for i, h := range f {
		header := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), h.name)
		header = protowire.AppendString(protowire.AppendTag(header, 3, protowire.BytesType), h.value)
		option := appendMessage(nil, 1, header)
		if i == 0 || f[i-1].name != h.name { // lines of one name follow each other
			option = appendNumber(option, 3, overwrite)
		}
		b = appendMessage(b, 1, option)
	}
	return b
}

// append writes an ImmediateResponse.
func (i *immediate) append(b []byte) []byte {
	b = appendMessage(b, 1, appendNumber(nil, 1, uint64(i.status)))
	if len(i.headers) > 0 {
		b = appendMessage(b, 2, i.headers.append(nil))
	}
	b = appendMessage(b, 3, i.body)
	if i.grpc {
		b = appendMessage(b, 4, appendNumber(nil, 1, uint64(i.code)))
	}
	return protowire.AppendString(protowire.AppendTag(b, 5, protowire.BytesType), i.details)
}

func appendMessage(b []byte, num protowire.Number, message []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, num, protowire.BytesType), message)
}

func appendNumber(b []byte, num protowire.Number, n uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, num, protowire.VarintType), n)
}

// decimal returns the number in text that has at most three digits, false for anything else.
func decimal(text string) (int, bool) {
	n, err := strconv.ParseUint(text, 10, 16)
	return int(n), err == nil && len(text) <= 3
}
