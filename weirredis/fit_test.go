package weirredis

import (
	"errors"
	"strings"
	"testing"
)

func TestJudge(t *testing.T) {
	for _, c := range []struct{ info, want string }{
		{"redis_version:6.0.0\r\nmaxmemory_policy:noeviction\r\n", ""},
		{"redis_version:7.2.4\r\nvalkey_version:8.0.1\r\nmaxmemory_policy:noeviction\r\n", ""},
		{"# Memory\r\nmaxmemory_policy:noeviction\r\n", ""},
		{"redis_version:5.0.14\r\nmaxmemory_policy:noeviction\r\n", "is Redis 5.0.14"},
		{"redis_version:7.0.0\r\nmaxmemory_policy:volatile-ttl\r\n", "set maxmemory-policy noeviction"},
		{"redis_version:7.0.0\r\n", "set AssumeNoEviction"},
		{"", "set AssumeNoEviction"},
	} {
		err := judge("h:1", c.info)
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
