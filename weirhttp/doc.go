// Package weirhttp puts a weir gate in front of net/http handlers.
package weirhttp
