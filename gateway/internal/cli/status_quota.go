package cli

import (
	"strings"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/admin"
)

// kindQuota is the kind of a gate with a quota, which has no slots to show.
const kindQuota = "quota"

// quotaLook is what status reads of a gate with a quota.
type quotaLook struct {
	Rules   int `json:"rules"`
	Buckets *struct {
		Known      int64  `json:"known"`
		Max        int64  `json:"max"`
		Overflowed uint64 `json:"overflowed"`
	} `json:"buckets"`
	StoreErrors uint64 `json:"store_errors"`
	Unsettled   uint64 `json:"unsettled"`
	Refused     []struct {
		Bucket string `json:"bucket"`
		Times  uint64 `json:"times"`
	} `json:"refused"` // the last may be the rest of them
}

// storeLook is what status reads of a store.
type storeLook struct {
	Name   string            `json:"name"`
	Down   bool              `json:"down"`
	Why    string            `json:"why"`
	Takes  uint64            `json:"takes"`
	Failed map[string]uint64 `json:"failed"`
	Trips  uint64            `json:"trips"`
}

// refused returns how much work a gate has refused, and how much has left its wait room,
// which was refused by nobody.
func (g *gateLook) refused() (refused, left uint64) {
	left = g.Rejected[weir.ReasonCanceled.String()]
	for _, n := range g.Rejected {
		refused += n
	}
	return refused - left, left
}

func rowOfQuota(p *page, g *gateLook) {
	q := g.Quota
	if q == nil {
		return
	}
	var buckets, most, overflowed any = "", "", ""
	if b := q.Buckets; b != nil {
		buckets, most, overflowed = b.Known, b.Max, b.Overflowed
	}
	refused, left := g.refused()
	p.row("QUOTA|MODE|RULES|BUCKETS|AT MOST|OVERFLOWED|WAITING|ADMITTED|REFUSED|LEFT|STORE ERRORS|UNSETTLED",
		g.Name, g.Mode, q.Rules, buckets, most, overflowed, g.Waiting, g.Admitted, refused, left, q.StoreErrors, q.Unsettled)
}

// rowsOfRefused writes the buckets that were refused most, and in brackets all others.
func rowsOfRefused(p *page, g *gateLook, top int) {
	if g.Quota == nil {
		return
	}
	var others uint64
	for i, r := range g.Quota.Refused {
		if i >= top || r.Bucket == admin.Rest {
			others += r.Times
			continue
		}
		p.row(refusedHeading, printable(strings.TrimPrefix(r.Bucket, g.Name+"/")), g.Name, r.Times)
	}
	if others > 0 {
		p.row(refusedHeading, "("+admin.Rest+")", g.Name, others)
	}
}

const refusedHeading = "BUCKET|OF|REFUSED"

func rowOfStore(p *page, s *storeLook) {
	state := "answers"
	if s.Down {
		state = "down"
	}
	var failed uint64
	for _, n := range s.Failed {
		failed += n
	}
	p.row("STORE|STATE|DECISIONS|FAILED|GIVEN UP|TROUBLE", s.Name, state, s.Takes, failed, s.Trips, s.Why)
}
