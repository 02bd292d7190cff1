package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"unicode/utf8"
)

// Whatever stands in a record, it is applied or it has a short reason. What is applied is the same after another way
// through the topic, can be asked for by its address, and is text.
func FuzzParseRecord(f *testing.F) {
	for _, change := range [][2]string{
		{"", ""}, {"orders", ".."}, {`"id":"1"`, `"id":"."`}, {`"id":"1"`, `"id":"/"`}, {`"id":"1"`, `"id":"a/../b"`}, {"orders", "a/b?c#d%2f\\\""},
		{`"id":"1"`, `"id":"\ud800"`}, {`"id":"1"`, "\"id\":\"\xff\""}, {`"x"`, "\"x\",\"data\":\"\xff\""}, {`"x"`, `"x","data":{ "a" : [1, 2.50, "<&>\u2028"]}`},
		{`"events"`, `"expect":3,"events"`}, {"127.0.0.1:1", "[::1]:80"}, {`:1,`, `:2,`},
	} {
		f.Add([]byte(strings.Replace(goodRecord, change[0], change[1], 1)))
	}
	f.Add([]byte(`{"version":1,"batch":{"events":[{}]}}`))
	var database, id string
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/databases/{db}/batches/{id}", func(_ http.ResponseWriter, r *http.Request) {
		database, id = r.PathValue("db"), r.PathValue("id")
	})
	f.Fuzz(func(t *testing.T, value []byte) {
		r, err := parseRecord(value)
		if len(r.Origin) > maxName || len(r.Token) > maxID {
			t.Errorf("an address of %d bytes, a token of %d", len(r.Origin), len(r.Token))
		}
		if err != nil {
			if n := len(err.Error()); n > 400 {
				t.Errorf("a reason of %d bytes", n)
			}
			return
		}
		again, err := r.encode()
		if err != nil || !utf8.Valid(again) {
			t.Fatalf("%q: %v", again, err)
		}
		back, err := parseRecord(again)
		if err != nil || back.Database != r.Database || back.Batch.ID != r.Batch.ID || !bytes.Equal(back.Batch.digest(), r.Batch.digest()) {
			t.Errorf("%q is %+v once more: %v", again, back, err)
		}
		if _, err := json.Marshal(back); err != nil {
			t.Error(err)
		}
		database, id = "", ""
		mux.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, pathOf(r.Database, r.Batch.ID), nil))
		if database != r.Database || id != r.Batch.ID {
			t.Errorf("%s is batch %q of %q, want %q of %q", pathOf(r.Database, r.Batch.ID), id, database, r.Batch.ID, r.Database)
		}
	})
}

// A batch that the API takes is one that processors can read: JSON's decoder has a bound, and a record nests deeper than a batch.
func TestDeepBatches(t *testing.T) {
	nested := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	for _, tt := range []struct{ name, data, want string }{
		{"levels that are allowed", nested(maxDepth), ""},
		{"one more", `{"a":` + nested(maxDepth) + `}`, "events[0].data has 1001 levels of arrays and objects, at most 1000"},
		{"as many as the decoder reads of a batch", nested(10_000 - 3), "has 9997 levels"},
		{"brackets in a text", `["` + strings.Repeat(`[{\"`, 5000) + `\\"]`, ""},
		{"many that end", "[" + strings.Repeat("[{}],", 5000) + "0]", ""},
	} {
		b, err := parseBatch(strings.NewReader(`{"id":"a","events":[{"type":"t","data":` + tt.data + `}]}`))
		if (err != nil) != (tt.want != "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
		if err != nil {
			continue
		}
		r := record{Version: version, Database: "orders", Origin: "127.0.0.1:1", Token: "t", Batch: b}
		value, err := r.encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parseRecord(value); err != nil {
			t.Errorf("%s: a processor says %v", tt.name, err)
		}
	}
}
