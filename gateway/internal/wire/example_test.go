package wire_test

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/weir-go/weir/gateway/internal/wire"
)

var errBad = errors.New("the message is no greeting")

func ExampleWalk() {
	message := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "hello")
	message = protowire.AppendVarint(protowire.AppendTag(message, 2, protowire.VarintType), 3)
	show := func(num protowire.Number, bytes []byte, n uint64) error {
		fmt.Printf("%d: %q %d\n", num, bytes, n)
		return nil
	}
	fmt.Println(wire.Walk(message, errBad, show))
	fmt.Println(wire.Walk(message[:3], errBad, show))
	// Output:
	// 1: "hello" 0
	// 2: "" 3
	// <nil>
	// the message is no greeting
}
