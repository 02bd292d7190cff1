package weirpgx

import (
	"context"
	"testing"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/limit"
	"github.com/weir-go/weir/weirsql"
)

// untimed is a context whose deadline has passed, and whose timer has not run yet.
type untimed struct{ context.Context }

func (untimed) Deadline() (time.Time, bool) { return time.Unix(0, 0), true }

// The first row gives the sample, unless it arrives after the caller's deadline.
func TestFirstRow(t *testing.T) {
	for _, tt := range []struct {
		ctx  context.Context
		want weir.Outcome
	}{{context.Background(), weir.OK}, {untimed{context.Background()}, weir.Overload}} {
		l := weir.Must(limit.New(limit.Config{Name: "db"}))
		u := use{pool: &Pool{classify: weirsql.Classify}, permit: weir.Must(l.TryAdmit(weir.Work{})), ctx: tt.ctx}
		u.sample()
		u.end(nil)
		if got := l.Snapshot().Outcomes; got[tt.want] != 1 || len(got) != 1 {
			t.Errorf("%v, want one %v", got, tt.want)
		}
	}
}
