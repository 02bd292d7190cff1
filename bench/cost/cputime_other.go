//go:build !unix

package cost

import "time"

var epoch = time.Now()

// cpuTime cannot be had here. It returns a time that lets every turn count.
func cpuTime() time.Duration { return 1000 * time.Since(epoch) }
