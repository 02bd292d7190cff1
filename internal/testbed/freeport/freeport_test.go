package freeport

import (
	"fmt"
	"net"
	"os/exec"
	"strings"
	"sync"
	"testing"
)

// A port where somebody listens is passed over, and so is one whose bus is taken.
func TestAddr(t *testing.T) {
	r := Range{First: 31_900, Size: 4, Bus: 10}
	seen := map[string]bool{}
	for range 4 {
		addr, err := r.Addr()
		if err != nil {
			t.Fatal(err)
		}
		seen[addr] = true
	}
	if len(seen) != 4 {
		t.Fatalf("%d addresses, want 4: %v", len(seen), seen)
	}
	for _, taken := range []uint32{31_901, 31_912} {
		l, err := net.Listen("tcp", address(taken))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
	}
	for range 8 {
		addr, err := r.Addr()
		if err != nil || addr != address(31_900) && addr != address(31_903) {
			t.Fatalf("%q, %v with ports 31901 and 31912 taken", addr, err)
		}
	}
}

func TestAddrOfFullRange(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:31950")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	r := Range{First: 31_950, Size: 1}
	if addr, err := r.Addr(); err == nil || !strings.Contains(err.Error(), "no port from 31950 to 31950 is free") {
		t.Errorf("%q, %v", addr, err)
	}
}

// A port can be used at once, also while other processes are being started.
func TestAddrBesideForks(t *testing.T) {
	r := Range{First: 31_000, Size: 800}
	stop := make(chan struct{})
	var starters sync.WaitGroup
	for range 4 {
		starters.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					_ = exec.Command("true").Run()
				}
			}
		})
	}
	var faults []string
	for range 400 {
		addr, err := r.Addr()
		if err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("tcp", addr)
		if err != nil {
			faults = append(faults, fmt.Sprint(err))
			continue
		}
		l.Close()
	}
	close(stop)
	starters.Wait()
	if len(faults) > 0 {
		t.Errorf("%d of 400 ports were taken, the first: %s", len(faults), faults[0])
	}
}
