package accesslog

import (
	"strconv"
	"time"
	"unicode/utf8"
)

// Entry is what a line says about a request. Fields that are empty are left out of the line.
type Entry struct {
	Time      time.Time // when it arrived
	Client    string    // the address it comes from
	Method    string
	Host      string // as the client wrote it
	Path      string // as the client wrote it, without the query
	Query     string
	Proto     string
	Status    int   // 499 if there was no answer
	Bytes     int64 // of the answer's body, as far as it was sent
	Duration  time.Duration
	Waited    time.Duration
	By        string // who answered: upstream, gate or gateway
	Route     string
	Class     string
	Upstream  string
	Target    string
	Gate      string
	Rule      string
	Reason    string
	RequestID string
	TraceID   string
}

// longestText bounds what a line has of a text that a client chose.
const longestText = 2048

// fields calls text for each text of e, and number for each number, in the order of the line. Numbers
// are given as their digits.
func (e *Entry) fields(b []byte, query bool, text func(b []byte, key, value string) []byte, number func(b []byte, key string) []byte) []byte {
	b = text(b, "client", e.Client)
	b = text(b, "method", e.Method)
	b = text(b, "host", e.Host)
	b = text(b, "path", e.Path)
	if query {
		b = text(b, "query", e.Query)
	}
	b = text(b, "proto", e.Proto)
	b = strconv.AppendInt(number(b, "status"), int64(e.Status), 10)
	b = strconv.AppendInt(number(b, "bytes"), e.Bytes, 10)
	b = appendSeconds(number(b, "duration"), e.Duration)
	b = appendSeconds(number(b, "waited"), e.Waited)
	b = text(b, "by", e.By)
	b = text(b, "route", e.Route)
	b = text(b, "class", e.Class)
	b = text(b, "upstream", e.Upstream)
	b = text(b, "target", e.Target)
	b = text(b, "gate", e.Gate)
	b = text(b, "rule", e.Rule)
	b = text(b, "reason", e.Reason)
	b = text(b, "request_id", e.RequestID)
	return text(b, "trace_id", e.TraceID)
}

// layout is RFC 3339 in UTC, to the microsecond.
const layout = "2006-01-02T15:04:05.000000Z"

// appendJSON appends a line as a JSON object.
func appendJSON(b []byte, e *Entry, query bool) []byte {
	b = e.Time.UTC().AppendFormat(append(b, `{"time":"`...), layout)
	b = append(b, '"')
	b = e.fields(b, query, func(b []byte, key, value string) []byte {
		if value == "" {
			return b
		}
		return appendQuoted(jsonKey(b, key), value)
	}, jsonKey)
	return append(b, '}', '\n')
}

func jsonKey(b []byte, key string) []byte {
	b = append(b, ',', '"')
	b = append(b, key...)
	return append(b, '"', ':')
}

// appendText appends a line as key=value, with a space between. A value that could be misread stands
// in quotes, as in JSON.
func appendText(b []byte, e *Entry, query bool) []byte {
	b = e.Time.UTC().AppendFormat(append(b, "time="...), layout)
	b = e.fields(b, query, func(b []byte, key, value string) []byte {
		switch {
		case value == "":
			return b
		case len(value) > longestText || !plain(value):
			return appendQuoted(textKey(b, key), value)
		}
		return append(textKey(b, key), value...)
	}, textKey)
	return append(b, '\n')
}

func textKey(b []byte, key string) []byte {
	b = append(b, ' ')
	b = append(b, key...)
	return append(b, '=')
}

// plain reports whether a value can stand without quotes.
func plain(s string) bool {
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c >= 0x7f || c == '"' || c == '=' || c == '\\' {
			return false
		}
	}
	return true
}

const hexDigits = "0123456789abcdef"

// appendQuoted appends s as a JSON string of printable ASCII, cut at longestText. So no client can
// end the line, or write what a terminal would take for a command.
func appendQuoted(b []byte, s string) []byte {
	cut := len(s) > longestText
	if cut {
		s = s[:longestText]
	}
	b = append(b, '"')
	for i := 0; i < len(s); {
		c := s[i]
		switch {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c >= ' ' && c < 0x7f:
			b = append(b, c)
		case c < utf8.RuneSelf:
			b = appendEscaped(b, rune(c))
		default:
			r, size := utf8.DecodeRuneInString(s[i:])
			if r > 0xffff { // as JSON writes them, in two halves
				r -= 0x10000
				b = appendEscaped(b, 0xd800+r>>10)
				r = 0xdc00 + r&0x3ff
			}
			b = appendEscaped(b, r)
			i += size
			continue
		}
		i++
	}
	if cut {
		b = append(b, "..."...)
	}
	return append(b, '"')
}

func appendEscaped(b []byte, r rune) []byte {
	return append(b, '\\', 'u', hexDigits[r>>12&15], hexDigits[r>>8&15], hexDigits[r>>4&15], hexDigits[r&15])
}

// appendSeconds appends seconds to the microsecond.
func appendSeconds(b []byte, d time.Duration) []byte {
	micros := max(d.Microseconds(), 0)
	b = strconv.AppendInt(b, micros/1e6, 10)
	b = append(b, '.')
	for unit := int64(1e5); unit > 0; unit /= 10 {
		b = append(b, byte('0'+micros/unit%10))
	}
	return b
}
