//go:build integration

package main

import (
	"os"
	"testing"
	"time"
)

func TestWalkBroker(t *testing.T) {
	b, err := startKafka(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer b.Stop()
	os.WriteFile("/tmp/walk/addr", []byte(b.Addr), 0o600)
	for i := 0; i < 900; i++ {
		if _, err := os.Stat("/tmp/walk/addr"); err != nil {
			return
		}
		time.Sleep(time.Second)
	}
}
