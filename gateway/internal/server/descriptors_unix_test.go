//go:build unix

package server

import (
	"strings"
	"testing"
)

// A gateway whose clients may take all its file descriptors says so when it starts.
func TestFewDescriptors(t *testing.T) {
	most := int(min(mostDescriptors(), 1<<30))
	if most == 1<<30 {
		t.Skip("there is no limit")
	}
	for connections, warns := range map[int]bool{most: true, most / 2: false} {
		cfg := baseConfig(t, "http://127.0.0.1:1")
		cfg.Listeners[0].MaxConnections = connections
		g := start(t, cfg, Options{})
		if err := g.stop(); err != nil {
			t.Error(err)
		}
		if said := strings.Contains(g.log.String(), "file descriptors"); said != warns {
			t.Errorf("%d connections with %d descriptors: warned: %v", connections, most, said)
		}
	}
}
