package config

import (
	"flag"
)

var update = flag.Bool("update", false, "write the golden files anew; read the diff before committing it")

func updating() bool { return *update }

// Updating tells the tests outside the package whether -update was given.
var Updating = updating

// Texts returns what notes say, without their places.
func Texts(notes []Note) []string {
	texts := make([]string, len(notes))
	for i, n := range notes {
		texts[i] = n.Text()
	}
	return texts
}

// MaxValues is how many values a file may hold.
const MaxValues = maxValues
