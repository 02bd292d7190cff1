// Package tools is the module of the tools that check the project. Its go.mod
// names them in tool directives, so that their versions are fixed and none of
// their requirements reaches a user of the library. It is no part of go.work:
// the Makefile builds the tools from here into .cache/bin.
package tools
