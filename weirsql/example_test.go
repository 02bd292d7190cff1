package weirsql_test

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/weir-go/weir/weirsql"
)

// Wherever a permit is held by hand, Classify says what became of the work.
func ExampleClassify() {
	ctx, cancel := context.WithCancel(context.Background())
	fmt.Println(weirsql.Classify(ctx, nil))
	fmt.Println(weirsql.Classify(ctx, sql.ErrNoRows))
	cancel()
	fmt.Println(weirsql.Classify(ctx, context.Canceled))
	// Output:
	// ok
	// ok
	// abandoned
}
