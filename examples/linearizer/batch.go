package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode"
	"unicode/utf8"
)

// Bounds of what a client may send. A record that is within them fits into Kafka's default of 1 MB.
const (
	maxBatch  = 768 << 10 // bytes of a batch as JSON
	maxRecord = 1 << 20   // bytes of a record; a longer one is not even decoded
	maxID     = 128       // bytes of a batch's id
	maxName   = 200       // bytes of a database's name, and of an event's type
	maxEvents = 1000      // events of a batch
	maxDepth  = 1000      // levels of an event's data; Go's decoder reads 10,000, and a record has one more than a batch
)

// version is that of the records in the topic.
const version = 1

// event is what a database is a list of.
type event struct {
	Type string          `json:"type"`
	Data json.RawMessage `json:"data,omitempty"`
}

// batch is what a client asks to be added to a database: all of it or nothing.
type batch struct {
	ID string `json:"id"`
	// Expect is the revision that the database must have, nil if any will do.
	Expect *int64  `json:"expect,omitempty"`
	Events []event `json:"events"`
}

// parseBatch reads the body of a request.
func parseBatch(body io.Reader) (batch, error) {
	var b batch
	d := json.NewDecoder(body)
	d.DisallowUnknownFields()
	if err := d.Decode(&b); err != nil {
		return b, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return b, errors.New("something follows the batch; send one batch a request")
	}
	return b, b.check()
}

// check says what is wrong with a batch, and what would be right.
func (b *batch) check() error {
	if err := checkName("id", b.ID, maxID); err != nil {
		return err
	}
	if b.Expect != nil && *b.Expect < 0 {
		return fmt.Errorf("expect is %d; it is a revision, 0 for a database without events", *b.Expect)
	}
	if len(b.Events) < 1 || len(b.Events) > maxEvents {
		return fmt.Errorf("%d events; a batch has from 1 to %d", len(b.Events), maxEvents)
	}
	for i, e := range b.Events {
		if err := checkText(fmt.Sprintf("events[%d].type", i), e.Type, maxName); err != nil {
			return err
		}
		if !utf8.Valid(e.Data) { // whoever reads the log could not read it
			return fmt.Errorf("events[%d].data is not UTF-8", i)
		}
		if n := depth(e.Data); n > maxDepth {
			return fmt.Errorf("events[%d].data has %d levels of arrays and objects, at most %d", i, n, maxDepth)
		}
	}
	return nil
}

// checkName is checkText for what stands in the path of a URL.
func checkName(what, s string, most int) error {
	if s == "." || s == ".." || s == "/" {
		return fmt.Errorf("%s is %s, which no path of a URL can carry", what, s)
	}
	return checkText(what, s, most)
}

// checkText holds that a name is short and can be printed. The error repeats none of it.
func checkText(what, s string, most int) error {
	switch {
	case s == "":
		return fmt.Errorf("%s is empty", what)
	case len(s) > most:
		return fmt.Errorf("%s has %d bytes, at most %d", what, len(s), most)
	case !utf8.ValidString(s):
		return fmt.Errorf("%s is not UTF-8", what)
	}
	for _, r := range s {
		if r == utf8.RuneError { // JSON's decoder puts it for whatever it cannot read: two ids would become one
			return fmt.Errorf("%s has the character %U, or something that is not UTF-8", what, r)
		}
		if !unicode.IsPrint(r) {
			return fmt.Errorf("%s has the character %U, which cannot be printed", what, r)
		}
	}
	return nil
}

// depth is how many levels of arrays and objects a value of JSON has.
func depth(value []byte) (most int) {
	level, text := 0, false
	for i := 0; i < len(value); i++ {
		switch c := value[i]; {
		case text && c == '\\':
			i++ // the next character does not end the text
		case c == '"':
			text = !text
		case text:
		case c == '[' || c == '{':
			level++
			most = max(most, level)
		case c == ']' || c == '}':
			level--
		}
	}
	return most
}

// digest is what makes two batches of one id the same: the precondition and the events, however they were
// spaced.
func (b *batch) digest() []byte {
	h := sha256.New()
	add := func(part []byte) {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		h.Write(part)
	}
	if b.Expect != nil {
		add(binary.BigEndian.AppendUint64(nil, uint64(*b.Expect)))
	} else {
		add(nil)
	}
	for _, e := range b.Events {
		var data bytes.Buffer
		if len(e.Data) > 0 && json.Compact(&data, e.Data) != nil {
			data.Reset() // never: the decoder lets only JSON past
		}
		add([]byte(e.Type))
		add(data.Bytes())
	}
	return h.Sum(nil)
}

// record is a batch on its way through the topic.
type record struct {
	Version  int    `json:"version"`
	Database string `json:"database"`
	// Origin is where the result goes: host:port of the API server's gRPC. Token is what it knows the
	// request by.
	Origin string `json:"origin"`
	Token  string `json:"token"`
	Batch  batch  `json:"batch"`
}

// errNoBatch is what is wrong with a record that cannot be applied.
type errNoBatch struct{ why string }

func (e errNoBatch) Error() string { return e.why }

// parseRecord reads a record of the topic. Anybody may have written it. With an error, the record holds what
// could be read: whoever it says is waiting gets the error.
func parseRecord(value []byte) (record, error) {
	var r record
	if len(value) > maxRecord {
		return r, errNoBatch{fmt.Sprintf("the record has %d bytes, at most %d", len(value), maxRecord)}
	}
	err := json.Unmarshal(value, &r)
	// Whatever is wrong: what waits in a courier's lane is bounded by this.
	known := r.Origin != "" && r.Token != "" && len(r.Origin) <= maxName && len(r.Token) <= maxID
	if !known {
		r.Origin, r.Token = "", ""
	}
	switch {
	case err != nil:
		return r, errNoBatch{"the record is not the JSON of a batch: " + clip(err.Error())}
	case r.Version != version:
		return r, errNoBatch{fmt.Sprintf("the record has version %d; this program reads version %d", r.Version, version)}
	case !known:
		return r, errNoBatch{"the record does not say who waits for its result"}
	}
	if err := checkName("database", r.Database, maxName); err != nil {
		return r, errNoBatch{err.Error()}
	}
	if err := r.Batch.check(); err != nil {
		return r, errNoBatch{err.Error()}
	}
	return r, nil
}

// encode is the record as the topic has it. Events stay as they were sent, but for spaces, and so does the digest.
func (r *record) encode() ([]byte, error) {
	var buf bytes.Buffer
	e := json.NewEncoder(&buf)
	e.SetEscapeHTML(false)
	if err := e.Encode(r); err != nil {
		return nil, err
	}
	return bytes.TrimSpace(buf.Bytes()), nil
}

// clip keeps messages short, whatever somebody has sent.
func clip(s string) string {
	const most = 200
	if len(s) <= most {
		return s
	}
	return string([]rune(s[:most-4])) + " ..."
}
