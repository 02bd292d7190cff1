// Package deptest holds rules that the compiler does not: which package may import
// which, and that the library needs nothing but the standard library. Every exported
// name is documented, and every package that users import shows an example. Library
// code does not print, sleep or panic.
//
// It has tests only. The arrows it holds are drawn in docs/DESIGN.md.
package deptest
