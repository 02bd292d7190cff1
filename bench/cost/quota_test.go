package cost

import "testing"

// TestQuotaSubjects: each does what it is measured for, on one goroutine and on
// two.
func TestQuotaSubjects(t *testing.T) {
	for _, g := range QuotaGroups(10_000) {
		for _, s := range g.All() {
			t.Run(g.Name+"/"+s.Name, func(t *testing.T) {
				loop, stop, err := s.New()
				if err != nil {
					t.Fatal(err)
				}
				defer stop()
				for _, workers := range []int{1, 2} {
					if _, _, err := run(loop, 2000, workers); err != nil {
						t.Errorf("%d workers: %v", workers, err)
					}
				}
			})
		}
	}
}
