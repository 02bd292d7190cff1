package config

import (
	"maps"
	"path/filepath"
	"slices"

	"github.com/weir-go/weir/internal/fault"
)

// usedFile is a file that the gateway reads or writes, and the field that names it.
type usedFile struct {
	path fault.Path
	name string
	harm string // what writing does to another file of that name
}

// files reports files that the gateway would write to although they have another use.
func (m *meaning) files() {
	used := map[string]string{realName(m.resolve(filepath.Base(m.name))): "this file"}
	for _, f := range m.filesRead() {
		if f.name != "" && !m.Wrong(f.path) {
			used[realName(f.name)] = m.named(f.path)
		}
	}
	for _, f := range m.filesWritten() {
		if f.name == "" || m.Has(f.path) {
			continue
		}
		name := realName(f.name)
		if used[name] == "" {
			used[name] = m.folderWith(name)
		}
		if other := used[name]; other != "" {
			m.report(f.path, "name a file of its own", "is %s too, %s", other, f.harm)
		}
		used[name] = m.named(f.path)
	}
	if q := (fault.Path{"runtime_quotas", "file"}); m.Quotas.File != "" {
		for _, beside := range []struct{ what, end string }{{"lock", ".lock"}, {"next version", ".new"}} { // see quotas.OpenFile and File.Write
			if other := used[realName(m.Quotas.File+beside.end)]; other != "" {
				m.report(q, "name another file", "its %s, the file with %s behind the name, is %s", beside.what, beside.end, other)
			}
		}
	}
}

// filesWritten returns the files and sockets that the gateway makes.
func (m *meaning) filesWritten() []usedFile {
	const socket, replaced = "where no socket can be made", "and would be overwritten"
	all := []usedFile{{fault.Path{"admin", "socket"}, m.Admin.Socket, socket}}
	for i := range m.Listeners {
		if name, ok := m.Listeners[i].Socket(); ok {
			all = append(all, usedFile{fault.Path{"listeners"}.Index(i).At("address"), name, socket})
		}
	}
	if m.AccessLog.Enabled() && m.AccessLog.Stream() == nil {
		all = append(all, usedFile{fault.Path{"access_log", "to"}, m.AccessLog.To, "and log lines would get into it"})
	}
	all = append(all, usedFile{fault.Path{"runtime_quotas", "file"}, m.Quotas.File, replaced})
	if m.State.File != "" {
		all = append(all, usedFile{fault.Path{"state", "file"}, m.resolve(m.State.File), replaced})
	}
	return all
}

// filesRead returns the files that the gateway reads beside the configuration.
func (m *meaning) filesRead() (all []usedFile) {
	add := func(path fault.Path, name string) { all = append(all, usedFile{path: path, name: name}) }
	certificate := func(path fault.Path, cert, key string) {
		add(path.At("cert"), cert)
		add(path.At("key"), key)
	}
	served := func(path fault.Path, t *TLS) {
		if t != nil {
			certificate(path, t.Cert, t.Key)
			add(path.At("client_ca"), t.ClientCA)
		}
	}
	shown := func(path fault.Path, t *StoreTLS) {
		if t != nil {
			certificate(path, t.Cert, t.Key)
			add(path.At("ca"), t.CA)
		}
	}
	add(fault.Path{"admin", "token_file"}, m.Admin.TokenFile)
	for i, l := range m.Listeners {
		served(fault.Path{"listeners"}.Index(i).At("tls"), l.TLS)
	}
	for _, name := range slices.Sorted(maps.Keys(m.Config.Kafka)) {
		k, path := m.Config.Kafka[name], fault.Path{"kafka", name}
		shown(path.At("tls"), k.TLS)
		if k.SASL != nil {
			add(path.At("sasl", "password_file"), k.SASL.PasswordFile)
		}
		if k.Listen != nil {
			served(path.At("listen", "tls"), k.Listen.TLS)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.Stores)) {
		s, path := m.Stores[name], fault.Path{"stores", name}
		shown(path.At("tls"), s.TLS)
		add(path.At("password_file"), s.PasswordFile)
		if s.Sentinel != nil {
			add(path.At("sentinel", "password_file"), s.Sentinel.PasswordFile)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.Signals)) {
		add(fault.Path{"signals", name, "path"}, m.Signals[name].Path)
	}
	for i, name := range m.RateLimit.Files {
		files, _ := filesIn(name) // rateLimits reports the error
		for _, file := range files {
			add(fault.Path{"rate_limit_service", "files"}.Index(i), file)
		}
	}
	return all
}

// folderWith returns the folder of the rate limit service that would have a new file among its own, "" if none would.
func (m *meaning) folderWith(file string) string {
	for i, name := range m.RateLimit.Files {
		if realName(name) == filepath.Dir(file) && hasLimits(filepath.Base(file)) {
			return "a file of the folder " + m.named(fault.Path{"rate_limit_service", "files"}.Index(i))
		}
	}
	return ""
}

// realName is the name of a file without the symbolic links on its way, also if only its directory is there.
func realName(name string) string {
	if abs, err := filepath.Abs(name); err == nil {
		name = abs
	}
	if real, err := filepath.EvalSymlinks(name); err == nil {
		return real
	}
	if dir, err := filepath.EvalSymlinks(filepath.Dir(name)); err == nil {
		return filepath.Join(dir, filepath.Base(name))
	}
	return name
}
