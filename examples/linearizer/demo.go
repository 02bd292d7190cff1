package main

import (
	"context"
	"errors"
)

// demo is to be two of each under load.
func (o *options) demo(context.Context) error { return errors.New("not yet") }
