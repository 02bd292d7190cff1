//go:build !linux

package live

import (
	"errors"
	"runtime"
	"time"
)

var errNoPinning = errors.New("the live scoreboard needs Linux: it pins processes to cores and reads /proc")

func cores() (test, rest int, err error) { return 0, 0, errNoPinning }

func pinSelf(int) error { return errNoPinning }

func pinned(int, func() error) error { return errNoPinning }

func kernel() string { return runtime.GOOS }

func threadTime() time.Duration { return 0 }

func processTime() time.Duration { return 0 }

type usageOf struct {
	cpu  time.Duration
	peak uint64
}

func usageOfPID(int) usageOf { return usageOf{} }

func busy(int) time.Duration { return 0 }
