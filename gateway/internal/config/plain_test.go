package config_test

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// What weir check says is read by somebody who is stuck: no sentence of it has more than 25 words, which is
// what the docs are held to. TestTextsArePlain of internal/deptest reads literals. This one reads the golden files,
// where messages stand as a user gets them, and no semicolon ends a sentence.
func TestMessagesArePlain(t *testing.T) {
	judged := 0
	for _, pattern := range []string{"testdata/mistakes/*.txt", "testdata/faults/*.want"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("no files are %s: %v", pattern, err)
		}
		for _, file := range files {
			for _, m := range message.FindAllStringSubmatch(string(read(t, file)), -1) {
				judged++
				for _, s := range sentenceEnd.Split(oneWord(m[1]), -1) {
					if n := len(strings.Fields(s)); n > 25 {
						t.Errorf("%s: %d words, and 25 are the most: %s\nin %s", file, n, s, m[1])
					}
				}
			}
		}
	}
	if judged < 300 {
		t.Errorf("only %d messages were found", judged)
	}
}

var (
	message     = regexp.MustCompile(`(?m)^(?:[\w.-]+:)?\d+:\d+: (?:warning: )?(.*)$`)
	sentenceEnd = regexp.MustCompile(`[.!?]["')]*\s+`)
	inQuotes    = regexp.MustCompile("\"(?:[^\"\\\\]|\\\\.)*\"|`[^`]*`")
	inBraces    = regexp.MustCompile(`\{[^{}]*\}|\[[^\[\]]*\]`)
)

// oneWord writes one word for each text in quotes and each group of YAML.
func oneWord(text string) string {
	text = inQuotes.ReplaceAllString(text, "code")
	for inBraces.MatchString(text) {
		text = inBraces.ReplaceAllString(text, "code")
	}
	return text
}
