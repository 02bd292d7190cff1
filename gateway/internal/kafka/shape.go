package kafka

import (
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// shape is the fields of a request in a version with tags. A digit is so many bytes, u the 16 of an id, s a text, and T tags. What stands in
// brackets repeats.
type shape string

// shapeOf returns the shape of a request that is decoded. ok is false for any other, and for versions without tags.
func shapeOf(r kmsg.Request) (s shape, ok bool) {
	if !r.IsFlexible() {
		return "", true
	}
	version := r.GetVersion()
	switch r.Key() {
	case keySaslAuthenticate:
		return "sT", true
	case keyMetadata:
		switch {
		case version < 10:
			return "[sT]111T", true
		case version == 10:
			return "[usT]111T", true
		}
		return "[usT]11T", true
	case keyCreateTopics:
		return "[s42[4[4]T][ssT]T]41T", true
	case keyDeleteTopics:
		if version < byID {
			return "[s]4T", true
		}
		return "[suT]4T", true
	case keyCreatePartitions:
		return "[s4[[4]T]T]41T", true
	case keyDescribeQuotas:
		return "[s1sT]1T", true
	case keyAlterQuotas:
		return "[[ssT][s81T]T]1T", true
	}
	return "", false
}

// fields passes over the fields of a shape. kmsg goes on reading tags behind the end of a request for as long as their number says. That
// is four billion at most, and takes minutes. So nothing is given to it before its end is known.
func (r *reader) fields(s shape) {
	for at := 0; at < len(s) && !r.short; at++ {
		switch of := s[at]; of {
		case 's':
			r.compact()
		case 'T':
			r.tags()
		case 'u':
			r.take(16)
		case '[':
			inner := s[at+1 : at+1+s[at+1:].close()]
			for n := r.uvarint() - 1; n > 0 && !r.short; n-- {
				r.fields(inner)
			}
			at += len(inner) + 1
		default:
			r.take(int(of - '0'))
		}
	}
}

// close is where the bracket ends that stands before a shape.
func (s shape) close() int {
	open := 1
	return strings.IndexFunc(string(s), func(c rune) bool {
		switch c {
		case '[':
			open++
		case ']':
			open--
		}
		return open == 0
	})
}
