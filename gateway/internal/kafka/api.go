package kafka

import (
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// API is an API of Kafka that clients are offered, as far as quotas go.
type API struct {
	Name string // as Kafka writes it
	// First and Last are the versions that clients are offered.
	First, Last int16
	// Quota is the setting of a cluster's quotas whose gate counts it: produce, fetch or mutations. Empty: nothing does.
	Quota string
	// Strict is the version from which on clients know the error of a quota, and are refused. 0: all of them are only delayed.
	Strict int16
}

// APIOf returns the API of a name, whatever the case of its letters. ok is false if clients are offered none such.
func APIOf(name string) (a API, ok bool) {
	for key, of := range offered {
		if as := kmsg.NameForKey(key); strings.EqualFold(as, name) {
			return API{as, of.min, of.max, countedBy(key), strictFrom[key]}, true
		}
	}
	return API{}, false
}

// countedBy returns the setting whose gate counts requests of an API, or their answers.
func countedBy(key int16) string {
	switch key {
	case keyProduce:
		return "produce"
	case keyFetch, keyShareFetch:
		return "fetch"
	case keyCreateTopics, keyDeleteTopics, keyCreatePartitions:
		return "mutations"
	}
	return ""
}
