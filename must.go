package weir

// Must returns v, and panics if err is not nil. It is for gates kept in package
// variables, whose configuration is a constant of the program.
func Must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
