package config_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/policy"
	"go.yaml.in/yaml/v3"
)

// golden compares got with a file, or writes the file under -update.
func golden(t *testing.T, file, got string) {
	t.Helper()
	if config.Updating() {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v\nrun go test . -update to write it", err)
	}
	if got != string(want) {
		t.Errorf("%s is not what came out; run go test . -update and read the diff\n--- got:\n%s\n--- want:\n%s", file, got, want)
	}
}

// TestFaults holds what a file gets for its mistakes against testdata/faults.
func TestFaults(t *testing.T) {
	files, err := filepath.Glob("testdata/faults/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no test files: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			_, err = config.Parse(filepath.Base(file), data)
			var faults *fault.Faults
			if !errors.As(err, &faults) {
				t.Fatalf("error is %v, want *Faults", err)
			}
			golden(t, strings.TrimSuffix(file, ".yaml")+".want", faults.Error()+"\n")
		})
	}
}

// TestLineOfBrokenYAML: a fault of the syntax names the line of the mistake, not where its group begins.
func TestLineOfBrokenYAML(t *testing.T) {
	head := "upstreams:\n  app:\n    targets: [http://127.0.0.1:3000]\n"
	starter := string(config.Starter)
	behind := strings.Count(starter, "\n") + 1
	for text, line := range map[string]int{
		head + "      on_abandon: hold\nroutes: []\n":        4,
		head + "routes:\n  - match: [/\n    upstream: app\n": 5,
		" a: [1]\nb: [2]\n": 2,
		"- a\nb: 1\n":       2,
		"%\n":               1,
		head + "routes: [\n\t{match: [/], upstream: app}\n\t{match: [/a], upstream: app}]\n":                         4,
		head + "routes: [{match: [/], upstream: app}]\n\tlog: {level: debug}\n":                                      5,
		"{\n\t\"upstreams\": {\n\t\t\"app\": {\"targets\": [\"http://127.0.0.1:3000\"]}\n\t}\n\t\"routes\": []\n}\n": 5,
		"\ufeff{\"upstreams\":\n{\"app\": {\"targets\": [\"http://127.0.0.1:3000\"\n}}}\n":                           3,
		"{\"upstreams\": {\n" + strings.Repeat("\"a\": 1,\n", 9000) + "\"b\": 2\n\"c\": 3}}\n":                       9003,
		starter + "log: {level: \"debug}\n":                                                                          behind,
		starter + "log: {level: 'it''s}\n":                                                                           behind,
		head + "a: [it's, \"# it's\", '\"', \"\\\"'\"]\nb: [\"a # b]\n":                                              5,
		head + strings.Repeat("# a comment\n", 5000) + "      on_abandon: hold\n":                                    5004,
	} {
		_, err := config.Parse("weir.yaml", []byte(text))
		var faults *fault.Faults
		if !errors.As(err, &faults) || len(faults.List) != 1 || faults.List[0].Line != line {
			t.Errorf("%.200q: error %v, want one on line %d", text, err, line)
		}
	}
}

// TestLastDocument: a line --- at the end begins no second document.
func TestLastDocument(t *testing.T) {
	minimum := strings.ReplaceAll("\n"+config.Minimum, "\n  ", "\n")
	for end, ok := range map[string]bool{"---\n": true, "---\n---\n": true, "...\n---\n# nothing\n": true, "---\nrouts: []\n": false, "---\n---\nrouts: []\n": false, "---\n[\n": false} {
		if _, err := config.Parse("weir.yaml", []byte(minimum+end)); (err == nil) != ok {
			t.Errorf("%q: %v", end, err)
		}
	}
}

// TestJSON: JSON is read with its own escapes, which YAML does not know, and has variables and lines as YAML has.
func TestJSON(t *testing.T) {
	t.Setenv("WEIR_TEST_LIMIT", "24")
	text := `{
	"upstreams": {"app": {"targets": ["http:\/\/127.0.0.1:3000"]}},
	"identity": {"user": "header:X-User", "tenant": "const:a$b"},
	"gates": {
		"api": {"limit": "${WEIR_TEST_LIMIT}"},
		"q": {"quota": {"rate": "10\/s", "by": ["user"], "rules": [{"user": "\ud83d\ude00", "rate": "5\/s"}]}}
	},
	"routes": [{"match": ["\/"], "gates": ["q", "api"], "upstream": "app"}]
}`
	cfg, err := config.Parse("weir.json", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if q := cfg.Gates["q"].Quota; cfg.Gates["api"].Limit.Limit != 24 || q.Rules[0].User != "😀" || cfg.Upstreams["app"].Targets[0] != "http://127.0.0.1:3000" {
		t.Errorf("a limit of %d, targets %q, rules %+v", cfg.Gates["api"].Limit.Limit, cfg.Upstreams["app"].Targets, q.Rules)
	}
	for from, faulty := range map[string]struct{ to, want string }{
		"${WEIR_TEST_LIMIT}": {"${WEIR_TEST_NONE}", "weir.json:5:20: gates.api.limit: the environment has no variable WEIR_TEST_NONE"},
		`"q": {`:             {`"Q": {`, `weir.json:8:41: routes[0].gates[0]: there is no gate "q"`},
		`"by": `:             {`"byy": `, "weir.json:6:36: gates.q.quota.byy: there is no such field"},
		`"api"]`:             {`"api"], "gates": []`, "weir.json:8:"},
		`"rules"`:            {`"of": null, "rules"`, "weir.json:6:52: gates.q.quota.of: there is no such field"},
		`"rate": "10`:        {`"rate": null, "rate": "10`, "gates.q.quota.rate: is written twice"},
		`"limit": "$`:        {`"mode": null, "limit": "$`, "weir.json:5:11: gates.api.mode: has no value; write "},
		"const:a$b":          {`const:\ud83d`, "weir.json:3:50: identity.tenant: a text has half of a surrogate pair"},
		`"user": "header:`:   {`"user": "` + "\x7f" + `header:`, "weir.json:3:24: control character 0x7f"},
		`["user"]`:           {"[" + strings.Repeat("1,", config.MaxValues) + "1]", "is value number 50001; write at most 50000 in one document"},
	} {
		_, err := config.Parse("weir.json", []byte(strings.Replace(text, from, faulty.to, 1)))
		if err == nil || !strings.Contains(err.Error(), faulty.want) {
			t.Errorf("%s: %.300v, want %q", faulty.to, err, faulty.want)
		}
	}
	if notes := fmt.Sprint(config.Texts(cfg.Notes())); !strings.Contains(notes, "identity.tenant: $b is not replaced") {
		t.Errorf("nothing is noted of a variable without braces: %s", notes)
	}
}

// TestGood reads files that are right.
func TestGood(t *testing.T) {
	files, err := filepath.Glob("testdata/good/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no test files: %v", err)
	}
	for _, file := range files {
		if _, err := config.Load(file); err != nil {
			t.Errorf("%v", err)
		}
	}
}

// TestFull holds what is read against what the file says, down to the values that
// are easily lost: 0, -1, false, and defaults beside them.
func TestFull(t *testing.T) {
	cfg, err := config.Load("testdata/good/full.yaml")
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.MarshalIndent(cfg, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "testdata/good/full.want", string(got)+"\n")
}

// TestFullStarter reads the file that weir init --full writes, as it is and with every
// setting in it switched on.
func TestFullStarter(t *testing.T) {
	if _, err := config.Parse("starter.yaml", config.FullStarter); err != nil {
		t.Errorf("as it is:\n%v", err)
	}
	on := regexp.MustCompile(`(?m)^(\s*)#(\S)`).ReplaceAllString(string(config.FullStarter), "$1$2")
	cfg, err := config.Parse("starter.yaml", []byte(on))
	if err != nil {
		t.Fatalf("with every setting on:\n%v\n%s", err, on)
	}
	if cfg.State.File == "" || cfg.Identity.Tenant == "" || cfg.Upstreams["app"].Limit == nil {
		t.Errorf("switching the settings on had no effect: %+v", cfg)
	}
	schema := config.Schema
	type object struct {
		Properties map[string]any `json:"properties"`
	}
	var all struct {
		object
		Defs map[string]object `json:"$defs"`
	}
	if err := json.Unmarshal(schema, &all); err != nil {
		t.Fatal(err)
	}
	all.Defs[""] = all.object
	for _, def := range all.Defs {
		for key := range def.Properties {
			if !regexp.MustCompile(`\b` + key + `:`).MatchString(string(config.FullStarter)) {
				t.Errorf("the full starter does not mention %s", key)
			}
		}
	}
}

// TestStarter reads the file that weir init writes: as it is, for other targets, and with all of it
// switched on. It warns of nothing, and fits on a screen.
func TestStarter(t *testing.T) {
	if n := bytes.Count(config.Starter, []byte("\n")); n > 40 {
		t.Errorf("%d lines, want 40 at most", n)
	}
	for _, starter := range [][]byte{config.Starter, config.FullStarter} {
		for _, target := range []string{"http://127.0.0.1:3000", "https://app.example.com/v1,2", "http://[::1]:3000", "unix:/run/app.sock", "http://localhost:8080", "h2c://127.0.0.1:8080"} {
			text, err := config.StartFor(starter, target)
			if err != nil {
				t.Errorf("%s: %v", target, err)
				continue
			}
			cfg, err := config.Parse("starter.yaml", text)
			if err != nil {
				t.Errorf("%s: %v\n%s", target, err, text)
				continue
			}
			if got := cfg.Upstreams["app"].Targets[0]; got != target {
				t.Errorf("target %s, want %s", got, target)
			}
			if notes := lines(cfg.Notes()); notes != "" {
				t.Errorf("%s:\n%s", target, notes)
			}
		}
	}
	if _, err := config.StartFor(config.Starter, "localhost:3000"); err == nil || !strings.Contains(err.Error(), "write http://localhost:3000") {
		t.Errorf("a target without a scheme: %v", err)
	}
	on := regexp.MustCompile(`(?m)^(\s*)#(\S)`).ReplaceAllString(string(config.Starter), "$1$2")
	if cfg, err := config.Parse("starter.yaml", []byte(on)); err != nil || len(cfg.Routes) != 2 || cfg.Gates["users"].Quota == nil || cfg.Identity.User == "" {
		t.Errorf("with all of it on: %v\n%s", err, on)
	}
}

// TestStateFile: learned limits overwrite no other file, but those of an earlier run.
func TestStateFile(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"token": "0123456789abcdef", "json": `{"gates": {}}`, "empty": "", "saved": "{\n  \"saved_at\": \"2026-01-01T00:00:00Z\",\n", "old.log": "",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for state, want := range map[string]string{
		"token":     "holds no learned limits, and would be overwritten; name a file of its own, or remove that one",
		"json":      "holds no learned limits",
		"weir.yaml": "state.file: is this file too, and would be overwritten; name a file of its own",
		"q.json":    "state.file: is runtime_quotas.file on line 8 too, and would be overwritten; name a file of its own",
		dir + "/../" + filepath.Base(dir) + "/old.log": "state.file: is access_log.to on line 9 too",
		"empty": "", "saved": "", "new": "",
	} {
		_, err := config.Parse(filepath.Join(dir, "weir.yaml"), []byte(config.Minimum+"  state: {file: "+state+"}\n  runtime_quotas: {file: q.json}\n  access_log: {to: old.log}\n"))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", state, err, want)
		}
	}
}

// TestFilesOfTwoUses: the gateway writes to no file that has another use.
func TestFilesOfTwoUses(t *testing.T) {
	dir := t.TempDir()
	certificate(t, dir, "a")
	for name, text := range map[string]string{"weir.yaml": "", "token": "0123456789abcdef", "saved": "{\"saved_at\": 0", "limits.yaml": "domain: d\ndescriptors: []\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "limits"), 0o700), os.Rename(filepath.Join(dir, "limits.yaml"), filepath.Join(dir, "limits", "d.yaml")), os.Symlink("weir.yaml", filepath.Join(dir, "link")), os.Symlink(dir, filepath.Join(dir, "dir"))); err != nil {
		t.Fatal(err)
	}
	const kafka = "  kafka: {main: {bootstrap: [10.0.0.1:9092], tls: {ca: a.crt}, sasl: {mechanism: plain, user: weir, password_file: token}, " +
		"listen: {address: 127.0.0.1:19092, tls: {cert: a.crt, key: a.key}}, nodes: {ports: 9100-9199, advertise: kafka.example.org}}}\n"
	for text, want := range map[string]string{
		"access_log: {to: weir.yaml}":                                                                                                   "access_log.to: is this file too, and log lines would get into it; name a file of its own",
		"access_log: {to: link}":                                                                                                        "access_log.to: is this file too",
		"access_log: {to: dir/q.json}\n  runtime_quotas: {file: q.json}":                                                                "runtime_quotas.file: is access_log.to on line 7 too, and would be overwritten",
		"access_log: {to: q.json.lock}\n  runtime_quotas: {file: q.json}":                                                               "runtime_quotas.file: its lock, the file with .lock behind the name, is access_log.to on line 7; name another file",
		"access_log: {to: q.json.new}\n  runtime_quotas: {file: q.json}":                                                                "runtime_quotas.file: its next version, the file with .new behind the name, is access_log.to on line 7; name another file",
		"runtime_quotas: {file: weir.yaml}":                                                                                             "runtime_quotas.file: is this file too",
		"admin: {token_file: token}\n  access_log: {to: token}":                                                                         "access_log.to: is admin.token_file on line 7 too",
		"admin: {token_file: token, socket: token}":                                                                                     "admin.socket: is admin.token_file on line 7 too, where no socket can be made",
		"admin: {socket: saved}\n  state: {file: saved}":                                                                                "state.file: is admin.socket on line 7 too",
		"listeners: [{address: \":1\", tls: {cert: a.crt, key: a.key}}]\n  access_log: {to: a.key}":                                     "access_log.to: is listeners[0].tls.key on line 7 too",
		"listeners: [{address: \":1\", tls: {cert: a.crt, key: a.key, client_ca: a.crt}}]\n  state: {file: a.crt}":                      "state.file: is listeners[0].tls.client_ca on line 7 too",
		"listeners: [{address: \"unix:s\", serve: [ext_proc]}]\n  runtime_quotas: {file: s}":                                            "runtime_quotas.file: is listeners[0].address on line 7 too",
		"stores: {s: {redis: \"rediss://h\", password_file: token, tls: {ca: a.crt}}}\n  access_log: {to: token}":                       "access_log.to: is stores.s.password_file on line 7 too",
		"stores: {s: {redis: \"rediss://h\", tls: {ca: a.crt}}}\n  access_log: {to: a.crt}":                                             "access_log.to: is stores.s.tls.ca on line 7 too",
		"signals: {s: {read: memory, path: token}}\n  access_log: {to: token}":                                                          "access_log.to: is signals.s.path on line 7 too",
		"rate_limit_service: {files: [limits/d.yaml]}\n  access_log: {to: limits/d.yaml}":                                               "access_log.to: is rate_limit_service.files[0] on line 7 too",
		"rate_limit_service: {files: [limits]}\n  access_log: {to: limits/d.yaml}":                                                      "access_log.to: is rate_limit_service.files[0] on line 7 too",
		"rate_limit_service: {files: [limits]}\n  runtime_quotas: {file: dir/limits/new.yml}":                                           "runtime_quotas.file: is a file of the folder rate_limit_service.files[0] on line 7 too, and would be overwritten",
		"rate_limit_service: {files: [limits]}\n  runtime_quotas: {file: limits/new.json}\n  state: {file: limits/.state.yaml}":         "",
		kafka[2:] + "  access_log: {to: token}":                                                                                         "access_log.to: is kafka.main.sasl.password_file on line 7 too",
		kafka[2:] + "  access_log: {to: a.crt}":                                                                                         "access_log.to: is kafka.main.listen.tls.cert on line 7 too",
		"access_log: {to: new}\n  runtime_quotas: {file: q.json}\n  state: {file: saved}\n  admin: {token_file: token, socket: a.sock}": "",
	} {
		_, err := config.Parse(filepath.Join(dir, "weir.yaml"), []byte(config.Minimum+"  "+text+"\n"))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// TestSchemaAgrees holds the schema against the same files as the decoder: it
// lets through what is right, and refuses what is wrong in form.
func TestSchemaAgrees(t *testing.T) {
	text := config.Schema
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource(config.SchemaID, doc); err != nil {
		t.Fatal(err)
	}
	schema, err := c.Compile(config.SchemaID)
	if err != nil {
		t.Fatal(err)
	}
	validate := func(data []byte) error {
		var v any
		if err := yaml.Unmarshal(data, &v); err != nil {
			t.Fatal(err)
		}
		return schema.Validate(v)
	}
	for _, starter := range [][]byte{config.Starter, config.FullStarter} {
		if err := validate(starter); err != nil {
			t.Errorf("starter: %v", err)
		}
	}
	for _, name := range []string{"minimum", "full"} {
		if err := validate(read(t, "testdata/good/"+name+".yaml")); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, name := range []string{"types", "state", "list", "equals"} {
		if validate(read(t, "testdata/faults/"+name+".yaml")) == nil {
			t.Errorf("%s: the schema lets through what is wrong in form", name)
		}
	}
	for _, change := range []string{"nonsense: 1", "streams: {max: 0}", "log: {level: loud}", "shutdown: {grace: 5}", "shutdown: {grace: five}", "gates: {a b: {}}"} {
		if validate([]byte("upstreams: {a: {targets: [http://h]}}\nroutes: [{match: [/], upstream: a}]\n"+change)) == nil {
			t.Errorf("the schema lets %s through", change)
		}
	}
}

// TestWords holds the words of the table against the policy's own.
func TestWords(t *testing.T) {
	f := func(key string, words []string) {
		t.Helper()
		for _, w := range words {
			text := config.Minimum + "  gates: {a: {" + fmt.Sprintf(key, w) + "}}\n"
			if _, err := config.Parse("words.yaml", []byte(text)); err != nil && strings.Contains(err.Error(), "not known") {
				t.Errorf("%v", err)
			}
		}
	}
	f("limit: {controller: %s}", policy.Controllers())
	f("limit: {queue: {order: %s}}", []string{"adaptive", "fifo", "lifo", "edf"})
	f("limit: {signals: [%s]}", policy.SignalKinds())
	for _, m := range policy.Modes() {
		f("mode: %s", []string{string(m)})
	}
}

// TestControllersGuide holds the pages about controllers and signals against their words.
func TestControllersGuide(t *testing.T) {
	var guide strings.Builder
	for _, page := range []string{"controllers", "other-controllers", "signals"} {
		guide.Write(read(t, "../../../docs/reference/"+page+".md"))
	}
	for _, word := range policy.Controllers() {
		if !strings.Contains(guide.String(), "\n## "+word+"\n") {
			t.Errorf("no section for the controller %s", word)
		}
	}
	for _, word := range policy.SignalKinds() {
		if !strings.Contains(guide.String(), "| `"+word+"`") && !strings.Contains(guide.String(), ", `"+word+"`") {
			t.Errorf("no row for the signal %s", word)
		}
	}
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestBounds feeds the parser files that are larger, deeper or more repetitive
// than any configuration, and expects one fault that says so.
func TestBounds(t *testing.T) {
	var targets, upstreams strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&targets, "http://h%d,", i)
	}
	for i := range 2000 {
		fmt.Fprintf(&upstreams, "  u%d: *u\n", i)
	}
	for _, tc := range []struct {
		name, text, want string
	}{
		{"too large", strings.Repeat("# 0123456789\n", 100_000), "larger than"},
		{"too deep", "routes: " + strings.Repeat("[", 5000) + strings.Repeat("]", 5000), "levels deep"},
		{"deeper than the library goes", "routes: " + strings.Repeat("[", 50_000) + strings.Repeat("]", 50_000), "max depth"},
		{"deep by indent", func() string {
			var b strings.Builder
			for i := range 1000 {
				b.WriteString(strings.Repeat(" ", i) + "a:\n")
			}
			return b.String()
		}(), "levels deep"},
		{"too many values", "upstreams:\n  u: &u {targets: [" + targets.String() + "]}\n" + upstreams.String(), "more than"},
		{"too many values, the last a key", "upstreams:\n  u: &u {targets: [" + targets.String() + "]}\n" + upstreams.String() + "x: 1\n", "more than"},
		{"too many keys", "upstreams:\n" + strings.Repeat("  u: {}\n", 60_000), "more than"},
		{"a comma missing in a long list", "upstreams: {app: {targets: [http://h]}}\nroutes: [\n" + strings.Repeat("  {match: [/], upstream: app},\n", 20_000) + "{} {}]\n", "a comma or a closing bracket is missing"},
		{"an alias inside itself", "routes: &r [*r]\n", "is nested more than"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			start := time.Now()
			_, err := config.Parse("big.yaml", []byte(tc.text))
			var faults *fault.Faults
			if !errors.As(err, &faults) || !slices.ContainsFunc(faults.List, func(f fault.Fault) bool {
				return strings.Contains(f.Problem, tc.want)
			}) {
				t.Errorf("error %.300v, want one that says %q", err, tc.want)
			}
			if n := len(fmt.Sprint(err)); n > 100_000 {
				t.Errorf("the error is %d bytes long", n)
			}
			if took := time.Since(start); took > 5*time.Minute { // of a second; what is wrong takes for ever
				t.Errorf("took %v", took)
			}
		})
	}
}

// TestManyFaults prints a bounded number of faults, and says how many are left.
func TestManyFaults(t *testing.T) {
	var b strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&b, "x%d: 1\n", i)
	}
	_, err := config.Parse("many.yaml", []byte(b.String()))
	var faults *fault.Faults
	if !errors.As(err, &faults) || len(faults.List)+faults.More != 1002 { // and two that are missing
		t.Fatalf("got %d faults, want 1002", len(faults.List)+faults.More)
	}
	if text := err.Error(); !strings.HasSuffix(text, "and 902 more; mend these first") {
		t.Errorf("the end of the text is %q", text[len(text)-100:])
	}
}

func TestForUpstream(t *testing.T) {
	cfg, err := config.ForUpstream("http://127.0.0.1:3000", "", 7)
	if err != nil {
		t.Fatal(err)
	}
	if l := cfg.Gates["upstream"].Limit; l == nil || l.Controller != "fixed" || l.Limit != 7 {
		t.Errorf("gate %+v, want a fixed limit of 7", l)
	}
	if cfg.Listeners[0].Address != config.DefaultListen || cfg.Routes[0].Upstream != "upstream" || cfg.Routes[0].Match[0] != "/" {
		t.Errorf("configuration %+v", cfg)
	}
	cfg, err = config.ForUpstream("http://127.0.0.1:3000", "127.0.0.1:0", 0)
	if err != nil {
		t.Fatal(err)
	}
	if l := cfg.Gates["upstream"].Limit; l == nil || !reflect.DeepEqual(*l, policy.LimitSpec{}) {
		t.Errorf("gate %+v, want a limit with nothing set", l)
	}
	for _, tc := range []struct {
		upstream, listen string
		limit            int64
		want             string
	}{
		{"127.0.0.1:3000", "", 0, "http://127.0.0.1:3000"},
		{"localhost:3000", "", 0, "write http://localhost:3000"},
		{"", "", 0, "is empty"},
		{"http://h", "8080", 0, "127.0.0.1:8080"},
		{"http://h", "", -1, "at least 1"},
		{"http://secret:word@h", "", 0, "user name"},
	} {
		_, err := config.ForUpstream(tc.upstream, tc.listen, tc.limit)
		if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "word") {
			t.Errorf("ForUpstream(%q, %q, %d): %v, want %q", tc.upstream, tc.listen, tc.limit, err, tc.want)
		}
	}
}

// TestForUpstreamIsAFile holds the start without a file against the same thing
// written as one, so that the two cannot drift apart.
func TestForUpstreamIsAFile(t *testing.T) {
	got, err := config.ForUpstream("http://127.0.0.1:3000", "", 0)
	if err != nil {
		t.Fatal(err)
	}
	want, err := config.Parse("same.yaml", []byte(`
upstreams: {upstream: {targets: [http://127.0.0.1:3000]}}
gates: {upstream: {limit: {}}}
routes: [{match: [/], gates: [upstream], upstream: upstream}]
`))
	if err != nil {
		t.Fatal(err)
	}
	if g, w := asJSON(t, got), asJSON(t, want); g != w {
		t.Errorf("without a file:\n%s\nas a file:\n%s", g, w)
	}
}

// TestTLS loads a certificate that stands beside the file, and a key that is not
// its own.
func TestTLS(t *testing.T) {
	dir := t.TempDir()
	certificate(t, dir, "a")
	certificate(t, dir, "b")
	file := filepath.Join(dir, "weir.yaml")
	text := config.Minimum + "  listeners: [{address: \"127.0.0.1:0\", tls: {cert: a.crt, key: %s}}]\n"
	if err := os.WriteFile(file, fmt.Appendf(nil, text, "a.key"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	if tls := cfg.Listeners[0].TLS; tls.Cert != filepath.Join(dir, "a.crt") || tls.Key != filepath.Join(dir, "a.key") {
		t.Errorf("files %+v, want them beside the configuration", tls)
	}
	_, err = config.Parse(file, fmt.Appendf(nil, text, "b.key"))
	if err == nil || !strings.Contains(err.Error(), "listeners[0].tls: certificate and key cannot be used") {
		t.Errorf("another's key: %v", err)
	}
	_, err = config.Parse(file, fmt.Appendf(nil, text, "b.key, client_auth: maybe"))
	if err == nil || !strings.Contains(err.Error(), "listeners[0].tls: certificate and key cannot be used") || !strings.Contains(err.Error(), "client_auth") {
		t.Errorf("another's key beside another fault: %v, want both", err)
	}
	for _, one := range []string{"none.key", "5"} {
		if _, err = config.Parse(file, fmt.Appendf(nil, text, one)); err == nil || strings.Count(err.Error(), "\n") > 0 {
			t.Errorf("%s: %v, want one fault", one, err)
		}
	}
}

// Without a login, brokers know who asks by the certificate. On the connections of clients that is the gateway's own.
func TestKafkaCertificateOfTheGateway(t *testing.T) {
	dir := t.TempDir()
	certificate(t, dir, "me")
	const (
		listen = "\n    listen: {address: 127.0.0.1:19092}\n    nodes: {ports: 9100-9199, advertise: kafka.example.org}\n"
		sasl   = "\n    sasl: {mechanism: scram-sha-512, user: weir, password_file: me.key}"
		fault  = "weir.yaml:4:17: kafka.main.tls.cert: makes every client at listen the gateway itself to brokers: without a login, they take names from certificates; " +
			"remove cert and key, or let the gateway and clients log in by SASL"
		signal = "\nupstreams: {app: {targets: [http://127.0.0.1:3000]}}\nroutes: [{match: [/], upstream: app}]\n"
	)
	for settings, want := range map[string]string{
		"{cert: me.crt, key: me.key}" + listen:        fault,
		"{cert: me.crt, key: me.key}" + sasl + listen: "",
		"{cert: me.crt, key: me.key}" + signal:        "", // only the gateway connects
		"{ca: me.crt}" + listen:                       "",
	} {
		_, err := config.Parse(filepath.Join(dir, "weir.yaml"), []byte("kafka:\n  main:\n    bootstrap: [10.0.0.1:9092]\n    tls: "+settings))
		if (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", settings, err, want)
		}
	}
}

func certificate(t *testing.T, dir, name string) { certificateFor(t, dir, name, 365*24*time.Hour) }

// certificateFor writes a certificate that expires in so long.
func certificateFor(t *testing.T, dir, name string, lasts time.Duration) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(lasts)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{
		name + ".crt": {Type: "CERTIFICATE", Bytes: der},
		name + ".key": {Type: "PRIVATE KEY", Bytes: secret},
	} {
		if err := os.WriteFile(filepath.Join(dir, file), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// A certificate that has expired is a warning, and one that will within a week is a note.
func TestExpiryNotes(t *testing.T) {
	for lasts, want := range map[time.Duration]string{
		-time.Hour:         "weir.yaml:1:%d: warning: the certificate has expired on ",
		24 * time.Hour:     "weir.yaml:1:%d: note: the certificate expires on ",
		time.Hour * 24 * 8: "",
	} {
		dir := t.TempDir()
		certificateFor(t, dir, "me", lasts)
		for text, column := range map[string]int{
			"listeners: [{address: ':443', tls: {cert: me.crt, key: me.key}}]\nupstreams: {app: {targets: [http://a]}}\nroutes: [{match: [/], upstream: app}]": 43,
			"kafka: {a: {bootstrap: [b:1], nodes: {ports: 9100-9110, advertise: a}, listen: {address: ':9093', tls: {cert: me.crt, key: me.key}}}}":            111,
		} {
			cfg, err := config.Parse(filepath.Join(dir, "weir.yaml"), []byte(text))
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, n := range cfg.Notes() {
				if strings.Contains(n.Error(), "certificate") {
					got = append(got, n.Error())
				}
			}
			if want == "" && len(got) == 0 {
				continue
			}
			if want == "" || len(got) != 1 || !strings.Contains(got[0], fmt.Sprintf(want, column)) {
				t.Errorf("%v, %s: %q, want %q at %d", lasts, text, got, want, column)
			}
		}
	}
}

func TestLoadWithoutFile(t *testing.T) {
	_, err := config.Load(filepath.Join(t.TempDir(), "none.yaml"))
	if err == nil || !strings.Contains(err.Error(), "weir init") {
		t.Errorf("no file: %v, want a hint at weir init", err)
	}
	if _, err := config.Load(t.TempDir()); err == nil {
		t.Error("a directory: no error")
	}
}

// A pipe to which nobody writes keeps no command waiting, and no reload.
func TestLoadPipe(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("pipes have no names among its files")
	}
	silent := filepath.Join(t.TempDir(), "pipe")
	if out, err := exec.Command("mkfifo", silent).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if _, err := config.Load(silent); err == nil || !strings.Contains(err.Error(), "is a pipe") {
		t.Errorf("nobody writes: %v", err)
	}
	r, w, err := os.Pipe() // as in weir check <(make-a-file)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err = w.WriteString(config.Minimum); err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := config.Load(fmt.Sprintf("/dev/fd/%d", r.Fd())); err != nil {
		t.Errorf("somebody has written: %v", err)
	}
}

// What does not show is found where it stands: the library of YAML names no line for it.
func TestHiddenCharacters(t *testing.T) {
	for _, hidden := range []string{"\x01", "\x7f", "\u009b", "\ufeff", "\uffff"} {
		_, err := config.Parse("a.yaml", []byte(config.Minimum+"  # a\n  b: c"+hidden+"\n"))
		if want := "a.yaml:8:7: "; err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%+q: %v, want %s", hidden, err, want)
		}
	}
	if _, err := config.Parse("a.yaml", []byte("\ufeff"+config.Minimum)); err != nil {
		t.Errorf("a byte order mark at the start: %v", err)
	}
}

func TestNotes(t *testing.T) {
	cfg, err := config.Parse("notes.yaml", []byte(`
upstreams:
  app: {targets: [http://a], limit: {limit: 3}}
  spare: {targets: [http://b]}
  third: {targets: [http://c]}
identity: {priorities: {system: critical}, user: "path:x", client: "path:x"}
gates: {busy: {limit: {limit: 1}}, each: {limit: {limit: 1}, each: {by: client}}, theirs: {limit: {limit: 1}, each: {}}, forgotten: {limit: {limit: 1, signals: [cpu]}}, unlike: {limit: {limit: 2}}, last: {limit: {limit: 1}}, unused: {limit: {}}, early: {shed: {load_of: unused}}, late: {shed: {load_of: unused, thresholds: {critical: 5}}}, shed: {shed: {signals: [heap]}}}
signals: {cpu: {threshold: 0.5}, memory: {threshold: 0.5}, heap: {threshold: 0.5}}
routes:
  - {match: [/, "v1/", "GET example.org/{x}", "/v4/{$}"], upstream: app}
  - {match: ["/v2/*", "^/v3/.+$"], upstream: app}
  - {match: [/v5], gates: [forgotten, shed], upstream: app}
  - {match: [/v6], gates: [busy], upstream: third}
  - {match: [/v7], gates: [busy, unlike], upstream: app}
  - {match: [/v8], timeout: 1ns, upstream: app}
  - {match: [/v9], timeout: 1ms, upstream: app}
  - {match: [/v10], gates: [last], upstream: app}
  - {match: [/v11], gates: [last], upstream: third}
admin: {address: ":8090"}
`))
	if err != nil {
		t.Fatal(err)
	}
	notes := strings.Join(config.Texts(cfg.Notes()), "\n")
	for _, want := range []string{"no route uses the gate unused", "the gate early sheds by the load of unused", "upstream spare", "identity.priority names no header", "routes[2] (/v5) ends with the gate shed, where nothing waits", "no gate uses the signal memory", "admin.address :8090", "routes[4] only tries the gate busy, but the work of routes[3] waits there", "identity.user comes from the path", "the gate each has a limit for each name in the path",
		"routes[0] (v1/) matches requests to the host v1 only", `routes[1] (/v2/*) is written as for another proxy, and matches only this very text; write "/v2/"`, `routes[1] (^/v3/.+$) is written as for another proxy`, "routes[5] (/v8) has a timeout of 1ns"} {
		if !strings.Contains(notes, want) {
			t.Errorf("the notes lack %q:\n%s", want, notes)
		}
	}
	if strings.Contains(notes, "example.org") || strings.Contains(notes, "v4") {
		t.Errorf("a host with a dot and the end of a path are patterns as meant:\n%s", notes)
	}
	if strings.Contains(notes, "the gate theirs has a limit for each name") {
		t.Errorf("no client chooses its tenant:\n%s", notes)
	}
	if strings.Contains(notes, "the gate late sheds") {
		t.Errorf("thresholds above 1 are as meant:\n%s", notes)
	}
	if strings.Contains(notes, "signal cpu") || strings.Contains(notes, "signal heap") {
		t.Errorf("gates go by the signals cpu and heap:\n%s", notes)
	}
	if strings.Contains(notes, "routes[7]") {
		t.Errorf("its last gate has work wait, also before an upstream with a limit:\n%s", notes)
	}
	if strings.Contains(notes, "(/v9)") {
		t.Errorf("a timeout of 1ms may be meant:\n%s", notes)
	}
	if strings.Contains(notes, "passes no gate") {
		t.Errorf("the upstream has a limit:\n%s", notes)
	}
	cfg, err = config.Parse("starter.yaml", config.Starter)
	if err != nil {
		t.Fatal(err)
	}
	if notes := config.Texts(cfg.Notes()); len(notes) > 0 {
		t.Errorf("notes on the starter: %v", notes)
	}
}

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
		"rate: .nan":                     `rate: ".nan" is not a number; write a number`,
		"rate: .inf":                     `rate: ".inf" is not a number; write a number`,
		"rate: 1e300":                    "rate: is 1e+300, too large; write at most 1000000",
		"rate: -1":                       "rate: is -1, too small; write at least 0",
		"rate_per_address: 5/s":          `rate_per_address: "5/s" is not a number; write a number`,
		"per_address: -2":                "per_address: is -2, too small; write at least -1",
		"per_address: 1.5":               `per_address: "1.5" is not a whole number; write a whole number, such as 100`,
		"mode: watch":                    `mode: "watch" is not known; write one of enforce, observe, off`,
		"addresses: 0":                   "addresses: is 0, too small; write at least 1",
		"exempt: [10.0.0.1]":             `exempt[0]: "10.0.0.1" is not a network in CIDR notation; write 10.0.0.1/32`,
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
		if notes := strings.Join(config.Texts(c.Notes()), "\n"); notes != tt.want {
			t.Errorf("%+v: %q, want %q", tt.c, notes, tt.want)
		}
	}
}

// What is wrong with the file of authorities is said where it is named.
func TestClientCAFaults(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"empty.pem": "", "text.pem": "hello",
		"broken.pem":  "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
		"half.pem":    "-----BEGIN CERTIFICATE-----\nAAAA\n",
		"private.pem": "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const remedy = "; name a PEM file with the certificates of the authorities that vouch for clients"
	for tls, want := range map[string]string{
		"client_ca: none.pem":    "client_ca: there is no file",
		"client_ca: empty.pem":   "client_ca: cannot be used: there is no certificate in it" + remedy,
		"client_ca: text.pem":    "client_ca: cannot be used: there is no certificate in it" + remedy,
		"client_ca: broken.pem":  "client_ca: cannot be used: certificate 1: x509:",
		"client_ca: half.pem":    "client_ca: cannot be used: after 0 certificates there is a block that is not PEM" + remedy,
		"client_ca: private.pem": `client_ca: cannot be used: there is a "PRIVATE KEY" in it` + remedy,
		"client_auth: optional":  "client_auth: asks for certificates, but no client_ca says whose; write client_ca",
		"client_auth: maybe":     "client_auth: \"maybe\" is not known; write one of require, optional",
	} {
		_, err := config.Parse(filepath.Join(dir, "weir.yaml"), []byte("listeners: [{address: \":8443\", tls: {cert: a, key: b, "+tls+"}}]\n"+
			"upstreams: {app: {targets: [http://a]}}\nroutes: [{match: [/], upstream: app}]\n"))
		if err == nil || !strings.Contains(err.Error(), "listeners[0].tls."+want) {
			t.Errorf("%s: got\n%v\nwant %s", tls, err, want)
		}
	}
}

func TestCertNotes(t *testing.T) {
	plain := config.Listener{Address: ":8080"}
	asks := config.Listener{Address: ":8443", TLS: &config.TLS{ClientCA: "ca"}}
	mayAsk := config.Listener{Address: ":8443", TLS: &config.TLS{ClientCA: "ca", ClientAuth: config.ClientOptional}}
	for _, tt := range []struct {
		listener config.Listener
		user     string
		trusted  []string
		want     string
	}{
		{plain, "cert:uri", nil, "identity.user comes from client certificates, but no listener has"},
		{plain, "", []string{"any"}, "identity.trusted_certs names client certificates, but no listener has"},
		{asks, "cert:uri", []string{"any"}, ""},
		{asks, "", nil, ""},
		{mayAsk, "header:X-User", nil, "a listener has client_auth: optional, but identity reads nothing"},
		{mayAsk, "cert:cn", nil, ""},
	} {
		c := config.Config{Listeners: []config.Listener{tt.listener}}
		c.Identity.User, c.Identity.TrustedCerts = tt.user, tt.trusted
		c.Admin.Address = config.Off
		if notes := strings.Join(config.Texts(c.Notes()), "\n"); !strings.HasPrefix(notes, tt.want) || tt.want == "" && notes != "" {
			t.Errorf("user %q, trusted %v: %q, want %q", tt.user, tt.trusted, notes, tt.want)
		}
	}
}

const withQuota = `upstreams: {app: {targets: [http://127.0.0.1:3000]}}
routes: [{match: [/], gates: [api], upstream: app}]
stores: {shared: {redis: "redis://127.0.0.1:6379"}}
gates:
  api:
    quota:
      rate: 10/s
      rules:
        - user: alice
          rate: 5/s
        - {user: bob, blocked: true}
`

// Files are looked up where the configuration is, and what is wrong is told with what
// to write.
func TestDynamicQuotas(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "token"), []byte("0123456789abcdef"), 0o600); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, "weir.yaml")
	c, err := config.Parse(name, []byte(withQuota+"runtime_quotas: {file: q.json}\nadmin: {socket: s, token_file: token}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if c.Quotas.File != filepath.Join(dir, "q.json") || c.Admin.Socket != filepath.Join(dir, "s") || c.Admin.TokenFile != filepath.Join(dir, "token") {
		t.Errorf("%+v %+v", c.Quotas, c.Admin)
	}
	f := func(text, part string) {
		t.Helper()
		_, err := config.Parse(name, []byte(withQuota+text+"\n"))
		if err == nil || !strings.Contains(err.Error(), "weir.yaml:12:") || !strings.Contains(err.Error(), part) {
			t.Errorf("%s: %v, want %q", text, err, part)
		}
	}
	f("runtime_quotas: {start_broken: true}", "no rules are kept")
	f("runtime_quotas: {store: shraed}", "write shared")
	f("runtime_quotas: {store: shared, file: q.json}", "leave one of them out")
	f("admin: {token_file: nothing}", "there is no file")
	if err := os.WriteFile(filepath.Join(dir, "short"), []byte("0123456789abcde"), 0o600); err != nil {
		t.Fatal(err)
	}
	f("admin: {token_file: short}", "holds 15 bytes, and nobody may write with fewer than 16; make it by openssl rand -hex 32")
	f("admin: {socket: "+strings.Repeat("s", 100)+"}", "too long for a socket")
	f("admin: {address: off, socket: s}", "the admin listener is off")
	f("admin: {address: off, token_file: token}", "admin.token_file: means nothing where the admin listener is off; give admin an address, or leave out token_file")
	f("admin: {address: off, pprof: true}", "admin.pprof: means nothing where the admin listener is off")
}

func TestQuotaPlace(t *testing.T) {
	c, err := config.Parse("/etc/weir.yaml", []byte(withQuota))
	if err != nil {
		t.Fatal(err)
	}
	for field, want := range map[string]string{"rate": "weir.yaml:7", "rules[0]": "weir.yaml:9", "rules[1]": "weir.yaml:11", "rules[2]": ""} {
		if got := c.QuotaPlace("api", field); got != want {
			t.Errorf("%s: %q, want %q", field, got, want)
		}
	}
}

// What a reload has against a field is told with its line.
func TestAt(t *testing.T) {
	c, err := config.Parse("/etc/weir.yaml", []byte(withQuota+"runtime_quotas:\n  file: q.json\nadmin: {socket: s}\n"))
	if err != nil {
		t.Fatal(err)
	}
	for field, want := range map[string]string{"runtime_quotas.file": "weir.yaml:13: runtime_quotas.file", "admin.socket": "weir.yaml:14: admin.socket", "runtime_quotas.store": "runtime_quotas.store"} {
		if got := c.At(field); got != want {
			t.Errorf("%s: %q, want %q", field, got, want)
		}
	}
}

// lines are notes as weir check prints them.
func lines(notes []config.Note) string {
	var b strings.Builder
	for _, n := range notes {
		fmt.Fprintln(&b, n)
	}
	return b.String()
}

// TestOldNames reads the names of earlier versions as those of today, and notes each with its line.
func TestOldNames(t *testing.T) {
	const file = `upstreams:
  app:
    targets: [http://127.0.0.1:3000]
    %s: {failures: 3}
    %s: release
identity:
  client: %s
  %s: [10.0.0.0/8]
%s: {file: q.json}
routes: [{match: [/], upstream: app}]
`
	now, err := config.Parse("names.yaml", fmt.Appendf(nil, file, "passive_health", "on_client_disconnect", "address", "trusted_proxies", "runtime_quotas"))
	if err != nil {
		t.Fatal(err)
	}
	before, err := config.Parse("names.yaml", fmt.Appendf(nil, file, "eject", "on_abandon", "peer", "trusted", "quotas"))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := asJSON(t, before), asJSON(t, now); got != want {
		t.Errorf("old names are read as\n%s\nwant\n%s", got, want)
	}
	notes := lines(before.Notes())
	for _, want := range []string{
		"names.yaml:4:5: warning: upstreams.app.eject: has another name now; the old one is read until 1.0; write passive_health",
		"names.yaml:5:5: warning: upstreams.app.on_abandon", "names.yaml:8:3: warning: identity.trusted", "names.yaml:9:1: warning: quotas",
		`names.yaml:7:11: warning: identity.client: "peer" has another name now; the old one is read until 1.0; write address`,
	} {
		if !strings.Contains(notes, want) {
			t.Errorf("no %q in\n%s", want, notes)
		}
	}
	if strings.Contains(strings.Join(config.Texts(now.Notes()), "\n"), "another name") {
		t.Errorf("names of today are noted: %q", config.Texts(now.Notes()))
	}
	_, err = config.Parse("names.yaml", []byte(config.Minimum+"      gates: []\n  identity: {trusted: [10.0.0.0/8], trusted_proxies: []}\n"))
	if want := "names.yaml:8:14: identity.trusted: is the old name of trusted_proxies, which is written too; leave trusted out"; err == nil || err.Error() != want {
		t.Errorf("both names: %v, want %s", err, want)
	}
}

// quotaFile is a file with a quota and a route; both are flow mappings.
func quotaFile(quota, route string) []byte {
	return fmt.Appendf(nil, "identity: {user: \"header:X-User\"}\nupstreams: {app: {targets: [\"http://127.0.0.1:1\"]}}\ngates: {q: {quota: {%s}}}\nroutes: [{match: [/], gates: [q], upstream: app, %s}]\n", quota, route)
}

// parseAll parses a file and compiles its policy, as the gateway does.
func parseAll(text []byte) (*policy.Policy, error) {
	c, err := config.Parse("weir.yaml", text)
	if err != nil {
		return nil, err
	}
	return policy.Compile(c.Policy(), policy.Options{})
}

// A rate, a burst or a cost that is none is a fault that says where it stands and what
// to write; never a limit that holds nobody.
func TestBadQuotaNumbers(t *testing.T) {
	rates := map[string]string{
		"0/s": "not above 0", "-1/s": "not above 0", "NaN/s": "is not a number", "Inf/s": "is not a number", "1e300/s": "out of range", "1e-300/s": "out of range",
		"0x10/s": "is not a number", "1e400/s": "is not a number", "10/s burst 0": "not above 0", "10/s burst -1": "not above 0", "10/s burst NaN": "is not a number",
		"10/s burst 1e300": "out of range", "10/s burst .5": "lets nothing through", "0 a day": "not above 0", "NaN a day": "is not a number", "": "", "10": "is not a limit",
	}
	for rate, want := range rates {
		for where, quota := range map[string]string{
			"rate":          fmt.Sprintf("rate: %q", rate),
			"limits[1]":     fmt.Sprintf("limits: [1/h, %q]", rate),
			"rules[0].rate": fmt.Sprintf("rules: [{user: alice, rate: %q}]", rate),
		} {
			_, err := parseAll(quotaFile(quota, "timeout: 1s"))
			if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "weir.yaml:3:") && !strings.Contains(err.Error(), "gates.q.quota") {
				t.Errorf("%s %q: %v, want %q", where, rate, err, want)
			}
		}
	}
	for burst, want := range map[string]string{
		"-1": "too small", ".5": "a burst of at least 1", ".nan": "is not a number", ".inf": "is not a number", "1e300": "too large", "2e15": "too large", "ten": "is not a number",
	} {
		if _, err := parseAll(quotaFile("rate: 10/s, burst: "+burst, "timeout: 1s")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("burst %s: %v, want %q", burst, err, want)
		}
	}
	for cost, want := range map[string]string{
		"-1": "too small", "1.5": "is not a whole number", "9223372036854775808": "is not a whole number", "99999999999999999999999": "is not a whole number", "2000000000000000": "too large",
		"1e300": "is not a whole number", ".nan": "is not a whole number", "many": "is not a whole number",
	} {
		if _, err := parseAll(quotaFile("rate: 10/s", "cost: "+cost)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("cost %s: %v, want %q", cost, err, want)
		}
	}
}

// Names that nobody may have are faults that say what the gateway calls such a user; odd
// ones are names like others.
func TestBadQuotaNames(t *testing.T) {
	for name, want := range map[string]string{
		strings.Repeat("x", 10<<10): "no user has this name", `a\0b`: "no user has this name", `a\nb`: "no user has this name",
		"{}": "", "{a}b": "", "a/client=b": "", "~": "", " ": "",
	} {
		p, err := parseAll(quotaFile(fmt.Sprintf("rules: [{user: \"%s\", rate: 1/h}]", name), "timeout: 1s"))
		if want == "" {
			if err != nil {
				t.Errorf("%.20q: %v", name, err)
				continue
			}
			if n := len(p.Gate("q").Quota().Rules()); n != 1 {
				t.Errorf("%.20q: %d rules", name, n)
			}
			p.Close()
			continue
		}
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "sha256:") || len(err.Error()) > 2000 {
			t.Errorf("%.20q: %.300v, want %q", name, err, want)
		}
	}
}

// A check that comes often has as long a timeout as its interval, unless the file says another.
func TestTimeoutOfShortInterval(t *testing.T) {
	const file = "upstreams: {app: {targets: [http://127.0.0.1:1], health_check: {path: /, %s}}}\nroutes: [{match: [/], upstream: app}]\n"
	for settings, want := range map[string]time.Duration{
		"interval: 500ms": 500 * time.Millisecond, "interval: 500ms, timeout: 100ms": 100 * time.Millisecond, "interval: 5s": 2 * time.Second, "timeout: 5s": 5 * time.Second,
	} {
		cfg, err := config.Parse("weir.yaml", fmt.Appendf(nil, file, settings))
		if err != nil {
			t.Errorf("%s: %v", settings, err)
			continue
		}
		if got := cfg.Upstreams["app"].HealthCheck.Timeout; time.Duration(got) != want {
			t.Errorf("%s: a timeout of %v, want %v", settings, got, want)
		}
	}
}
