package config_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/policy"
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
			var faults *config.Faults
			if !errors.As(err, &faults) {
				t.Fatalf("error is %v, want *Faults", err)
			}
			golden(t, strings.TrimSuffix(file, ".yaml")+".want", faults.Error()+"\n")
		})
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

// TestStarter reads the file that weir init writes, as it is and with every
// setting in it switched on.
func TestStarter(t *testing.T) {
	if _, err := config.Parse("starter.yaml", config.Starter); err != nil {
		t.Errorf("as it is:\n%v", err)
	}
	on := regexp.MustCompile(`(?m)^(\s*)#(\S)`).ReplaceAllString(string(config.Starter), "$1$2")
	cfg, err := config.Parse("starter.yaml", []byte(on))
	if err != nil {
		t.Fatalf("with every setting on:\n%v\n%s", err, on)
	}
	if cfg.State.File == "" || cfg.Identity.Tenant == "" || cfg.Upstreams["app"].Limit == nil {
		t.Errorf("switching the settings on had no effect: %+v", cfg)
	}
	schema, err := config.Schema()
	if err != nil {
		t.Fatal(err)
	}
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
			if !regexp.MustCompile(`\b` + key + `:`).MatchString(string(config.Starter)) {
				t.Errorf("the starter does not mention %s", key)
			}
		}
	}
}

// TestSchemaAgrees holds the schema against the same files as the decoder: it
// lets through what is right, and refuses what is wrong in form.
func TestSchemaAgrees(t *testing.T) {
	text, err := config.Schema()
	if err != nil {
		t.Fatal(err)
	}
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
	if err := validate(config.Starter); err != nil {
		t.Errorf("starter: %v", err)
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
	f("limit: {queue: {order: %s}}", policy.Orders())
	f("limit: {signals: [%s]}", policy.SignalKinds())
	for _, m := range policy.Modes() {
		f("mode: %s", []string{string(m)})
	}
}

// TestControllersGuide holds the guide to controllers and signals against their
// words, and reads the parts of files in it.
func TestControllersGuide(t *testing.T) {
	guide := string(read(t, "../../../docs/guides/controllers.md"))
	for _, word := range policy.Controllers() {
		if !strings.Contains(guide, "\n## "+word+"\n") {
			t.Errorf("no section for the controller %s", word)
		}
	}
	for _, word := range policy.SignalKinds() {
		plain := strings.TrimSuffix(strings.TrimPrefix(word, "cgroup_"), "_full")
		if !strings.Contains(guide, "| `"+plain+"`") && !strings.Contains(guide, ", `"+plain+"`") {
			t.Errorf("no row for the signal %s", word)
		}
	}
	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(guide, -1)
	if len(blocks) == 0 {
		t.Error("no part of a file")
	}
	for _, b := range blocks {
		text := "upstreams: {app: {targets: [http://127.0.0.1:3000]}}\nroutes: [{match: [/], upstream: app}]\n" + b[1]
		if _, err := config.Parse("guide.yaml", []byte(text)); err != nil {
			t.Errorf("%v\nin\n%s", err, b[1])
		}
	}
}

// TestGatewayGuide reads the files, and parts of files, in the guide to the gateway.
func TestGatewayGuide(t *testing.T) {
	guide := string(read(t, "../../../docs/guides/gateway.md"))
	for _, b := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(guide, -1) {
		text := b[1]
		if strings.Contains(text, "tls:") {
			continue // names files that are not here
		}
		for _, part := range []string{
			"upstreams: {app: {targets: [http://127.0.0.1:3000]}}", "routes: [{match: [/], upstream: app}]", "gates: {all: {limit: {}}}",
		} {
			if key, _, _ := strings.Cut(part, " "); !strings.HasPrefix(text, key) && !strings.Contains(text, "\n"+key) {
				text = part + "\n" + text
			}
		}
		if _, err := config.Parse("guide.yaml", []byte(text)); err != nil {
			t.Errorf("%v\nin\n%s", err, text)
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
