package config_test

import (
	"strings"
	"testing"

	"github.com/weir-go/weir/gateway/internal/config"
)

func connections(text string) (config.Connections, error) {
	c, err := config.Parse("weir.yaml", []byte("listeners: [{address: \":8080\", connections: {"+text+"}}]\n"+
		"upstreams: {app: {targets: [http://a]}}\nroutes: [{match: [/], upstream: app}]\n"))
	if err != nil {
		return config.Connections{}, err
	}
	return c.Listeners[0].Connections, nil
}

func TestConnectionFaults(t *testing.T) {
	for text, want := range map[string]string{
		"rate: .nan":                     `rate: ".nan" is no number; write a number`,
		"rate: .inf":                     `rate: ".inf" is no number; write a number`,
		"rate: 1e300":                    "rate: is 1e+300, too large; write at most 1000000",
		"rate: -1":                       "rate: is -1, too small; write at least 0",
		"rate_per_address: 5/s":          `rate_per_address: "5/s" is no number; write a number`,
		"per_address: -2":                "per_address: is -2, too small; write at least -1",
		"per_address: 1.5":               `per_address: "1.5" is no whole number; write a whole number, such as 100`,
		"mode: watch":                    `mode: "watch" is not known; write one of: enforce, observe, off`,
		"addresses: 0":                   "addresses: is 0, too small; write at least 1",
		"exempt: [10.0.0.1]":             `exempt[0]: "10.0.0.1" is no network in CIDR notation; write 10.0.0.1/32`,
		"exempt: [fd00::/8, 10.0.0.1/8]": "exempt[1]: 10.0.0.1/8 has bits set beyond its 8; write 10.0.0.0/8, or 10.0.0.1/32 for the one address",
	} {
		if _, err := connections(text); err == nil || !strings.HasSuffix(err.Error(), "listeners[0].connections."+want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

// Nobody exempt is something else than nothing said.
func TestConnectionsExempt(t *testing.T) {
	for text, want := range map[string]struct {
		said bool
		n    int
	}{"rate: 5": {false, 0}, "exempt: []": {true, 0}, "exempt: [10.0.0.0/8, \"fd00::/8\"]": {true, 2}} {
		c, err := connections(text)
		if err != nil {
			t.Fatal(err)
		}
		if (c.Exempt != nil) != want.said || len(c.Networks()) != want.n || c.Addresses != 65_536 {
			t.Errorf("%s: %+v, want %+v", text, c, want)
		}
	}
}

func TestConnectionNotes(t *testing.T) {
	for _, tt := range []struct {
		c    config.Connections
		want string
	}{
		{config.Connections{}, ""},
		{config.Connections{PerAddress: 9, Rate: 5, RatePerAddress: 2}, ""},
		{config.Connections{PerAddress: -1, RatePerAddress: 100}, ""},
		{config.Connections{PerAddress: 10}, "listeners[0].connections.per_address is 10 of max_connections 10: one address can take all"},
		{config.Connections{Rate: 5, RatePerAddress: 5}, "listeners[0].connections.rate_per_address is 5 of rate 5: one address can take all"},
	} {
		c := config.Config{Listeners: []config.Listener{{MaxConnections: 10, Connections: tt.c}}}
		c.Admin.Address = config.Off
		if notes := strings.Join(c.Notes(), "\n"); notes != tt.want {
			t.Errorf("%+v: %q, want %q", tt.c, notes, tt.want)
		}
	}
}
