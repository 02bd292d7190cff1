module github.com/weir-go/weir/internal/live

go 1.26.0

require (
	github.com/failsafe-go/failsafe-go v0.9.8
	github.com/weir-go/weir v0.0.0
	golang.org/x/sys v0.48.0
)

require (
	github.com/bits-and-blooms/bitset v1.24.4 // indirect
	github.com/influxdata/tdigest v0.0.1 // indirect
)

replace github.com/weir-go/weir => ../../
