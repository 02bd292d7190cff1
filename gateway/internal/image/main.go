// Image builds a container image from a container file without a container engine. The image is one
// layer with the files that the container file copies, and the configuration that it states. The same
// input gives the same bytes, which engines do not promise. The archive is what docker load and podman
// load read.
//
//	image -file packaging/Containerfile -context DIR -arch amd64 -time SECONDS -tag weir:VERSION -o FILE
//
// It knows the instructions that the gateway's container file uses, and refuses any other by its line.
// So it builds what docker build does, or nothing; scripts/test-image compares it with podman.
package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

func main() {
	var b build
	var seconds int64
	var out string
	flag.StringVar(&b.file, "file", "packaging/Containerfile", "the container file")
	flag.StringVar(&b.context, "context", ".", "the directory that it copies from")
	flag.StringVar(&b.arch, "arch", "amd64", "the processor that the image is for, as in GOARCH")
	flag.Int64Var(&seconds, "time", 0, "when the image was made, in seconds since 1970")
	flag.StringVar(&b.tag, "tag", "weir:devel", "the image's name, NAME:TAG")
	flag.StringVar(&out, "o", "", "the archive to write")
	flag.Parse()
	b.made = time.Unix(seconds, 0).UTC()
	archive, err := b.archive()
	if err == nil {
		err = os.WriteFile(out, archive, 0o644)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "image: %v\n", err)
		os.Exit(1)
	}
}

// build is what an image is made of.
type build struct {
	file, context, arch, tag string
	made                     time.Time
}

// document is the configuration of an image, as engines read it.
type document struct {
	Architecture string    `json:"architecture"`
	OS           string    `json:"os"`
	Created      time.Time `json:"created"`
	Config       config    `json:"config"`
	RootFS       struct {
		Type    string   `json:"type"`
		DiffIDs []string `json:"diff_ids"`
	} `json:"rootfs"`
	History []history `json:"history"`
}

type history struct {
	Created   time.Time `json:"created"`
	CreatedBy string    `json:"created_by"`
}

// archive returns the image: its configuration, its layer, and a list of the two.
func (b *build) archive() ([]byte, error) {
	text, err := os.ReadFile(b.file)
	if err != nil {
		return nil, err
	}
	plan, err := parse(b.file, string(text))
	if err != nil {
		return nil, err
	}
	files, err := b.layer(plan.copies)
	if err != nil {
		return nil, err
	}
	doc := document{Architecture: b.arch, OS: "linux", Created: b.made, Config: plan.config, History: []history{{b.made, filepath.Base(b.file)}}}
	doc.RootFS.Type, doc.RootFS.DiffIDs = "layers", []string{"sha256:" + digest(files)}
	about, err := json.Marshal(doc)
	if err != nil {
		return nil, err
	}
	packed, err := compress(files)
	if err != nil {
		return nil, err
	}
	manifest := []struct {
		Config           string
		RepoTags, Layers []string
	}{{digest(about) + ".json", []string{b.tag}, []string{digest(packed) + ".tar.gz"}}}
	list, err := json.Marshal(manifest)
	if err != nil {
		return nil, err
	}
	return pack(b.made, []member{
		{manifest[0].Config, 0o644, about},
		{manifest[0].Layers[0], 0o644, packed},
		{"manifest.json", 0o644, list},
	})
}

// layer returns the copied files. They belong to root, and everybody may read them.
func (b *build) layer(copies []copied) ([]byte, error) {
	var files []member
	for _, c := range copies {
		name := filepath.Join(b.context, c.from)
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		info, err := os.Stat(name)
		if err != nil {
			return nil, err
		}
		mode := int64(0o644)
		if info.Mode()&0o111 != 0 {
			mode = 0o755
		}
		files = append(files, member{c.to[1:], mode, text})
	}
	return pack(b.made, files)
}

// member is a file in an archive.
type member struct {
	name string
	mode int64
	text []byte
}

// pack returns the files as a tar archive.
func pack(made time.Time, files []member) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range files {
		if err := w.WriteHeader(&tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.text)), ModTime: made, Format: tar.FormatUSTAR}); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.text); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func compress(text []byte) ([]byte, error) {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(text); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func digest(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}
