package config

import (
	"flag"
)

var update = flag.Bool("update", false, "write the golden files anew; read the diff before committing it")

func updating() bool { return *update }

// Updating tells the tests outside the package whether -update was given.
var Updating = updating

// MaxValues is how many values a file may hold.
const MaxValues = maxValues
