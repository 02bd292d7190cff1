// Package deptest holds what the compiler does not: which package may import
// which, that the library needs nothing but the standard library, that every
// exported name is documented and every package shows an example, and that
// library code neither prints, sleeps nor panics.
//
// It has tests only. The arrows it holds are drawn in docs/DESIGN.md.
package deptest
