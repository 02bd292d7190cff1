//go:build integration

package kafka

import (
	"archive/zip"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// definition is one of Kafka's own descriptions of a message. Its field names are Kafka's.
type definition struct {
	ApiKey                int16
	Type, Name            string
	Listeners             []string
	ValidVersions         string
	FlexibleVersions      string
	LatestVersionUnstable bool
	Fields, CommonStructs []field
}

type field struct {
	Name, Type, Versions string
	Fields               []field
}

// betweenBrokers are the APIs that a broker's listener has and clients are not offered.
var betweenBrokers = []int16{27, 83, 84, 85, 86, 87}

// notOfBrokers are the hosts in answers that do not belong to brokers. They are of clients, of rights, and of members of a streams group.
var notOfBrokers = map[int16][]string{
	15: {"ClientHost"}, 69: {"ClientHost"}, 77: {"ClientHost"}, 89: {"ClientHost", "Host"}, 29: {"Host"}, 31: {"Host"}, 88: {"Host"},
}

// The offered APIs agree with the definitions of the newest known Kafka. Clients are offered every API for clients, up to the newest stable
// version. Each answer with a broker's host is rewritten.
func TestDefinitions(t *testing.T) {
	requests, answers := definitions(t)
	less := map[int16]string{1: "answers from 16 on name nodes", 55: "answers from 2 on name controllers"}
	for key, request := range requests {
		of, ok := offered[key]
		switch client := slices.Contains(request.Listeners, "broker") && !slices.Contains(betweenBrokers, key); {
		case !client && ok:
			t.Errorf("%s (%d) is offered, and it is between brokers", request.Name, key)
		case client && !ok:
			t.Errorf("%s (%d) is not offered, and nobody has said that it is between brokers", request.Name, key)
		}
		if !ok {
			continue
		}
		_, newest := versions(t, request.ValidVersions)
		if request.LatestVersionUnstable {
			newest--
		}
		if _, fewer := less[key]; of.max > newest || of.max < newest && !fewer {
			t.Errorf("%s (%d) is offered up to version %d, and Kafka has %d", request.Name, key, of.max, newest)
		}
		checkHosts(t, key, of, answers[key])
		checkFlexible(t, key, of, request, answers[key])
	}
	for key := range offered {
		if _, ok := requests[key]; !ok {
			t.Errorf("API %d is offered, and Kafka does not know it", key)
		}
	}
}

// checkHosts checks that an answer that is not rewritten names no host of a broker.
func checkHosts(t *testing.T, key int16, of span, answer definition) {
	t.Helper()
	for _, fields := range [][]field{answer.Fields, answer.CommonStructs} {
		for _, f := range flat(fields) {
			if !strings.Contains(f.Name, "Host") || slices.Contains(notOfBrokers[key], f.Name) {
				continue
			}
			first, last := versions(t, f.Versions)
			for version := max(of.min, first); version <= min(of.max, last); version++ {
				if r := (request{key: key, version: version}); !r.decoded() {
					t.Errorf("%s names a %s in version %d, and is not rewritten", answer.Name, f.Name, version)
				}
			}
		}
	}
}

// checkFlexible checks that messages are read as Kafka writes them, so that no field is read at a wrong offset.
func checkFlexible(t *testing.T, key int16, of span, request, answer definition) {
	t.Helper()
	ours := kmsg.RequestForKey(key)
	if ours == nil || of.max > ours.MaxVersion() {
		t.Errorf("%s is offered up to version %d, which kmsg does not know", request.Name, of.max)
		return
	}
	for version := of.min; version <= of.max; version++ {
		ours.SetVersion(version)
		if first, _ := versions(t, request.FlexibleVersions); ours.IsFlexible() != (version >= first) {
			t.Errorf("version %d of %s is flexible in one of kmsg and Kafka", version, request.Name)
		}
		resp := ours.ResponseKind()
		resp.SetVersion(version)
		if first, _ := versions(t, answer.FlexibleVersions); resp.IsFlexible() != (version >= first) {
			t.Errorf("version %d of %s is flexible in one of kmsg and Kafka", version, answer.Name)
		}
	}
}

// flat returns fields and those within them.
func flat(fields []field) (all []field) {
	for _, f := range fields {
		all = append(append(all, f), flat(f.Fields)...)
	}
	return all
}

// versions reads "2", "0-5", "4+" or "none".
func versions(t *testing.T, s string) (first, last int16) {
	t.Helper()
	const never = 1<<15 - 1
	if s == "none" {
		return never, never
	}
	from, to, ranged := strings.Cut(strings.TrimSuffix(s, "+"), "-")
	if !ranged {
		to = from
	}
	if strings.HasSuffix(s, "+") {
		to = strconv.Itoa(never)
	}
	a, err := strconv.ParseInt(from, 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	b, err := strconv.ParseInt(to, 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	return int16(a), int16(b)
}

// comment finds comments of a definition. It matches strings as well, so that a comment sign within a string does not count.
var comment = regexp.MustCompile(`"(?:[^"\\\n]|\\.)*"|//[^\n]*`)

// definitions returns the definitions of requests and answers in the jar of Kafka's clients, by their keys.
func definitions(t *testing.T) (requests, answers map[int16]definition) {
	t.Helper()
	jars, err := filepath.Glob("../../../.cache/kafka/kafka-clients-*.jar")
	if err != nil {
		t.Fatal(err)
	}
	if len(jars) != 1 {
		if os.Getenv("CI") != "" {
			t.Fatalf("there are %d jars of kafka-clients in .cache/kafka, not one", len(jars))
		}
		t.Skip("there is no jar of kafka-clients in .cache/kafka: make parts fetches it, with Java 17 and Maven")
	}
	jar, err := zip.OpenReader(jars[0])
	if err != nil {
		t.Fatal(err)
	}
	defer jar.Close()
	kinds := map[string]map[int16]definition{"request": {}, "response": {}}
	for _, file := range jar.File {
		if !strings.HasPrefix(file.Name, "common/message/") || !strings.HasSuffix(file.Name, ".json") {
			continue
		}
		var d definition
		if err := readDefinition(file, &d); err != nil {
			t.Fatalf("%s: %v", file.Name, err)
		}
		if kind := kinds[d.Type]; kind != nil && d.ValidVersions != "none" {
			kind[d.ApiKey] = d
		}
	}
	if len(kinds["request"]) < len(offered) {
		t.Fatalf("%s has %d requests, less than the %d that are offered", jars[0], len(kinds["request"]), len(offered))
	}
	return kinds["request"], kinds["response"]
}

func readDefinition(file *zip.File, d *definition) error {
	r, err := file.Open()
	if err != nil {
		return err
	}
	defer r.Close()
	text, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	text = comment.ReplaceAllFunc(text, func(b []byte) []byte {
		if b[0] == '"' {
			return b
		}
		return nil
	})
	return json.Unmarshal(text, d)
}

// No offered answer passes a broker's host on, wherever kmsg has a host in it. kmsg writes a tag in every flexible version, even if Kafka
// has it only in later ones: in Fetch from 16 on, in Produce from 10 on.
func TestNoHostGetsThrough(t *testing.T) {
	to := func(id int32, host string, port int32) (string, int32, bool) { return "gateway", 9100, true }
	for key, of := range offered {
		for version := of.min; version <= of.max; version++ {
			if key == 1 || key == keyProduce && version < produceNamesNodes {
				continue
			}
			resp := kmsg.ResponseForKey(key)
			resp.SetVersion(version)
			fill(reflect.ValueOf(resp).Elem(), notOfBrokers[key])
			answer := []byte{0, 0, 0, 7}
			if resp.IsFlexible() && key != keyApiVersions {
				answer = append(answer, 0)
			}
			answer = resp.AppendTo(answer)
			what := fmt.Sprintf("version %d of an answer to %s", version, kmsg.NameForKey(key))
			if r := (request{key: key, version: version}); r.decoded() {
				var err error
				if answer, err = r.rewrite(answer, to); err != nil {
					t.Errorf("%s: %v", what, err)
				}
			}
			if strings.Contains(string(answer), "secret") {
				t.Errorf("%s names a broker's host", what)
			}
		}
	}
}

// fill gives each array of an answer one element, and each host that may be a broker's a name.
func fill(v reflect.Value, except []string) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			f, name := v.Field(i), v.Type().Field(i).Name
			if f.Kind() == reflect.String && strings.Contains(name, "Host") && !slices.Contains(except, name) {
				f.SetString("secret")
			} else if name != "Version" && f.CanSet() {
				fill(f, except)
			}
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() != reflect.Uint8 {
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
			fill(v.Index(0), except)
		}
	case reflect.Pointer:
		if v.Type().Elem().Kind() == reflect.Struct {
			v.Set(reflect.New(v.Type().Elem()))
			fill(v.Elem(), except)
		}
	}
}
