package ratelimit

import (
	"maps"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// metadata returns the dynamic metadata of an answer, as envoyproxy/ratelimit has it: what was
// asked, and which limits in quota mode are used up. Metadata of the limits that are not is beside
// it.
func (d *decision) metadata() []byte {
	descriptors := &structpb.ListValue{}
	violations := &structpb.ListValue{}
	fields := map[string]*structpb.Value{}
	enabled := false
	for i := range d.descriptors {
		a, entries := &d.descriptors[i], &structpb.ListValue{}
		for _, e := range a.entries {
			entries.Values = append(entries.Values, structpb.NewStringValue(e[0]+"="+e[1]))
		}
		one := map[string]*structpb.Value{"entries": structpb.NewListValue(entries)}
		if a.counted {
			one["hitsAddend"] = structpb.NewNumberValue(float64(a.hits))
		}
		descriptors.Values = append(descriptors.Values, structpb.NewStructValue(&structpb.Struct{Fields: one}))
		if i >= len(d.matched) || d.matched[i].charge < 0 {
			continue
		}
		l, refused := d.matched[i].limit, d.charges[d.matched[i].charge].Refused != nil
		enabled = enabled || l.quota
		switch {
		case l.quota && refused:
			violations.Values = append(violations.Values, structpb.NewNumberValue(float64(i)))
		case l.metadata != nil && !refused:
			maps.Copy(fields, l.metadata.Fields)
		}
	}
	fields["domain"] = structpb.NewStringValue(d.domain)
	fields["descriptors"] = structpb.NewListValue(descriptors)
	fields["quotaModeEnabled"] = structpb.NewBoolValue(enabled)
	if d.hits != 0 {
		fields["hitsAddend"] = structpb.NewNumberValue(float64(d.hits))
	}
	if len(violations.Values) > 0 {
		fields["quotaModeViolations"] = structpb.NewListValue(violations)
	}
	b, err := proto.Marshal(&structpb.Struct{Fields: fields})
	if err != nil { // a text that is no UTF-8
		return nil
	}
	return b
}
