module github.com/weir-go/weir

go 1.25
