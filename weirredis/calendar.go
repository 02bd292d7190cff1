package weirredis

import (
	"encoding/binary"
	"time"

	"github.com/weir-go/weir/quota"
)

// around is how many periods before and after the process's own are told to the
// script: by so many the server's clock may be behind it or ahead.
const around = 3

// mostPeriods bounds the periods told for a reservation that may wait long.
const mostPeriods = 1000

// packCalendar appends the starts of the periods around now, and of those up to
// ahead from then, each with its number: so the script can tell, whatever time the
// server has, which period it is in and how many have begun since another.
func packCalendar(b []byte, c quota.Calendar, now time.Time, ahead time.Duration) []byte {
	b = double(b, float64(longest(c.Period).Microseconds()))
	at := len(b)
	b = append(b, 0, 0) // how many
	start, _ := c.Current(now)
	for range around {
		start, _ = c.Current(start.Add(-1))
	}
	n := 0
	for beyond := 0; beyond < around && n < mostPeriods; n++ {
		b = double(b, float64(start.UnixMicro()))
		b = double(b, number(c, start))
		if start.Sub(now) > ahead {
			beyond++
		}
		_, start = c.Current(start)
	}
	binary.LittleEndian.PutUint16(b[at:], uint16(n))
	return b
}

// longest bounds how long a period can be, the hour that clocks are put back for
// included.
func longest(p quota.Period) time.Duration {
	const day = 24 * time.Hour
	switch p {
	case quota.Day:
		return day + 2*time.Hour
	case quota.Week:
		return 7*day + 2*time.Hour
	case quota.Month:
		return 31*day + 2*time.Hour
	}
	return time.Hour
}

// number counts periods by the date they begin on, or hours as they pass: where clocks
// are moved by half of one, two hours are half apart, and the script rounds up.
func number(c quota.Calendar, start time.Time) float64 {
	in := c.In
	if in == nil {
		in = time.UTC
	}
	y, m, d := start.In(in).Date()
	days := time.Date(y, m, d, 0, 0, 0, 0, time.UTC).Unix() / 86400
	switch c.Period {
	case quota.Day:
		return float64(days)
	case quota.Week:
		return float64((days + 3) / 7) // 1 January 1970 was a Thursday
	case quota.Month:
		return float64(12*y + int(m))
	}
	return float64(start.Unix()) / 3600
}
