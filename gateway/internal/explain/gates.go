package explain

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/quota"
)

// quota asks a quota what it would do. last says that work may wait for its tokens, if
// the gate is so set.
func (look *Gate) quota(g *policy.Gate, spec *policy.QuotaSpec, w weir.Work, last bool) *weir.Rejection {
	d, err := g.Quota().Peek(context.Background(), w)
	look.Rule, look.Bucket = g.Quota().Key(w)
	for _, l := range d.Limits {
		look.Limits = append(look.Limits, l.String())
	}
	if len(d.Limits) > 0 && !d.Free {
		left := math.Floor(d.Remaining*1000+1e-6) / 1000
		look.Left = &left
	}
	rej := weir.AsRejection(err)
	switch {
	case rej == nil && d.Free && w.Exempt:
		look.Rule, look.Bucket, look.Why = "", "", "exempt: not counted"
	case rej == nil && d.Free && look.Rule == "":
		look.Why = "not counted: no rule is about it"
	case rej == nil && d.Free:
		look.Why = "the rule exempts it"
	case rej == nil:
		look.Why = left(&d)
	case rej.Reason == weir.ReasonBlocked:
		look.Why = "the rule blocks it"
	case rej.Reason == weir.ReasonTooLarge && w.Cost < 0:
		look.Why = "its cost cannot be read"
	case rej.Reason == weir.ReasonTooLarge:
		look.Why = fmt.Sprintf("costs %d, more than can ever be there", d.Cost)
	case rej.Reason == weir.ReasonQuota:
		look.Why = left(&d) + ", costs " + strconv.FormatInt(d.Cost, 10)
	default:
		look.Why = rej.Reason.String()
	}
	switch {
	case rej == nil || rej.Reason != weir.ReasonQuota && rej.Reason != weir.ReasonTooLarge || spec == nil:
	case spec.Permissive && w.Cost >= 0:
		look.Why += ": goes into debt"
		return nil
	case last && waits(&spec.Queue, rej):
		look.Says, look.Why = Waits, look.Why+", there in "+rej.RetryAfter.String()
		return nil
	}
	return rej
}

// waits reports whether work may wait so long for its tokens.
func waits(room *policy.QuotaQueueSpec, rej *weir.Rejection) bool {
	most := time.Duration(room.MaxWait)
	if most == 0 {
		most = quota.DefaultMaxWait
	}
	return room.Len > 0 && rej.Retryable && (most < 0 || rej.RetryAfter <= most)
}

// left says how much is left of the window that binds.
func left(d *quota.Decision) string {
	if len(d.Limits) == 0 {
		return ""
	}
	l := d.Limits[d.Window]
	text := amount(d.Remaining) + " of " + amount(l.Burst) + " left"
	if len(d.Limits) > 1 {
		text += " of " + l.String()
	}
	return text
}

// amount writes tokens: whole ones, unless there is less than one, or a debt.
func amount(f float64) string {
	if f >= 1 {
		return strconv.FormatFloat(math.Floor(f+1e-6), 'f', -1, 64)
	}
	return strconv.FormatFloat(math.Floor(f*100+1e-6)/100, 'f', -1, 64)
}

// shed asks a gate that sheds whether w is important enough now.
func (look *Gate) shed(g *policy.Gate, w weir.Work) *weir.Rejection {
	if w.Exempt {
		look.Why = "exempt: never shed"
		return nil
	}
	least, level := g.Shedder().Level(), g.Shedder().LevelOf(w)
	switch from := weir.OfClass(least.Class()); {
	case least == 0:
		look.Why = "lets everything through"
	case least.String() == "none":
		look.Why = "lets nothing through"
	case from.Class() == level.Class():
		who := map[bool]string{true: "this one too", false: "not this one"}[level >= least]
		look.Why = fmt.Sprintf("lets through what is above %v, and some users of it, %s", from, who)
	default:
		look.Why = fmt.Sprintf("lets through from %v", from)
	}
	if level >= least {
		return nil
	}
	return &weir.Rejection{Gate: look.Name, Reason: weir.ReasonShed, Retryable: true}
}

// pool describes the pool that w draws on.
func (look *Gate) pool(p policy.Pools, w weir.Work) {
	look.Bucket = p.KeyOf(w)
	use, known := p.Key(look.Bucket)
	if !known {
		look.Why = "nothing is known of this key: all of its pool is free"
		return
	}
	look.slots(use.Limit, use.InFlight, use.Waiting, 0, w)
}

// limit describes a gate with one limit.
func (look *Gate) limit(s weir.Snapshot, w weir.Work) {
	look.slots(s.Limit, s.InFlight, s.Waiting, s.Wait, w)
}

// slots says whether there is room. Whether what waits is served in the end depends on
// who comes meanwhile.
func (look *Gate) slots(limit, inFlight, waiting int64, wait time.Duration, w weir.Work) {
	look.Why = fmt.Sprintf("%d of %d slots taken", inFlight, limit)
	if waiting > 0 {
		look.Why += fmt.Sprintf(", %d waiting", waiting)
	}
	if waiting > 0 || inFlight > 0 && inFlight+w.Units() > limit {
		look.Says = Waits
		if wait > 0 {
			look.Why += ", about " + wait.Round(time.Millisecond).String()
		}
	}
}
