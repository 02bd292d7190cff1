module github.com/weir-go/weir/weirredis/bench

go 1.26.0

require (
	github.com/go-redis/redis_rate/v10 v10.0.1
	github.com/redis/go-redis/v9 v9.0.2
	github.com/weir-go/weir v0.0.0
	github.com/weir-go/weir/weirredis v0.0.0
)

require (
	github.com/cespare/xxhash/v2 v2.2.0 // indirect
	github.com/dgryski/go-rendezvous v0.0.0-20200823014737-9f7001d12a5f // indirect
	github.com/redis/rueidis v1.0.79 // indirect
	golang.org/x/sys v0.47.0 // indirect
)

replace (
	github.com/weir-go/weir => ../../
	github.com/weir-go/weir/weirredis => ../
)
