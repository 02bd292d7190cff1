// Weir is a gateway that admits no more requests than the servers behind it can
// carry. See weir help.
package main

import (
	"os"

	"github.com/weir-go/weir/gateway/internal/cli"
	_ "golang.org/x/crypto/x509roots/fallback" // for machines and images that have no certificates of authorities
)

// version is set by the linker.
var version = ""

func main() { os.Exit(cli.Main(os.Args[1:], version)) }
