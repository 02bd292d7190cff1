// Package integration runs the built gateway in front of servers that are not
// ours: Debian's nginx, for the protocol and for speed, and gunicorn with a
// fixed number of sync workers, which is a pool of known capacity. Load comes
// from vegeta, whose attacks are open loops: they keep their rate whatever the
// gateway does. HTTP/2 that the clients of net/http hide, or never speak, goes
// frame by frame.
//
// The tests carry the build tag integration, and `make test` always runs them.
// It installs the servers first (make parts); one that is missing is a
// failure, not a skip. Every process runs on loopback, on a free port, in a
// process group of its own that its test ends.
package integration
