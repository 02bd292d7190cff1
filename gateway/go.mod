module github.com/weir-go/weir/gateway

go 1.26

require github.com/weir-go/weir v0.0.0

require (
	github.com/inconshreveable/mousetrap v1.1.0 // indirect
	github.com/spf13/cobra v1.10.2 // indirect
	github.com/spf13/pflag v1.0.9 // indirect
	go.yaml.in/yaml/v3 v3.0.6 // indirect
)

replace github.com/weir-go/weir => ../
