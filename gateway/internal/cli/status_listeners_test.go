package cli

import (
	"net/http"
	"strings"
	"testing"
)

func TestStatusOfListeners(t *testing.T) {
	admin := answering(t, http.StatusOK, `{"gates": [], "connections": [
		{"listener": ":8443", "limit": 100, "in_flight": 7, "admitted": 40, "addresses": 3, "max_addresses": 65536, "crowd": 2,
		 "refused": {"max_connections": 1, "connections.rate": 0, "connections.per_address": 12},
		 "handshakes_failed": {"unknown_ca": 4, "expired": 0}},
		{"listener": ":8080", "limit": 100, "refused": {}, "mode": "observe", "observed": {"connections.rate": 5, "connections.addresses": 0}},
		{"listener": ":8081", "limit": 100, "refused": {}, "mode": "observe", "observed": {"connections.rate": 0}}]}`)
	out, _, err := run(NewRootCommand("test"), "", "status", "--admin", admin)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"LISTENER  CONNECTIONS  AT MOST  TAKEN  REFUSED  BY                                              ADDRESSES  AT MOST  OTHERS",
		":8443     7            100      40     13       connections.per_address 12, max_connections 1   3          65536    2",
		":8080     0            100      0      0        -                                               0          0        0",
		"CONNECTIONS OF  ONLY OBSERVED, WOULD REFUSE\n:8080           connections.rate 5\n:8081           nothing\n",
		"HANDSHAKES AT  FAILED\n:8443          unknown_ca 4\n",
	} {
		if !strings.Contains(collapse(out), collapse(want)) {
			t.Errorf("no line %q in\n%s", want, out)
		}
	}
}

// collapse makes columns of any width alike.
func collapse(s string) string {
	for strings.Contains(s, "  ") {
		s = strings.ReplaceAll(s, "  ", " ")
	}
	return s
}
