module github.com/weir-go/weir/internal/bench

go 1.26

require github.com/weir-go/weir v0.0.0

replace github.com/weir-go/weir => ../../
