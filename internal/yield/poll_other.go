//go:build !unix

package yield

// pollNetwork has no way to wait for a poll on this platform.
func pollNetwork() {}
