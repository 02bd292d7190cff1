package freeport

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
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
	if addr, err := r.Addr(); err == nil || !strings.Contains(err.Error(), "fewer than 1 in a row are free of the ports from 31950 to 31950") {
		t.Errorf("%q, %v", addr, err)
	}
}

// Whoever asks next gets none of the ports in a row that another one got.
func TestPortsApart(t *testing.T) {
	r := Range{First: 31_980, Size: 15}
	var last uint32
	for _, n := range []uint32{2, 1, 3, 1, 2} {
		first, err := r.Ports(n)
		if err != nil {
			t.Fatal(err)
		}
		if last != 0 && first <= last && first > last-5 {
			t.Errorf("%d ports from %d on, and the ones before end at %d", n, first, last)
		}
		last = first + n - 1
	}
}

// Ports in a row are within the range, and nobody listens on any of them.
func TestPorts(t *testing.T) {
	r := Range{First: 31_970, Size: 9}
	l, err := net.Listen("tcp", address(31_974))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for range 20 {
		first, err := r.Ports(3)
		if err != nil || first < 31_970 || first+2 > 31_978 || first <= 31_974 && first+2 >= 31_974 {
			t.Fatalf("%d, %v with port 31974 taken", first, err)
		}
	}
	if first, err := r.Ports(5); err == nil {
		t.Errorf("five in a row from %d, where there are four", first)
	}
}

// Two processes get different ports, also before anybody listens. A port comes back with the end of its process.
func TestAddrsOfTwoProcesses(t *testing.T) {
	if os.Getenv("WEIR_ASKS_FOR_PORTS") != "" {
		r := Range{First: 31_960, Size: 2}
		addr, err := r.Addr()
		fmt.Println(addr, err)
		_, _ = io.Copy(io.Discard, os.Stdin) // it ends with the test
		os.Exit(0)
	}
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has names that end with their process")
	}
	got := map[string]bool{}
	for range 2 {
		asks := exec.Command(os.Args[0], "-test.run=^TestAddrsOfTwoProcesses$")
		asks.Env = append(os.Environ(), "WEIR_ASKS_FOR_PORTS=1")
		in, _ := asks.StdinPipe()
		out, _ := asks.StdoutPipe()
		if err := asks.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = asks.Wait() }()
		defer in.Close()
		line, _ := bufio.NewReader(out).ReadString('\n')
		got[line] = true
	}
	if !got[address(31_960)+" <nil>\n"] || !got[address(31_961)+" <nil>\n"] {
		t.Errorf("two processes were given %q", slices.Collect(maps.Keys(got)))
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
