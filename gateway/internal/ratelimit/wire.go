package ratelimit

import (
	"errors"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/weir-go/weir/gateway/internal/wire"
)

// The messages of envoy.service.ratelimit.v3 are read and written here, field by field, for the
// reasons that package envoy has. The tests hold these functions against go-control-plane.

// request is a RateLimitRequest.
type request struct {
	domain      string
	descriptors []asked
	hits        uint64
	fault       error // more than there may be
}

// asked is a RateLimitDescriptor.
type asked struct {
	entries  [][2]string
	limit    *override
	hits     uint64
	counted  bool // hits is set
	negative bool
}

// override is a limit that comes with the request.
type override struct{ requests, unit, multiplier uint64 }

var errWire = errors.New("the message is not a RateLimitRequest")

// mostDescriptors and mostEntries bound a request. Envoy sends as many as a route has actions.
const (
	mostDescriptors = 100
	mostEntries     = 100
)

var errTooMany = errors.New("a request has at most 100 descriptors, and a descriptor at most 100 entries")

// ReadWire fills in r. What may be no more is a fault of the request, not of the message.
func (r *request) ReadWire(b []byte) error {
	*r = request{}
	err := r.read(b)
	if errors.Is(err, errTooMany) {
		r.fault, err = err, nil
	}
	return err
}

func (r *request) read(b []byte) error {
	return wire.Walk(b, errWire, func(num protowire.Number, value []byte, n uint64) error {
		switch num {
		case 1:
			r.domain = string(value)
		case 2:
			if len(r.descriptors) == mostDescriptors {
				return errTooMany
			}
			r.descriptors = append(r.descriptors, asked{})
			return r.descriptors[len(r.descriptors)-1].read(value)
		case 3:
			r.hits = n & 0xffffffff
		}
		return nil
	})
}

func (d *asked) read(b []byte) error {
	return wire.Walk(b, errWire, func(num protowire.Number, value []byte, n uint64) error {
		switch num {
		case 1:
			if len(d.entries) == mostEntries {
				return errTooMany
			}
			var e [2]string
			err := wire.Walk(value, errWire, func(num protowire.Number, value []byte, _ uint64) error {
				if num == 1 || num == 2 {
					e[num-1] = string(value)
				}
				return nil
			})
			d.entries = append(d.entries, e)
			return err
		case 2:
			if d.limit == nil {
				d.limit = new(override)
			}
			return wire.Walk(value, errWire, func(num protowire.Number, value []byte, n uint64) error {
				switch num {
				case 1:
					d.limit.requests = n & 0xffffffff
				case 2:
					d.limit.unit = n
				case 3:
					return number(value, &d.limit.multiplier)
				}
				return nil
			})
		case 3:
			d.counted = true
			return number(value, &d.hits)
		case 4:
			d.negative = n != 0
		}
		return nil
	})
}

// number reads a UInt32Value or a UInt64Value.
func number(b []byte, into *uint64) error {
	return wire.Walk(b, errWire, func(num protowire.Number, _ []byte, n uint64) error {
		if num == 1 {
			*into = n
		}
		return nil
	})
}

// The codes of an answer.
const (
	codeOK   = 1
	codeOver = 2
)

// response is a RateLimitResponse.
type response struct {
	code     uint64
	statuses []status
	headers  [][2]string
	metadata []byte // a Struct
}

// status is a DescriptorStatus.
type status struct {
	code      uint64
	limit     *current // nil: there is none
	remaining uint64
	reset     time.Duration // in whole seconds; 0: not known
}

// current is a RateLimit, the limit in force.
type current struct {
	requests, unit uint64
	name           string
}

// AppendWire appends the message.
func (r *response) AppendWire(b []byte) []byte {
	b = varint(b, 1, r.code)
	for i := range r.statuses {
		b = message(b, 2, r.statuses[i].append)
	}
	for _, h := range r.headers {
		b = message(b, 3, func(b []byte) []byte { return text(text(b, 1, h[0]), 2, h[1]) })
	}
	if r.metadata != nil {
		b = message(b, 6, func(b []byte) []byte { return append(b, r.metadata...) })
	}
	return b
}

func (s *status) append(b []byte) []byte {
	b = varint(b, 1, s.code)
	if l := s.limit; l != nil {
		b = message(b, 2, func(b []byte) []byte { return text(varint(varint(b, 1, l.requests), 2, l.unit), 3, l.name) })
	}
	b = varint(b, 3, s.remaining)
	if s.reset > 0 {
		b = message(b, 4, func(b []byte) []byte {
			return varint(varint(b, 1, uint64(s.reset/time.Second)), 2, uint64(s.reset%time.Second))
		})
	}
	return b
}

func varint(b []byte, num protowire.Number, n uint64) []byte {
	if n == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, num, protowire.VarintType), n)
}

func text(b []byte, num protowire.Number, s string) []byte {
	if s == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, num, protowire.BytesType), s)
}

// message appends a message inside another.
func message(b []byte, num protowire.Number, write func([]byte) []byte) []byte {
	b = protowire.AppendTag(b, num, protowire.BytesType)
	var buf [64]byte
	inside := write(buf[:0])
	return protowire.AppendBytes(b, inside)
}
