package config

import _ "embed"

// Starter is a commented file to grow from. It passes Parse as it is.
//
//go:embed starter.yaml
var Starter []byte
