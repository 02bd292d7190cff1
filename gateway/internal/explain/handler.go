package explain

import (
	"encoding/json"
	"net/http"
)

// Handler answers GET requests, whose query is an Ask, with what the gateway would do
// now. current returns what is in force.
func Handler(current func() View) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ask, err := Parse(r.URL.Query())
		var a *Answer
		if err == nil {
			a, err = Of(current(), ask)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		body, err := json.MarshalIndent(a, "", "  ")
		if err != nil { // cannot be: texts and whole numbers
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(append(body, '\n')) // whoever asked has gone
	})
}
