package live

import (
	"fmt"
	"os"
	"testing"
)

// TestMain lets the test's own binary play the roles, as the command does.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "-role" {
		if err := serveRole(os.Args[2], os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}
