package deptest

import (
	"path"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/weir-go/weir"

// arrows says what each package of the root module may import of the project,
// tests left out. A package that is not here has no place yet: decide its
// arrows, then write them here and in docs/DESIGN.md.
var arrows = map[string][]string{
	"":                          {"slot", "internal/carried"},
	"slot":                      {},
	"control":                   {"internal/fault", "internal/setting"},
	"keyed":                     {"", "slot", "control", "limit", "internal/fault", "internal/gate", "internal/keys", "internal/room"},
	"limit":                     {"", "slot", "control", "internal/fault", "internal/gate", "internal/room", "internal/window"},
	"policy":                    {"", "control", "keyed", "limit", "quota", "shed", "signal", "throttle", "internal/attempt", "internal/fault", "internal/gate", "internal/jsontree", "internal/setting"},
	"quota":                     {"", "slot", "internal/fault", "internal/gate"},
	"scenarios":                 {},
	"shed":                      {"", "control", "signal", "internal/fault", "internal/setting"},
	"signal":                    {"control", "internal/fault", "internal/setting"},
	"sim":                       {"", "control", "policy", "signal", "scenarios", "throttle", "internal/hist", "internal/station", "internal/fault", "internal/jsontree", "internal/setting"},
	"throttle":                  {"", "slot", "internal/attempt", "internal/fault", "internal/gate", "internal/setting"},
	"weirhttp":                  {"", "throttle", "internal/attempt", "internal/carried", "internal/yield"},
	"weirsql":                   {"", "limit", "signal", "internal/poolgate"},
	"weirtest":                  {"quota"},
	"examples/textbook":         {"", "limit", "quota", "shed", "throttle", "weirhttp"},
	"internal/attempt":          {""},
	"internal/carried":          {},
	"internal/testbed/chart":    {},
	"internal/testbed/cores":    {},
	"internal/testbed/freeport": {},
	"internal/hist":             {},
	"internal/loadgen":          {"internal/hist"},
	"internal/testbed/kafka":    {"internal/testbed/freeport", "internal/testbed/process"},
	"internal/testbed/mariadb":  {"internal/testbed/freeport", "internal/testbed/process"},
	"internal/testbed/postgres": {"internal/testbed/freeport", "internal/testbed/process"},
	"internal/poolgate":         {"control", "limit", "signal", "internal/fault"},
	"internal/testbed/process":  {},
	"internal/station":          {},
	"internal/fault":            {},
	"internal/jsontree":         {"internal/fault", "internal/setting"},
	"internal/plain":            {},
	"internal/setting":          {"internal/fault"},
	"internal/keys":             {},
	"internal/rawconn":          {},
	"internal/room":             {},
	"internal/gate":             {"", "slot", "control", "internal/fault", "internal/room"},
	"internal/window":           {"", "control"},
	"internal/yield":            {},
	"internal/deptest":          {},
}

// moduleArrows says what the packages of each other module may import of the
// library. The limiter is not among what the binary may: its gates come out of
// a policy, never wired by hand.
var moduleArrows = map[string][]string{
	"bench":               {"", "slot", "control", "limit", "policy", "quota", "signal", "sim", "throttle", "weirgrpc", "weirhttp", "weirpgx", "weirredis", "weirsql", "internal/testbed/chart", "internal/testbed/cores", "internal/testbed/freeport", "internal/hist", "internal/testbed/kafka", "internal/loadgen", "internal/testbed/mariadb", "internal/testbed/postgres", "internal/testbed/process", "internal/station"},
	"examples/analytics":  {"", "control", "keyed", "limit", "weirgrpc", "internal/testbed/chart", "internal/testbed/freeport", "internal/hist", "internal/loadgen", "internal/testbed/postgres", "internal/testbed/process"},
	"examples/execution":  {"", "control", "keyed", "limit", "weirhttp", "weirpgx", "weirsql", "internal/testbed/chart", "internal/testbed/cores", "internal/testbed/freeport", "internal/loadgen", "internal/testbed/postgres"},
	"examples/linearizer": {"", "control", "keyed", "limit", "signal", "weirhttp", "weirkafka", "internal/testbed/chart", "internal/testbed/freeport", "internal/hist", "internal/testbed/kafka", "internal/loadgen", "internal/testbed/process"},
	"gateway":             {"", "control", "policy", "quota", "signal", "sim", "weirgrpc", "weirhttp", "weirkafka", "weirredis", "internal/attempt", "internal/loadgen", "internal/fault", "internal/jsontree", "internal/rawconn", "internal/setting"},
	"weirgrpc":            {"", "policy", "throttle", "weirhttp", "internal/attempt", "internal/carried", "internal/yield"},
	"weirkafka":           {"", "control", "keyed", "limit", "signal", "internal/fault", "internal/setting"},
	"weirpgx":             {"", "limit", "signal", "weirsql", "internal/poolgate"},
	"weirredis":           {"quota", "internal/fault", "internal/rawconn"},
}

func TestArrows(t *testing.T) {
	for _, p := range list(t, root, "./...") {
		name := within(p.ImportPath)
		allowed, known := arrows[name]
		if !known {
			t.Errorf("package %q has no arrows: add it to the table and to docs/DESIGN.md", name)
			continue
		}
		for _, imp := range p.Imports {
			if ours(imp) && !slices.Contains(allowed, within(imp)) {
				t.Errorf("%s imports %s; it may import %q", name, within(imp), allowed)
			}
		}
	}
}

// Mechanisms never import each other: what joins them is a policy or All.
func TestMechanismsApart(t *testing.T) {
	mechanisms := []string{"limit", "quota", "shed", "throttle"}
	for name, allowed := range arrows {
		if !slices.Contains(mechanisms, name) {
			continue
		}
		for _, other := range mechanisms {
			if slices.Contains(allowed, other) {
				t.Errorf("the table lets %s import %s", name, other)
			}
		}
	}
}

func TestModuleArrows(t *testing.T) {
	for _, dir := range modules[1:] {
		own := within(path.Join(module, path.Clean(dir[len(root):])))
		allowed, known := moduleArrows[own]
		if !known {
			t.Errorf("module %q has no arrows: add it to the table and to docs/DESIGN.md", own)
			continue
		}
		for _, p := range list(t, dir, "./...") {
			for _, imp := range p.Imports {
				to := within(imp)
				if ours(imp) && to != own && !strings.HasPrefix(to, own+"/") && !slices.Contains(allowed, to) {
					t.Errorf("%s imports %s; module %s may import %q", within(p.ImportPath), to, own, allowed)
				}
			}
		}
	}
}

// A command is a few lines: everything it does can be tested in a package.
func TestCommandsAreThin(t *testing.T) {
	const most = 40
	for _, dir := range []string{root, root + "/bench", root + "/gateway"} {
		for _, p := range list(t, dir, "./...") {
			if !slices.Contains(strings.Split(p.ImportPath, "/"), "cmd") {
				continue
			}
			lines := 0
			for _, f := range parse(t, p) {
				lines += f.lines
			}
			if lines > most {
				t.Errorf("%s has %d lines, at most %d: move them into a package", p.ImportPath, lines, most)
			}
		}
	}
}

// Who wants only the scoreboard downloads nothing: what other projects' limiters
// need stays with the packages that run them.
func TestScoreboardStandsAlone(t *testing.T) {
	for _, p := range list(t, root+"/bench", "-deps", "./cmd/scoreboard") {
		if !p.Standard && !ours(p.ImportPath) {
			t.Errorf("bench/cmd/scoreboard depends on %s", p.ImportPath)
		}
	}
}

// The library costs its users nothing but the standard library, and its tests
// cost its contributors nothing more.
func TestStandardLibraryOnly(t *testing.T) {
	for _, p := range list(t, root, "-deps", "-test", "./...") {
		imported, _, _ := strings.Cut(p.ImportPath, " ") // "pkg [pkg.test]"
		if !p.Standard && !ours(strings.TrimSuffix(strings.TrimSuffix(imported, ".test"), "_test")) {
			t.Errorf("the root module depends on %s", p.ImportPath)
		}
	}
	if n := len(requirements(t, root)); n != 0 {
		t.Errorf("go.mod of the root module has %d requirements, want none", n)
	}
}

func ours(imp string) bool { return imp == module || strings.HasPrefix(imp, module+"/") }

// within is the import path inside the project: "" for the root package.
func within(imp string) string { return strings.TrimPrefix(strings.TrimPrefix(imp, module), "/") }

func internal(imp string) bool {
	return slices.Contains(strings.Split(path.Clean(within(imp)), "/"), "internal")
}
