//go:build !unix

package weirhttp

// pollNetwork has no way to wait for a poll on this platform.
func pollNetwork() {}
