package admin

import (
	"net/http"
	"os"
	"time"
)

// Reload is what became of the configuration when it was read again the last time.
type Reload struct {
	// Attempts is how many times it was read again, by whatever asked for it.
	Attempts uint64 `json:"attempts"`
	// At is the last time, and Result what became of it. They are empty before the first.
	At     time.Time    `json:"at,omitzero"`
	Result ReloadResult `json:"result,omitempty"`
	// Error says why it was refused.
	Error string `json:"error,omitempty"`
	// Changes is what the last reload with a change has changed, and ChangedAt when that was.
	Changes   []string  `json:"changes,omitempty"`
	ChangedAt time.Time `json:"changed_at,omitzero"`
	// File is the name of the configuration file, empty if there is none. PID is the process
	// of the gateway.
	File string `json:"file,omitempty"`
	PID  int    `json:"pid"`
}

// ReloadResult is what became of a reload.
type ReloadResult string

// What can become of a reload.
const (
	ReloadChanged   ReloadResult = "changed"   // another configuration is in force
	ReloadUnchanged ReloadResult = "unchanged" // it says the same as before
	ReloadRefused   ReloadResult = "refused"   // it has faults; the one before stays
)

// ReloadAPI serves /reload: GET tells of the last reload, POST reloads.
type ReloadAPI struct {
	// Reload reloads, and returns what became of it. It is nil if there is no file.
	Reload func() Reload
	// Last returns what became of the last reload.
	Last func() Reload
	// Writers says who may reload.
	Writers *Writers
}

var errNoFile error = &requestError{http.StatusConflict, "there is nothing to reload: the gateway was started without a configuration file"}

func (a *ReloadAPI) register(mux *http.ServeMux) {
	mux.HandleFunc("GET /reload", func(w http.ResponseWriter, _ *http.Request) { writeReload(w, http.StatusOK, a.Last()) })
	mux.HandleFunc("POST /reload", a.reload)
}

func (a *ReloadAPI) reload(w http.ResponseWriter, r *http.Request) {
	err := errNoFile // which is said first: nobody needs a token to hear it
	if a.Reload != nil {
		_, _, err = a.Writers.who(r)
	}
	if err != nil {
		writeRequestError(w, err)
		return
	}
	done := a.Reload()
	status := http.StatusOK
	if done.Result == ReloadRefused {
		status = http.StatusUnprocessableEntity
	}
	writeReload(w, status, done)
}

func writeReload(w http.ResponseWriter, status int, r Reload) {
	r.PID = os.Getpid()
	writeDocument(w, status, "application/json", r)
}
