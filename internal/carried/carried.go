// Package carried has the keys of what gates look for in a context. Adapters know by them when that
// is asked for, and make it no earlier: most handlers ask for other values only.
package carried

// Permit is the key of permits: see weir.WithPermit.
type Permit struct{}

// Scope is the key of what is said of all work in a context: see weir.WithPriority and weir.WithReceived.
type Scope struct{}

// Is reports whether key is one of them.
func Is(key any) bool {
	switch key.(type) {
	case Permit, Scope:
		return true
	}
	return false
}
