package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/internal/setting"
	"github.com/weir-go/weir/quota"
)

// Mode is how far a gate's decisions are carried out. In files it is one of the
// words below; the empty word means enforce.
type Mode string

// The modes.
const (
	Enforce Mode = "enforce" // refuse what the gate refuses
	Observe Mode = "observe" // decide and count, but let everything through
	Off     Mode = "off"     // decide nothing
)

// Modes returns every mode, the default first.
func Modes() []Mode { return []Mode{Enforce, Observe, Off} }

// level is a mode as the hot path compares it.
type level uint32

const (
	enforcing level = iota
	observing
	off
)

func (m Mode) level() level { return level(max(0, slices.Index(Modes(), m))) }

func (l level) mode() Mode { return Modes()[l] }

// Duration is a time.Duration as people write it: 250ms, 1m30s. If a field allows -1, it is written
// -1, without a unit, and read as one nanosecond below zero.
type Duration time.Duration

// NoDuration is what -1 in a file means: "never wait" or "no bound", whichever
// the field says.
const NoDuration Duration = -1

// String returns the written form: 250ms, 1m30s, 0s, or -1.
func (d Duration) String() string {
	if d == NoDuration {
		return "-1"
	}
	return time.Duration(d).String()
}

// MarshalText writes the form that UnmarshalText reads.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads 250ms, 1m30s, 0 or -1. Any other number needs a unit.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := setting.ParseDuration(string(text))
	if err == nil {
		*d = Duration(v)
	}
	return err
}

// UnmarshalJSON reads the string form, and the bare numbers 0 and -1.
func (d *Duration) UnmarshalJSON(data []byte) error {
	if data = bytes.TrimSpace(data); bytes.Equal(data, []byte("null")) {
		return nil
	}
	if len(data) > 0 && data[0] != '"' {
		return d.UnmarshalText(data)
	}
	var s string
	if err := json.Unmarshal(data, &s); err != nil {
		return err
	}
	return d.UnmarshalText([]byte(s))
}

// ParseLimit reads a limit as people write it, and as quota.Window prints it:
//
//	10/s                      10 a second, and as many at once
//	10/s burst 20             20 at once
//	1000/h, 30/min, 5/10s     for each hour, minute, 10 seconds
//	5000 a day                all at once at midnight, UTC; hour, week and month too
//	5000 a day Europe/Berlin  at midnight there
//
// The error is a [Fault].
func ParseLimit(text string) (quota.Window, error) {
	if len(text) > longestLimit {
		return quota.Window{}, fault.New(fmt.Sprintf("%d bytes are too many for a limit", len(text)), "write for instance 10/s burst 20")
	}
	if m := rateForm.FindStringSubmatch(text); m != nil {
		return parseRate(text, m[1], m[2], m[3])
	}
	if m := calendarForm.FindStringSubmatch(text); m != nil {
		return parseCalendar(m[1], m[2], m[3])
	}
	instead := "write for instance 10/s, 10/s burst 20, 1000/h, or 5000 a day Europe/Berlin"
	if meant := rateMeant(text); meant != "" {
		instead = "write " + meant
	}
	return quota.Window{}, fault.New(fmt.Sprintf("%q is not a limit", text), instead)
}

// foreignRate is a rate as other products write it: 10r/s, 10 requests per minute, 20(10s), 10rps.
var foreignRate = regexp.MustCompile(`(?i)^\s*(?:rate=)?([0-9]+(?:\.[0-9]+)?)\s*(?:r|req|reqs|rq|requests?|events?|tokens?)?\s*(?:/|per|an?|every|in|p|\()\s*([0-9]*)\s*(ms|msec|millisecond|s|sec|m|min|h|hour|second|minute)s?\)?\s*$`)

// byteRate is a rate of bytes with a unit: 10MB/s, 512 KiB/s.
var byteRate = regexp.MustCompile(`(?i)^\s*([0-9]{1,6}(?:\.[0-9]{1,3})?)\s*([kmg])i?b\s*(?:/|p)\s*(?:s|sec|second)\s*$`)

// rateMeant returns a rate of another product as it is written here, empty if it is none.
func rateMeant(text string) string {
	if m := byteRate.FindStringSubmatch(text); m != nil {
		n, _ := strconv.ParseFloat(m[1], 64) // of digits
		n *= float64(int64(1) << map[string]int{"k": 10, "m": 20, "g": 30}[strings.ToLower(m[2])])
		return strconv.FormatFloat(math.Round(n), 'f', -1, 64) + "/s"
	}
	m := foreignRate.FindStringSubmatch(text)
	if m == nil {
		return ""
	}
	unit := map[byte]string{'s': "s", 'm': "min", 'h': "h"}[strings.ToLower(m[3])[0]]
	switch several := m[2] != "" && m[2] != "1"; {
	case strings.HasPrefix(strings.ToLower(m[3]), "ms") || strings.HasPrefix(strings.ToLower(m[3]), "mill"):
		if several {
			return m[1] + "/" + m[2] + "ms"
		}
		n, _ := strconv.ParseFloat(m[1], 64)                   // of digits
		return strconv.FormatFloat(1000*n, 'g', 12, 64) + "/s" // 1.001 times 1000 is no whole number
	case several:
		unit = m[2] + unit[:1]
	}
	return m[1] + "/" + unit
}

// longestLimit is the longest text that ParseLimit reads.
const longestLimit = 100

var (
	rateForm     = regexp.MustCompile(`^\s*(\S+?)\s*/\s*(\S+?)(?:\s*,?\s*burst\s+(\S+))?\s*$`)
	calendarForm = regexp.MustCompile(`^\s*(\S+)\s+a\s+(\w+)(?:\s*,?\s*(\S+))?\s*$`)
)

// units are the words for what a rate is for.
var units = map[string]time.Duration{
	"s": time.Second, "sec": time.Second, "second": time.Second,
	"m": time.Minute, "min": time.Minute, "minute": time.Minute,
	"h": time.Hour,
}

// periods are the words of the calendar.
var periods = map[string]quota.Period{"hour": quota.Hour, "day": quota.Day, "week": quota.Week, "month": quota.Month}

func parseRate(text, count, unit, burst string) (quota.Window, error) {
	n, err := parseTokens(count)
	if meant := rateMeant(text); err != nil && meant != "" && count[0] != '0' {
		return quota.Window{}, fault.New(fmt.Sprintf("%q is not a number", count), "write "+meant)
	}
	if err != nil {
		return quota.Window{}, err
	}
	d, ok := units[unit]
	if p := periods[strings.TrimSuffix(unit, "s")]; !ok && p != 0 || unit == "d" {
		return quota.Window{}, ambiguous(count, unit, p)
	}
	if !ok {
		if meant := rateMeant(text); meant != "" && units[unit] == 0 && meant != text {
			return quota.Window{}, fault.New(fmt.Sprintf("%q is not a unit of time", unit), "write "+meant)
		}
		if d, err = time.ParseDuration(unit); err != nil || d <= 0 {
			return quota.Window{}, fault.New(fmt.Sprintf("%q is not a unit of time", unit), fmt.Sprintf("write %s/s, %s/min, %s/h or, for 10 seconds, %s/10s", count, count, count, count))
		}
	}
	l := quota.Per(n, d)
	if burst != "" {
		if l.Burst, err = parseTokens(burst); err != nil {
			return quota.Window{}, err
		}
	}
	return l, valid(text, l)
}

// ambiguous is the fault of a day after a slash, which may be the calendar's or any 24
// hours.
func ambiguous(count, unit string, p quota.Period) error {
	if p == 0 {
		p = quota.Day
	}
	hours := map[quota.Period]string{quota.Hour: "h", quota.Day: "24h", quota.Week: "168h", quota.Month: "720h"}[p]
	return fault.New(fmt.Sprintf("%s/%s may mean two things", count, unit),
		fmt.Sprintf("write %s/%s for tokens that come back all the time. Write %s a %v for all of them when a new %v begins", count, hours, count, p, p))
}

func parseCalendar(count, period, zone string) (quota.Window, error) {
	n, err := parseTokens(count)
	if err != nil {
		return quota.Window{}, err
	}
	p, ok := periods[period]
	if !ok {
		return quota.Window{}, fault.New(fmt.Sprintf("%q is not a period", period), fmt.Sprintf("write %s a day, or hour, week or month; a second or a minute is %s/s or %s/min", count, count, count))
	}
	in, err := zoneOf(zone)
	if err != nil {
		return quota.Window{}, fault.New(fmt.Sprintf("%q is not a time zone that is known here", zone), "write one such as Europe/Berlin, or leave it out for UTC")
	}
	l := quota.PerCalendar(n, p, in)
	return l, valid(count+" a "+period, l)
}

// parseTokens reads a number of tokens: plain decimal, above 0.
func parseTokens(text string) (float64, error) {
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || strings.ContainsAny(text, "xXpP_") || math.IsNaN(n) || math.IsInf(n, 0) {
		return 0, fault.New(fmt.Sprintf("%q is not a number", text), "write for instance 10, 0.5 or 1e6")
	}
	if n <= 0 {
		return 0, fault.New(fmt.Sprintf("%s is not above 0", text), "write a number above 0; to refuse everything, write a rule with blocked: true")
	}
	return n, nil
}

// valid says what the quota itself has against a limit.
func valid(text string, l quota.Window) error {
	if err := l.Check(); err != nil {
		return fault.New(fmt.Sprintf("%s is out of range", text), fmt.Sprintf("write a rate and a burst above 0 and at most %g, and no less than a token in 30 years", float64(quota.MaxTokens)))
	}
	return nil
}

// zones are the time zones in use. A limit is the same only in the same one, so
// each is loaded once; there are some hundred of them.
var zones sync.Map // of *time.Location by name

func zoneOf(name string) (*time.Location, error) {
	switch name {
	case "", "UTC":
		return nil, nil
	case "Local": // to Go this is the machine's; gateways that share a bucket would each have another day
		return nil, errors.New("the zone of the machine has no name")
	}
	if z, ok := zones.Load(name); ok {
		return z.(*time.Location), nil
	}
	z, err := time.LoadLocation(name)
	if err != nil {
		return nil, err
	}
	first, _ := zones.LoadOrStore(name, z)
	return first.(*time.Location), nil
}

// ParseNetwork reads a network in CIDR notation, as IdentitySpec.Trusted has them:
// 10.0.0.0/8, fd00::/8, 192.0.2.1/32. The error is a [Fault].
func ParseNetwork(text string) (netip.Prefix, error) { return parseNetwork(text, 128) }

// parseNetwork is ParseNetwork with hints for where a network of IPv6 has so many bits at most.
func parseNetwork(text string, most int) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	if err != nil {
		instead := "write a network such as 10.0.0.0/8 or fd00::/8"
		if addr, err := netip.ParseAddr(text); err == nil {
			instead = fmt.Sprintf("write %v", smallest(addr, most))
		}
		switch text {
		case "private_ranges", "private":
			instead = "write the networks: 10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16 and fd00::/8"
		case "localhost", "loopback":
			instead = fmt.Sprintf("write 127.0.0.0/8 and %v", smallest(netip.IPv6Loopback(), most))
		}
		return p, fault.New(fmt.Sprintf("%q is not a network in CIDR notation", text), instead)
	}
	switch {
	case p.Addr().Is4In6():
		return p, fault.New(fmt.Sprintf("%s is an IPv4 network in IPv6 form", text), "write it as an IPv4 network")
	case p.Masked() != p:
		whole, one := p.Masked(), smallest(p.Addr(), most)
		instead := fmt.Sprintf("write %v, or %v for the one address", whole, one)
		if whole.Bits() >= one.Bits() {
			instead = fmt.Sprintf("write %v", one)
		}
		return p, fault.New(fmt.Sprintf("%s has bits set beyond its %d", text, p.Bits()), instead)
	}
	return p, nil
}

// smallest returns the smallest network that addr is in, where one of IPv6 has so many bits at most.
func smallest(addr netip.Addr, most int) netip.Prefix {
	addr = addr.Unmap().WithZone("")
	return netip.PrefixFrom(addr, min(addr.BitLen(), most)).Masked()
}
