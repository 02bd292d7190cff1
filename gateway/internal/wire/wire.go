// Package wire reads messages of protobuf's wire format field by field. The services for an Envoy
// read the few fields that they need, and make no tree of objects of the rest.
package wire

import "google.golang.org/protobuf/encoding/protowire"

// Walk calls do for each field of a message in protobuf's wire format. do gets the bytes of a field
// that has them, else n. The error is do's, or malformed if b is no such message.
func Walk(b []byte, malformed error, do func(num protowire.Number, bytes []byte, n uint64) error) error {
	for len(b) > 0 {
		num, typ, size := protowire.ConsumeTag(b)
		if size < 0 {
			return malformed
		}
		b = b[size:]
		var value []byte
		var n uint64
		switch typ {
		case protowire.BytesType:
			value, size = protowire.ConsumeBytes(b)
		case protowire.VarintType:
			n, size = protowire.ConsumeVarint(b)
		default:
			size = protowire.ConsumeFieldValue(num, typ, b)
		}
		if size < 0 {
			return malformed
		}
		b = b[size:]
		if err := do(num, value, n); err != nil {
			return err
		}
	}
	return nil
}
