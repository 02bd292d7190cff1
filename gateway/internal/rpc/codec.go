package rpc

import (
	"fmt"

	"google.golang.org/grpc/encoding"
	"google.golang.org/protobuf/proto"
)

// Reader is a message that reads itself from protobuf's wire format.
type Reader interface {
	ReadWire(b []byte) error
}

// Appender is a message that writes itself in protobuf's wire format.
type Appender interface {
	AppendWire(b []byte) []byte
}

// codec lets a message read or write itself if it can, and uses protobuf otherwise.
type codec struct{}

var _ encoding.Codec = codec{}

// Name implements [encoding.Codec].
func (codec) Name() string { return "proto" }

// Marshal implements [encoding.Codec].
func (codec) Marshal(v any) ([]byte, error) {
	switch m := v.(type) {
	case Appender:
		return m.AppendWire(nil), nil
	case proto.Message:
		return proto.Marshal(m)
	}
	return nil, fmt.Errorf("%T is not a message", v)
}

// Unmarshal implements [encoding.Codec].
func (codec) Unmarshal(data []byte, v any) error {
	switch m := v.(type) {
	case Reader:
		return m.ReadWire(data)
	case proto.Message:
		return proto.Unmarshal(data, m)
	}
	return fmt.Errorf("%T is not a message", v)
}
