package explain

import (
	"encoding/json"
	"net/http"

	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/policy"
)

// Handler answers GET requests, whose query is an Ask, with what the gateway would do
// now. current returns the configuration and the policy in force.
func Handler(current func() (*config.Config, *policy.Policy)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ask, err := Parse(r.URL.Query())
		var a *Answer
		if err == nil {
			cfg, p := current()
			a, err = Of(cfg, p, ask)
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
