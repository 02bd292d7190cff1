package live

import (
	"net/http"
	"strconv"
	"time"
)

// workHeader tells the backend how much work a request is, in microseconds.
const workHeader = "X-Work"

// backend does the work of requests.
type backend interface {
	// do returns when the work is done, or false if it was turned away.
	do(work time.Duration) bool
	// setScale leaves scale of the capacity.
	setScale(scale float64)
	// take returns what was done so far.
	take() account
}

func newBackend(law Law) backend {
	if law.Kind == "burn" {
		return newBurner()
	}
	return newStation(law)
}

// handler serves requests by doing their work. Like most servers it does not
// notice when a client leaves.
func handler(b backend) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		work, ok := wanted(w, r)
		if !ok {
			return
		}
		if work > 0 && !b.do(work) {
			http.Error(w, "too many inside", http.StatusInternalServerError)
			return
		}
		answer(w)
	})
}

// wanted is the work that a request asks for; if it does not say, it is answered.
func wanted(w http.ResponseWriter, r *http.Request) (time.Duration, bool) {
	us, err := strconv.ParseInt(r.Header.Get(workHeader), 10, 64)
	if err != nil || us < 0 {
		http.Error(w, workHeader+" must be a number of microseconds", http.StatusBadRequest)
		return 0, false
	}
	return time.Duration(us) * time.Microsecond, true
}

func answer(w http.ResponseWriter) {
	w.Header()["Content-Type"] = plain
	_, _ = w.Write(okBody) // a client that left does not read it
}

var (
	plain  = []string{"text/plain"}
	okBody = []byte("ok\n")
)
