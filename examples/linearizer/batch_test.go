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
