package kafka

import (
	"slices"
	"strings"
	"sync/atomic"

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
	case keyCreateTopics, keyDeleteTopics, keyCreatePartitions, keyMetadata:
		return "mutations" // of Metadata topics that the broker makes for it, which cannot be refused any more
	}
	return ""
}

// Traffic is what has been moved for clients since the gateway started. Questions of the gateway's own are not in it.
type Traffic struct {
	Requests uint64 `json:"requests"`
	Answers  uint64 `json:"answers"`
	// RequestBytes are those of requests as clients have sent them, AnswerBytes of answers as they have got them. Both are with the
	// size of each frame.
	RequestBytes uint64 `json:"request_bytes"`
	AnswerBytes  uint64 `json:"answer_bytes"`
}

// counted counts traffic.
type counted struct{ requests, answers, requestBytes, answerBytes atomic.Uint64 }

func (c *counted) snapshot() Traffic {
	return Traffic{c.requests.Load(), c.answers.Load(), c.requestBytes.Load(), c.answerBytes.Load()}
}

// keys is more than the keys of all APIs that are offered.
const keys = 128

// traffic counts it by API.
type traffic [keys]counted

// APIStatus is what has been moved of one API.
type APIStatus struct {
	API string `json:"api"` // as Kafka writes it
	Traffic
}

// status returns the APIs that have been asked, by name.
func (t *traffic) status() (all []APIStatus) {
	for key := range t {
		if s := t[key].snapshot(); s.Requests > 0 {
			all = append(all, APIStatus{kmsg.NameForKey(int16(key)), s})
		}
	}
	slices.SortFunc(all, func(a, b APIStatus) int { return strings.Compare(a.API, b.API) })
	return all
}

// countRequest counts a request of n bytes behind the size of its frame.
func (r *relay) countRequest(req *request, n int) {
	for _, c := range []*counted{&r.server.moved[req.key], &r.node.moved} {
		c.requests.Add(1)
		c.requestBytes.Add(uint64(4 + n))
	}
}

// countAnswer counts an answer of n bytes in all.
func (r *relay) countAnswer(req *request, n int) {
	for _, c := range []*counted{&r.server.moved[req.key], &r.node.moved} {
		c.answers.Add(1)
		c.answerBytes.Add(uint64(n))
	}
}
