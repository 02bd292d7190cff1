package ratelimit

import (
	"maps"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// mostMetadata bounds the metadata of an answer in bytes. A request may take 256 KiB, and metadata
// repeats it. gRPC keeps an answer for as long as the peer lets it wait.
const mostMetadata = 16 << 10

// metadata returns the dynamic metadata of an answer, as envoyproxy/ratelimit has it: what was
// asked, and which limits in quota mode are used up. Metadata of the limits that are not is beside
// it. What was asked is left out if it takes too much, and all is if that is not enough.
func (d *decision) metadata() []byte {
	descriptors := &structpb.ListValue{}
	violations := &structpb.ListValue{}
	fields := map[string]*structpb.Value{}
	enabled := false
	for i := range d.descriptors {
		a, entries := &d.descriptors[i], &structpb.ListValue{}
		for _, e := range a.entries {
			entries.Values = append(entries.Values, valid(e[0]+"="+e[1]))
		}
		one := map[string]*structpb.Value{"entries": structpb.NewListValue(entries)}
		if a.counted {
			one["hitsAddend"] = structpb.NewNumberValue(float64(a.hits))
		}
		descriptors.Values = append(descriptors.Values, structpb.NewStructValue(&structpb.Struct{Fields: one}))
		if i >= len(d.matched) || d.matched[i].charge < 0 {
			continue
		}
		c := &d.charges[d.matched[i].charge]
		if d.matched[i].unlimited(c) {
			continue
		}
		l, refused := d.matched[i].limit, c.Refused != nil
		enabled = enabled || l.quota
		switch {
		case l.quota && refused:
			violations.Values = append(violations.Values, structpb.NewNumberValue(float64(i)))
		case l.metadata != nil && !refused:
			maps.Copy(fields, l.metadata.Fields)
		}
	}
	fields["domain"] = valid(d.domain)
	fields["descriptors"] = structpb.NewListValue(descriptors)
	fields["quotaModeEnabled"] = structpb.NewBoolValue(enabled)
	if d.hits != 0 {
		fields["hitsAddend"] = structpb.NewNumberValue(float64(d.hits))
	}
	if len(violations.Values) > 0 {
		fields["quotaModeViolations"] = structpb.NewListValue(violations)
	}
	all := &structpb.Struct{Fields: fields}
	if proto.Size(all) > mostMetadata {
		delete(fields, "descriptors")
	}
	b, err := proto.Marshal(all)
	if err != nil || len(b) > mostMetadata { // an error cannot be: all texts are UTF-8
		return nil
	}
	return b
}

// valid returns a text that may be in a message. Headers may have any bytes, and be in a descriptor.
func valid(s string) *structpb.Value {
	return structpb.NewStringValue(strings.ToValidUTF8(s, "\uFFFD"))
}
