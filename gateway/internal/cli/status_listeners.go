package cli

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weir-go/weir/policy"
)

// listenerLook is a listener, whose connections pass a gate of their own.
type listenerLook struct {
	Listener     string            `json:"listener"`
	Mode         string            `json:"mode"`
	Limit        int64             `json:"limit"`
	InFlight     int64             `json:"in_flight"`
	Admitted     uint64            `json:"admitted"`
	Refused      map[string]uint64 `json:"refused"`
	Observed     map[string]uint64 `json:"observed"`
	Addresses    int               `json:"addresses"`
	MaxAddresses int               `json:"max_addresses"`
	Crowd        int               `json:"crowd"`
	Handshakes   map[string]uint64 `json:"handshakes_failed"`
}

func rowOfListener(p *page, l *listenerLook) {
	var refused uint64
	for _, n := range l.Refused {
		refused += n
	}
	p.row("LISTENER|CONNECTIONS|AT MOST|TAKEN|REFUSED|BY|ADDRESSES|AT MOST|OTHERS",
		l.Listener, l.InFlight, l.Limit, l.Admitted, refused, counted(l.Refused), l.Addresses, l.MaxAddresses, l.Crowd)
}

// rowOfObserved is what limits that only observe would have refused.
func rowOfObserved(p *page, l *listenerLook) {
	if l.Mode == string(policy.Observe) {
		why := counted(l.Observed)
		if why == "" {
			why = "nothing"
		}
		p.row("CONNECTIONS OF|ONLY OBSERVED, WOULD REFUSE", l.Listener, why)
	}
}

func rowOfHandshakes(p *page, l *listenerLook) {
	if why := counted(l.Handshakes); why != "" {
		p.row("HANDSHAKES AT|FAILED", l.Listener, why)
	}
}

// counted lists what has been counted at all, most first.
func counted(counts map[string]uint64) string {
	words := slices.DeleteFunc(slices.Sorted(maps.Keys(counts)), func(w string) bool { return counts[w] == 0 })
	slices.SortStableFunc(words, func(a, b string) int {
		switch {
		case counts[a] > counts[b]:
			return -1
		case counts[a] < counts[b]:
			return 1
		}
		return 0
	})
	for i, w := range words {
		words[i] = fmt.Sprintf("%s %d", w, counts[w])
	}
	return strings.Join(words, ", ")
}
