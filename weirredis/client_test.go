package weirredis

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestJudge(t *testing.T) {
	for _, c := range []struct{ info, want string }{
		{"redis_version:6.0.0\r\nmaxmemory_policy:noeviction\r\n", ""},
		{"redis_version:7.2.4\r\nvalkey_version:8.0.1\r\nmaxmemory_policy:noeviction\r\n", ""},
		{"# Memory\r\nmaxmemory_policy:noeviction\r\n", ""},
		{"redis_version:5.0.14\r\nmaxmemory_policy:noeviction\r\n", "is Redis 5.0.14"},
		{"redis_version:7.0.0\r\nmaxmemory_policy:volatile-ttl\r\n", "Set maxmemory-policy noeviction"},
		{"redis_version:7.0.0\r\n", "set AssumeNoEviction"},
		{"", "set AssumeNoEviction"},
	} {
		err := checkInfo("h:1", c.info)
		if c.want == "" {
			if err != nil {
				t.Errorf("%q: %v", c.info, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "h:1") || !errors.Is(err, errUnfit) {
			t.Errorf("%q: %v, want %q", c.info, err, c.want)
		}
	}
}

// A password is asked for once a second, and the last that is known stands in for one
// that cannot be told.
func TestSecret(t *testing.T) {
	now := time.Unix(1000, 0)
	asked, tells := 0, "a"
	var fault error
	s := &secret{now: "first", ask: func() (string, error) { asked++; return tells, fault }}
	for _, step := range []struct {
		after time.Duration
		tells string
		fault error
		want  string
		asked int
	}{
		{0, "", errors.New("no file"), "first", 1},
		{999 * time.Millisecond, "a", nil, "first", 1},
		{time.Millisecond, "a", nil, "a", 2},
		{time.Second, "b", nil, "b", 3},
		{time.Second, "", errors.New("no file"), "b", 4},
		{10 * time.Millisecond, "c", nil, "b", 4},
		{time.Second, "c", nil, "c", 5},
	} {
		now = now.Add(step.after)
		tells, fault = step.tells, step.fault
		if got := s.password(now); got != step.want || asked != step.asked {
			t.Errorf("%+v: %q, asked %d times", step, got, asked)
		}
	}
	if got := (&secret{now: "fixed"}).password(now); got != "fixed" {
		t.Errorf("%q", got)
	}
}
