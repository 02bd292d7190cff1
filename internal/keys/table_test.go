package keys

import (
	"fmt"
	"hash/maphash"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"unsafe"
)

var seed = maphash.MakeSeed()

func find(t *Table, key string) (uint32, bool) {
	n := NameOf(key)
	return t.Find(n.hash(seed), &n)
}

func add(t *Table, key string) uint32 {
	n := NameOf(key)
	return t.Add(n.hash(seed), &n, uint8(len(key)))
}

func TestNames(t *testing.T) {
	long := strings.Repeat("ü", 5000)
	for _, c := range []struct{ key, want string }{
		{"", ""},
		{"acme", "acme"},
		{"123e4567-e89b-12d3-a456-426614174000", "123e4567-e89b-12d3-a456-426614174000"},
		{"123e4567-e89b-12d3-a456-4266141740001", "123e4567-e89b-12…2ccf6054"},
		{long, "üüüüüüüü…"},
		{"a" + long, "aüüüüüüü…"}, // half of a letter is left out
	} {
		n := NameOf(c.key)
		if got := n.String(); !strings.HasPrefix(got, c.want[:min(len(c.want), 16)]) {
			t.Errorf("%.40q is called %q, want %q", c.key, got, c.want)
		}
		if same := NameOf(strings.Clone(c.key)); same != n || same.hash(seed) != n.hash(seed) {
			t.Errorf("%.40q has two names", c.key)
		}
	}
}

// What differs has different names: by a NUL at the end, by what a long key has
// behind its first bytes, and where a short key looks like the name of a long one.
func TestNamesDiffer(t *testing.T) {
	long := strings.Repeat("x", 10<<10)
	n := NameOf(long)
	keys := []string{"", "\x00", "\x00\x00", "a", "a\x00", long, long + "y", long[:len(long)-1], string(n.b[:])}
	seen := map[Name]string{}
	for _, k := range keys {
		n := NameOf(k)
		if other, ok := seen[n]; ok {
			t.Errorf("%.20q and %.20q have the same name", k, other)
		}
		seen[n] = k
	}
}

func TestSizes(t *testing.T) {
	if size := unsafe.Sizeof(Entry{}); size*chunkLen != chunkSize {
		t.Errorf("an entry takes %d bytes", size)
	}
	for _, n := range []int{1 << 10, 20_000, 100_000} {
		table := New(seed)
		for i := range n {
			add(&table, fmt.Sprintf("tenant-%d", i))
		}
		// Beside the last chunk, which may be empty but for one entry.
		if per := float64(table.Bytes()-chunkSize) / float64(n); per > 64.5 {
			t.Errorf("%d keys take %.1f bytes each", n, per)
		}
	}
}

// A clock that comes by evicts who has not been seen since it last came by, and
// nobody who holds something.
func TestEvictsTheIdle(t *testing.T) {
	table := New(seed)
	if table.Evict() {
		t.Error("evicted from an empty table")
	}
	for _, k := range []string{"holds", "holds most", "old", "young"} {
		add(&table, k)
	}
	table.Hold(0, 1)
	if got := table.Hold(1, math.MaxInt64/2); got != MaxHeld || table.Hold(1, 1) != 0 || table.At(1).Held() != MaxHeld {
		t.Errorf("holds %d", got)
	}
	if !table.Evict() { // everybody was new; the first round ends with the oldest
		t.Fatal("nobody went")
	}
	if _, ok := find(&table, "old"); ok {
		t.Error("the oldest stayed")
	}
	find(&table, "young")
	if !table.Evict() || table.Evict() || table.Len() != 2 {
		t.Errorf("%d left", table.Len())
	}
	for _, k := range []string{"holds", "holds most"} {
		if _, ok := find(&table, k); !ok {
			t.Errorf("%q went", k)
		}
	}
	if slot := add(&table, "new"); slot > 3 || table.At(slot).Held() != 0 {
		t.Errorf("a slot that is free was not used: %d", slot)
	}
}

// run does what the bytes say to a table and to a map, over few keys and with a
// poor hash, so that cells collide.
func run(t *testing.T, ops []byte) {
	table := New(seed)
	model := map[string]uint32{} // what each key holds
	hash := func(n *Name) uint64 { return n.hash(seed) & 0xc0000007 }
	for _, op := range ops {
		key := fmt.Sprint(op & 0x3f)
		if op&1 != 0 {
			key = strings.Repeat(key, 30)
		}
		n := NameOf(key)
		slot, ok := table.Find(hash(&n), &n)
		if _, want := model[key]; ok != want {
			t.Fatalf("%.8q: found %v, want %v", key, ok, want)
		}
		switch op >> 6 {
		case 0, 1:
			if !ok {
				slot = table.Add(hash(&n), &n, uint8(len(key)))
			}
			table.Hold(slot, 1)
			model[key]++
		case 2:
			if ok && model[key] > 0 {
				table.Hold(slot, -1)
				model[key]--
			}
		case 3:
			evict(t, &table, model)
		}
		compare(t, &table, model)
	}
}

func evict(t *testing.T, table *Table, model map[string]uint32) {
	idle := 0
	for _, held := range model {
		if held == 0 {
			idle++
		}
	}
	if table.Idle() != idle || table.Evict() != (idle > 0) {
		t.Fatalf("with %d idle", idle)
	}
	if idle == 0 {
		return
	}
	there := map[Name]bool{}
	table.All(func(_ uint32, e *Entry) bool {
		there[e.name] = true
		return true
	})
	for key, held := range model {
		if there[NameOf(key)] {
			continue
		}
		if held > 0 {
			t.Fatalf("%.8q was evicted with %d in flight", key, held)
		}
		delete(model, key)
	}
}

func compare(t *testing.T, table *Table, model map[string]uint32) {
	if table.Len() != len(model) {
		t.Fatalf("%d keys, want %d", table.Len(), len(model))
	}
	n := 0
	table.All(func(slot uint32, e *Entry) bool {
		n++
		return true
	})
	for key, held := range model {
		name := NameOf(key)
		slot, ok := table.Find(name.hash(seed)&0xc0000007, &name)
		if !ok || table.At(slot).Held() != int64(held) || table.At(slot).Group() != uint8(len(key)%Groups) {
			t.Fatalf("%.8q: %v, want %d in flight", key, ok, held)
		}
	}
	if n != len(model) {
		t.Fatalf("%d entries, want %d", n, len(model))
	}
}

func TestTableIsAMap(t *testing.T) {
	for s := range uint64(15) {
		rng := rand.New(rand.NewPCG(s, 1))
		ops := make([]byte, 400)
		for i := range ops {
			ops[i] = byte(rng.Uint32())
		}
		run(t, ops)
	}
}

func FuzzTable(f *testing.F) {
	f.Add([]byte{1, 2, 3, 0x81, 0xc0, 1, 0xff})
	f.Fuzz(func(t *testing.T, ops []byte) { run(t, ops[:min(len(ops), 1000)]) })
}
