package policy

import (
	"github.com/weir-go/weir"
	"github.com/weir-go/weir/keyed"
)

// Pools is what there is to see of a gate with a limit for each key, whether one
// controller moves the limits of all or each key has its own.
type Pools interface {
	// Usage describes the gate, with the top keys by name.
	Usage(top int) keyed.Usage
	// KeyOf returns the key whose pool w draws on, Key describes one and reports
	// whether it is known.
	KeyOf(w weir.Work) string
	Key(key string) (keyed.KeyUse, bool)
}

var (
	_ Pools = (*keyed.Gate)(nil)
	_ Pools = (*keyed.Limiters)(nil)
)

// Pools returns the gate's pools by key, nil for gates that have none, and for those
// whose pools are of reads and writes only (see [Gate.Parts]). They know
// nothing of the gate's mode.
func (g *Gate) Pools() Pools {
	if g.kind == readWrite {
		return nil
	}
	p, _ := g.mechanism.(Pools)
	return p
}
