package config

import (
	"strings"
	"testing"
)

// A port alone and false in the place of the admin listener are told what to write.
func TestAdminMeant(t *testing.T) {
	for admin, want := range map[string]string{
		"8090":  "admin: is a number; write 127.0.0.1:8090",
		"false": "admin: is true or false; write off",
		"true":  "admin: is true or false; write fields (name: value), such as {address: 127.0.0.1:8090}",
	} {
		_, err := Parse("weir.yaml", []byte("admin: "+admin+"\nupstreams: {app: {targets: [http://127.0.0.1:3000]}}\nroutes: [{match: [/], upstream: app}]\n"))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("admin: %s: %v; want %s", admin, err, want)
		}
	}
}

func TestProfiles(t *testing.T) {
	f := func(admin string, want bool) {
		t.Helper()
		c, err := Parse("weir.yaml", []byte("admin: "+admin+"\nupstreams: {app: {targets: [http://127.0.0.1:3000]}}\nroutes: [{match: [/], upstream: app}]\n"))
		if err != nil {
			t.Fatal(err)
		}
		if got := c.Admin.Profiles(); got != want {
			t.Errorf("admin %s: profiles %t, want %t", admin, got, want)
		}
	}
	f("{}", true)
	f("{address: '127.8.8.8:8090'}", true)
	f("{address: '[::1]:8090'}", true)
	f("{address: 'localhost:8090'}", true)
	f("{pprof: false}", false)
	f("{address: '0.0.0.0:8090'}", false)
	f("{address: ':8090'}", false)
	f("{address: '10.0.0.5:8090'}", false)
	f("{address: 'weir.example:8090'}", false)
	f("{address: '0.0.0.0:8090', pprof: true}", true)
	f("{address: off}", false)
}
