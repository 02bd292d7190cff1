package kafka

import (
	"encoding/binary"
	"reflect"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

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

// The shape of each request that is decoded, in each version, ends where the request does.
func TestShapes(t *testing.T) {
	for _, key := range decodedRequests {
		for version := offered[key].min; version <= offered[key].max; version++ {
			for _, n := range []int{0, 1, 3} {
				req := kmsg.RequestForKey(key)
				if filled(reflect.ValueOf(req).Elem(), n); n == 0 {
					req = kmsg.RequestForKey(key)
				}
				req.SetVersion(version)
				b := req.AppendTo(nil)
				of, ok := shapeOf(req)
				in := reader{b: b}
				in.fields(of)
				if !ok || in.short || req.IsFlexible() && in.at != len(b) {
					t.Errorf("%s %d with lists of %d: ends at %d of %d bytes", kmsg.NameForKey(key), version, n, in.at, len(b))
				}
				again := kmsg.RequestForKey(key)
				again.SetVersion(version)
				if err := readBody(sent("client", version, req), again); err != nil {
					t.Errorf("%s %d: %v", kmsg.NameForKey(key), version, err)
				}
				for cut := range b { // and nowhere before
					short := reader{b: b[:cut]}
					if short.fields(of); req.IsFlexible() && !short.short {
						t.Errorf("%s %d with lists of %d: also ends at %d of %d bytes", kmsg.NameForKey(key), version, n, cut, len(b))
					}
				}
			}
		}
	}
}

// A request with four billion tags that are not there is refused at once. It took minutes.
func TestManyTags(t *testing.T) {
	for _, key := range decodedRequests {
		req := kmsg.RequestForKey(key)
		req.SetVersion(offered[key].max)
		if !req.IsFlexible() {
			continue
		}
		b := sent("client", req.GetVersion(), req)
		b = binary.AppendUvarint(b[:len(b)-1], 1<<32-1)
		again := kmsg.RequestForKey(key)
		again.SetVersion(req.GetVersion())
		if readBody(b, again) == nil {
			t.Errorf("%s is read", kmsg.NameForKey(key))
		}
	}
}
