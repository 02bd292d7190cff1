package limit

import (
	"fmt"
	"testing"
	"time"

	"github.com/weir-go/weir"
)

// In a queue that stands fewer may wait. A newcomer that has nobody to displace
// hears how many, and so does whoever is displaced, as soon as their number has
// changed: also where nothing else has that a refusal says.
func TestRefusalsOfAQueueThatStands(t *testing.T) {
	s := newLine(t, Config{Queue: Queue{MaxWait: -1}})
	says, last := map[float64]int{}, 0.
	for i := range 120 { // four come a second, and one in three and a half is served
		*s.now += 250 * time.Millisecond
		s.Step()
		if i%14 == 13 {
			s.holds.Done(weir.OK)
		}
		s.come(fmt.Sprint(i), weir.Work{MaxWait: time.Hour})
		kept := float64(s.room.Kept())
		s.come("lower", weir.Work{Priority: weir.Background, MaxWait: time.Hour})
		r := s.gone["lower"]
		delete(s.gone, "lower")
		if r != nil && kept == last { // it has been so since the refusals were made
			if says[kept]++; r.Reason != weir.ReasonQueueFull || r.Value != kept || r.Limit != kept || r.RetryAfter != maxWait {
				t.Errorf("%v: %v; %v may wait", *s.now, r, kept)
			}
		}
		last = kept
	}
	if says[keep] == 0 || says[8] == 0 {
		t.Errorf("refused so often by how many may wait: %v", says)
	}
}
