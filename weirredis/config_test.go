package weirredis

import (
	"crypto/tls"
	"strings"
	"testing"
	"time"
)

func TestConfigFaults(t *testing.T) {
	_, err := Config{
		Prefix: "a{b", Deadline: time.Hour, DialTimeout: -1, MaxInFlight: 50000, DB: -1,
		Lease: Lease{Tokens: -1, For: time.Hour, MaxKeys: -1},
	}.complete()
	if err == nil {
		t.Fatal("no fault found")
	}
	for _, want := range []string{"no server", "Prefix", "Deadline: 1h0m0s", "DialTimeout", "MaxInFlight: 50000", "DB: -1",
		"Lease.Tokens: -1", "Lease.For: 1h0m0s", "Lease.MaxKeys: -1"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not told of:\n%v", want, err)
		}
	}
}

func TestURL(t *testing.T) {
	for _, c := range []struct {
		url, addrs, user, password, master string
		db                                 int
		tls                                bool
	}{
		{url: "redis://127.0.0.1:7000", addrs: "127.0.0.1:7000"},
		{url: "redis://h", addrs: "h:6379"},
		{url: "redis://u:p%40ss@h:1/3", addrs: "h:1", user: "u", password: "p@ss", db: 3},
		{url: "rediss://:p@h:1", addrs: "h:1", password: "p", tls: true},
		{url: "redis://a:1?addr=b:2&addr=c:3", addrs: "a:1 b:2 c:3"},
		{url: "redis://a:1?addr=b:2&master_set=main", addrs: "a:1 b:2", master: "main"},
		{url: "unix:///run/redis.sock", addrs: "/run/redis.sock"},
	} {
		got, err := Config{URL: c.url}.complete()
		if err != nil {
			t.Errorf("%s: %v", c.url, err)
			continue
		}
		if a := strings.Join(got.Addrs, " "); a != c.addrs || got.Username != c.user || got.Password != c.password ||
			got.DB != c.db || got.Sentinel.Master != c.master || (got.TLS != nil) != c.tls {
			t.Errorf("%s: %s %q %q %q %d %v", c.url, a, got.Username, got.Password, got.Sentinel.Master, got.DB, got.TLS)
		}
	}
}

// TLS by URL is for the sentinels too, and names no server: each is asked by its own.
func TestURLWithTLS(t *testing.T) {
	got, err := Config{URL: "rediss://a:1?addr=b:2&master_set=main"}.complete()
	if err != nil || got.TLS == nil || got.Sentinel.TLS != got.TLS || got.TLS.ServerName != "" {
		t.Errorf("%+v, sentinels %+v, %v", got.TLS, got.Sentinel.TLS, err)
	}
	own := &tls.Config{ServerName: "quotas"}
	got, err = Config{URL: "rediss://a:1?master_set=main", TLS: own}.complete()
	if err != nil || got.TLS != own || got.Sentinel.TLS != own || own.ServerName != "quotas" {
		t.Errorf("%+v, sentinels %+v, %v", got.TLS, got.Sentinel.TLS, err)
	}
	got, err = Config{Addrs: []string{"a:1"}, TLS: own, Sentinel: Sentinel{Master: "main"}}.complete()
	if err != nil || got.Sentinel.TLS != nil {
		t.Errorf("sentinels %+v, %v", got.Sentinel.TLS, err)
	}
}

// What is wrong with a URL must not put its password into a log.
func TestURLFaults(t *testing.T) {
	for _, url := range []string{"127.0.0.1:6379", "http://h", "redis://u:geheim@h:port", "redis://:geheim@h/x", "redis://u:geheim@%zz"} {
		_, err := Config{URL: url}.complete()
		if err == nil || strings.Contains(err.Error(), "geheim") || !strings.Contains(err.Error(), "redis://") {
			t.Errorf("%s: %v", url, err)
		}
	}
}

func TestWhatIsSetWinsOverURL(t *testing.T) {
	got, err := Config{URL: "redis://u:p@h:1/3", Password: "other", DB: 4}.complete()
	if err != nil || got.Username != "u" || got.Password != "other" || got.DB != 4 {
		t.Errorf("%q %q %d, %v", got.Username, got.Password, got.DB, err)
	}
}
