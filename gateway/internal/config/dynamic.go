package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Quotas says where rules of quotas are kept that are set while the gateway runs.
type Quotas struct {
	File        string `json:"file,omitempty"`
	Store       string `json:"store,omitempty"`
	StartBroken bool   `json:"start_broken,omitempty"`
}

// longestSocket is the longest path that a Unix socket may have everywhere, less what
// it is called until it is ready.
const longestSocket = 80

// dynamicFields are those of rules that are set while the gateway runs, and of who may.
var dynamicFields = map[string]field{
	"Config.quotas": {example: "{file: weir.quotas.json}", doc: "Where rules of quotas are kept that are set while the gateway runs, by weir quota or at /quotas. They win over those of this file. Left out, none can be set."},
	"Quotas.file": {
		doc:     "File for the rules, relative to this file; one gateway can have it at a time. It is replaced as a whole, and a change of it by hand is taken up within a second. Where it is changed by a reload, the rules are those of the new file; the ones before stay in the old one.",
		example: "weir.quotas.json",
	},
	"Quotas.store": {
		doc:     "One of stores, for several gateways: what is set at one is in force at all of them within two seconds. Let that server keep its data on disk. Instead of file.",
		example: "shared",
	},
	"Quotas.start_broken": {doc: "Start with the rules of this file alone where those that are kept cannot be read. By default the gateway does not start: somebody might be let in who was blocked.", def: "false"},
	"Admin.socket": {
		doc:     "Path of a Unix socket, relative to this file, on which the admin listener answers too; only the gateway's user can open it. Who can may also write: set quotas.",
		example: "/run/weir/admin.sock",
	},
	"Admin.token_file": {
		doc:     "File with the token (16 bytes or more) that a write needs which does not come over the socket. Read at each write. Without socket and token_file nobody may write.",
		example: "/etc/weir/admin.token",
	},
}

// shortestToken is the fewest bytes with which the admin listener lets anybody write.
const shortestToken = 16

// dynamic makes names of files absolute and checks them.
func (m *meaning) dynamic() {
	if f := &m.Quotas.File; *f != "" {
		*f = m.resolve(*f)
	} else if m.Quotas.StartBroken && m.Quotas.Store == "" {
		m.report("quotas.start_broken", "write file: weir.quotas.json or store: beside it, or leave it out", "means nothing where no rules are kept")
	}
	if name := m.Quotas.Store; name != "" {
		if _, ok := m.Stores[name]; !ok {
			m.report("quotas.store", m.storeMeant(name), "there is no store %s", quote(name))
		}
		if m.Quotas.File != "" {
			m.report("quotas.store", "leave one of them out", "rules are kept in one place, and there is a file too")
		}
	}
	if f := &m.Admin.TokenFile; *f != "" {
		*f = m.resolve(*f)
		why := unreadable(*f)
		if info, err := os.Stat(*f); why == "" && err == nil && info.Size() < shortestToken {
			why = fmt.Sprintf("holds %d bytes, and nobody may write with fewer than %d", info.Size(), shortestToken)
		}
		if why != "" {
			m.report("admin.token_file", "make it by openssl rand -hex 32, readable by the gateway alone", "%s", why)
		}
	}
	if f := &m.Admin.Socket; *f != "" {
		*f = m.resolve(*f)
		if len(*f) > longestSocket {
			m.report("admin.socket", "write a shorter one, such as /run/weir/admin.sock", "a path of %d bytes is too long for a socket", len(*f))
		}
		if !m.Admin.Enabled() {
			m.report("admin.socket", "give admin an address, or leave out socket", "means nothing where the admin listener is off")
		}
	}
	m.Config.name, m.Config.places = m.file, map[string]int{}
	for path, at := range m.pos {
		if strings.HasPrefix(path, "gates.") && strings.Contains(path, ".quota.") || strings.HasPrefix(path, "quotas.") || path == "admin.socket" {
			m.Config.places[path] = at.line
		}
	}
}

// QuotaPlace says where in the file a field of a gate's quota stands, as in
// weir.yaml:12; empty where that is not known.
func (c *Config) QuotaPlace(gate, field string) string {
	return c.place("gates." + gate + ".quota." + field)
}

func (c *Config) place(path string) string {
	line, ok := c.places[path]
	if !ok {
		return ""
	}
	return fmt.Sprintf("%s:%d", filepath.Base(c.name), line)
}

// At names a field for messages, with where it stands if that is known, as in
// "weir.yaml:12: quotas.file". It knows the places of quotas and of admin.socket.
func (c *Config) At(path string) string {
	if at := c.place(path); at != "" {
		return at + ": " + path
	}
	return path
}
