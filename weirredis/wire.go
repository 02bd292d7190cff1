package weirredis

import (
	"crypto/sha1"
	_ "embed"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math"
	"time"

	"github.com/weir-go/weir/quota"
)

// script does everything that must be one step.
//
//go:embed bucket.lua
var script string

// scriptSHA is the name that the server knows the script by.
var scriptSHA = func() string {
	sum := sha1.Sum([]byte(script))
	return hex.EncodeToString(sum[:])
}()

// scriptFault begins what the script says of a key, rather than of the server.
const scriptFault = "weir: "

// give is the mode of a refund, after those of quota.Mode.
const give = uint8(quota.Reserve) + 1

// request is what the script is asked.
type request struct {
	mode    uint8
	debt    bool
	cost    float64
	maxWait time.Duration
	lease   float64 // tokens to take besides, if there are
	limits  []quota.Limit
}

// pack appends the request as bucket.lua reads it. now is the process's own clock,
// from which the script learns the calendar but never the time; clock, if not 0,
// replaces the server's, for tests.
func (r *request) pack(b []byte, now time.Time, clock int64) []byte {
	b = append(b, r.mode, 0)
	if r.debt {
		b[len(b)-1] = 1
	}
	b = double(b, r.cost)
	b = double(b, float64(r.maxWait))
	b = double(b, r.lease)
	b = double(b, float64(clock))
	b = append(b, uint8(len(r.limits)))
	for i := range r.limits {
		l := &r.limits[i]
		b = append(b, uint8(l.Calendar.Period))
		b = double(b, l.Burst)
		if l.Calendar.Period == 0 {
			b = double(b, l.Rate)
			continue
		}
		ahead := time.Duration(0)
		if r.mode == uint8(quota.Reserve) {
			ahead = r.maxWait
		}
		b = packCalendar(b, l.Calendar, now, ahead)
	}
	return b
}

func double(b []byte, f float64) []byte {
	return binary.LittleEndian.AppendUint64(b, math.Float64bits(f))
}

// reply is what the script says.
type reply struct {
	ok      bool
	charged float64
	now     time.Time // by the server's clock
	tokens  [quota.MaxWindows]float64
}

var errReply = errors.New("the script's answer is not understood")

// unpack reads the tokens that each of n windows held before the charge.
func unpack(s string, n int) (r reply, err error) {
	if n < 0 || n > len(r.tokens) || len(s) != 17+8*n {
		return r, errReply
	}
	r.ok = s[0] == 1
	r.charged = doubleAt(s, 1)
	r.now = time.UnixMicro(int64(doubleAt(s, 9)))
	for i := range n {
		r.tokens[i] = doubleAt(s, 17+8*i)
	}
	for at := 1; at < len(s); at += 8 {
		if f := doubleAt(s, at); math.IsNaN(f) || math.IsInf(f, 0) {
			return reply{}, errReply
		}
	}
	return r, nil
}

func doubleAt(s string, i int) float64 {
	return math.Float64frombits(binary.LittleEndian.Uint64([]byte(s[i : i+8])))
}

// probeArg is a decision that always goes through: see Store.probe.
var probeArg = string((&request{mode: uint8(quota.Permissive), cost: 1, limits: []quota.Limit{{Rate: 1e6, Burst: 1}}}).pack(nil, time.Time{}, 0))
