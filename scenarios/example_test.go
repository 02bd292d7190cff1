package scenarios_test

import (
	"encoding/json"
	"fmt"

	"github.com/weir-go/weir/scenarios"
)

// A scenario file, and the plain name that commands take for it.
func Example() {
	data, err := scenarios.Files.ReadFile("S1.json")
	if err != nil {
		fmt.Println(err)
		return
	}
	var file struct {
		About string
		On    []string // backends
	}
	if err := json.Unmarshal(data, &file); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%s: %s, on %d backends\n", scenarios.PlainNames["S1"], file.About, len(file.On))
	// Output:
	// steady-overload: steady load of twice the capacity, on 10 backends
}
