package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

const containerfile = "../../../packaging/Containerfile"

// What is published runs without a shell and not as root, and tells whether it is healthy.
func TestContainerfile(t *testing.T) {
	text, err := os.ReadFile(containerfile)
	if err != nil {
		t.Fatal(err)
	}
	p, err := parse("Containerfile", string(text))
	if err != nil {
		t.Fatal(err)
	}
	want := config{
		User: "65532:65532", ExposedPorts: map[string]struct{}{"8080/tcp": {}},
		Entrypoint: []string{"/weir"}, Cmd: []string{"run", "/etc/weir/weir.yaml"},
		Healthcheck: &healthcheck{Test: []string{"CMD", "/weir", "status"}, Interval: 10 * time.Second, Timeout: 2 * time.Second},
		Labels:      p.config.Labels,
	}
	if !reflect.DeepEqual(p.config, want) || len(p.config.Labels) == 0 {
		t.Errorf("got %+v, want %+v and labels", p.config, want)
	}
	if want := []copied{{"bin/weir", "/weir"}, {"LICENSE", "/LICENSE"}}; !reflect.DeepEqual(p.copies, want) {
		t.Errorf("it copies %v, want %v", p.copies, want)
	}
}

// What docker build would do and this program would not is refused, with its line.
func TestContainerfileFaults(t *testing.T) {
	for _, tt := range []struct{ line, want string }{
		{"RUN ls", ":2: RUN: this instruction is not known here"},
		{"FROM debian", ":2: FROM: this instruction is not known here"},
		{"COPY --from=build /weir /weir", ":2: COPY: want one file"},
		{"COPY a b", ":2: COPY: want one file"},
		{"COPY bin/* /bin/", ":2: COPY: want one file"},
		{"CMD run /etc/weir/weir.yaml", ":2: CMD: the image has no shell"},
		{"ENTRYPOINT []", ":2: ENTRYPOINT: the image has no shell"},
		{"USER $UID", ":2: USER: variables are not known here"},
		{`EXPOSE 8080 \`, ":2: EXPOSE: write the instruction on one line"},
		{`LABEL title="a b"`, ":2: LABEL: title=\"a: want KEY=VALUE"},
		{"HEALTHCHECK NONE", ":2: HEALTHCHECK: want CMD"},
		{`HEALTHCHECK --retries=3 CMD ["/weir"]`, ":2: HEALTHCHECK: flag provided but not defined: -retries"},
		{`HEALTHCHECK soon CMD ["/weir"]`, ":2: HEALTHCHECK: soon is not an option"},
		{"", "there is no ENTRYPOINT"},
	} {
		if _, err := parse("f", "FROM scratch\n"+tt.line+"\n"); err == nil || !strings.HasPrefix(err.Error(), "f"+tt.want) && !strings.HasSuffix(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %s", tt.line, err, tt.want)
		}
	}
	if _, err := parse("f", "USER 1\n"); err == nil || !strings.Contains(err.Error(), "f:1: USER: the first instruction must be FROM scratch") {
		t.Errorf("without FROM: %v", err)
	}
}

// The archive is the same each time, and its names are what the contents add up to.
func TestArchive(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "bin"), 0o755),
		os.WriteFile(filepath.Join(dir, "bin", "weir"), []byte("program"), 0o755), os.WriteFile(filepath.Join(dir, "LICENSE"), []byte("licence"), 0o600)); err != nil {
		t.Fatal(err)
	}
	b := build{file: containerfile, context: dir, arch: "arm64", tag: "weir:1", made: time.Unix(1700000000, 0).UTC()}
	first, err := b.archive()
	if err != nil {
		t.Fatal(err)
	}
	if second, err := b.archive(); err != nil || !bytes.Equal(first, second) {
		t.Errorf("the second archive is another; %v", err)
	}

	members := unpack(t, first)
	var list []struct {
		Config           string
		RepoTags, Layers []string
	}
	if err := json.Unmarshal(members["manifest.json"], &list); err != nil || len(list) != 1 || len(list[0].Layers) != 1 {
		t.Fatalf("%v: %s", err, members["manifest.json"])
	}
	about, layer := members[list[0].Config], members[list[0].Layers[0]]
	if digest(about)+".json" != list[0].Config || digest(layer)+".tar.gz" != list[0].Layers[0] {
		t.Errorf("the names %v are not the digests", list)
	}
	var doc document
	if err := json.Unmarshal(about, &doc); err != nil {
		t.Fatal(err)
	}
	files, err := b.layer([]copied{{"bin/weir", "/weir"}, {"LICENSE", "/LICENSE"}})
	if err != nil {
		t.Fatal(err)
	}
	if doc.Architecture != "arm64" || !reflect.DeepEqual(doc.RootFS.DiffIDs, []string{"sha256:" + digest(files)}) {
		t.Errorf("the configuration is %+v", doc)
	}
	if got := unpack(t, files); string(got["weir"]) != "program" || string(got["LICENSE"]) != "licence" {
		t.Errorf("the layer has %q", got)
	}
}

func unpack(t *testing.T, archive []byte) map[string][]byte {
	t.Helper()
	got := map[string][]byte{}
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := r.Next()
		if err == io.EOF {
			return got
		}
		if err != nil {
			t.Fatal(err)
		}
		if want := map[bool]int64{true: 0o755, false: 0o644}[h.Name == "weir"]; h.Mode != want || h.Uid != 0 {
			t.Errorf("%s has the mode %o and the owner %d", h.Name, h.Mode, h.Uid)
		}
		if got[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}
