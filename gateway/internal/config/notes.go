package config

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
)

// Notes says what is allowed but probably not meant: gates and upstreams that no
// route uses, routes without a gate, and an admin listener that others can reach.
func (c *Config) Notes() []string {
	var notes []string
	gates, upstreams := map[string]bool{}, map[string]bool{}
	for i, rt := range c.Routes {
		upstreams[rt.Upstream] = true
		for _, g := range rt.Gates {
			gates[g] = true
		}
		if len(rt.Gates) == 0 && c.Upstreams[rt.Upstream].Limit == nil {
			notes = append(notes, fmt.Sprintf("routes[%d] (%s) passes no gate: nothing is limited there", i, rt.Match[0]))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Gates)) {
		if !gates[name] {
			notes = append(notes, "no route uses the gate "+name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Upstreams)) {
		if !upstreams[name] {
			notes = append(notes, "no route uses the upstream "+name)
		}
	}
	if c.Admin.Enabled() && !loopback(c.Admin.Address) {
		notes = append(notes, fmt.Sprintf("admin.address %s can be reached by others, and asks nobody who they are", c.Admin.Address))
	}
	return notes
}

// loopback reports whether only this machine can reach an address.
func loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}
