package kafka

import (
	"slices"
	"strings"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// API is an API of Kafka that clients are offered, with what quotas need to know of it.
type API struct {
	Name string // as Kafka writes it
	// First and Last are the versions that clients are offered.
	First, Last int16
	// Quota is the setting of the quota that counts it: produce, fetch or mutations. It is empty if no quota does.
	Quota string
	// Strict is the first version whose clients know the error of a quota, and are refused. With 0, all clients are only delayed.
	Strict int16
}

// APIOf returns the API with a name, in upper or lower case. ok is false if clients are not offered such an API.
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
		return "mutations" // Metadata may make the broker create topics, which cannot be refused afterwards
	}
	return ""
}

// Traffic is what the gateway has moved for clients since it started, without its own questions.
type Traffic struct {
	Requests uint64 `json:"requests"`
	Answers  uint64 `json:"answers"`
	// RequestBytes are the bytes of requests as clients sent them, and AnswerBytes those of answers as clients got them. Both include the
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

// traffic counts traffic by API.
type traffic [keys]counted

// APIStatus is the traffic of one API.
type APIStatus struct {
	API string `json:"api"` // as Kafka writes it
	Traffic
}

// status returns the APIs that clients have used, by name.
func (t *traffic) status() (all []APIStatus) {
	for key := range t {
		if s := t[key].snapshot(); s.Requests > 0 {
			all = append(all, APIStatus{kmsg.NameForKey(int16(key)), s})
		}
	}
	slices.SortFunc(all, func(a, b APIStatus) int { return strings.Compare(a.API, b.API) })
	return all
}

// countRequest counts a request of n bytes, without the size of its frame.
func (r *relay) countRequest(req *request, n int) {
	for _, c := range []*counted{&r.server.counts.moved[req.key], &r.node.moved} {
		c.requests.Add(1)
		c.requestBytes.Add(uint64(4 + n))
	}
}

// countAnswer counts an answer of n bytes in all.
func (r *relay) countAnswer(req *request, n int) {
	for _, c := range []*counted{&r.server.counts.moved[req.key], &r.node.moved} {
		c.answers.Add(1)
		c.answerBytes.Add(uint64(n))
	}
}
