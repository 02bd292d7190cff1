package kafka

import (
	"context"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// owners knows the owners of delegation tokens. A client that logs in with a token names only the token. The owner never changes, so the
// gateway asks for it once. It asks as its own principal, because a connection that logged in with a token may not ask. It is safe for concurrent
// use.
type owners struct {
	ask func(context.Context) (*kmsg.DescribeDelegationTokenResponse, error)

	asking chan struct{} // has one element while a lookup asks
	mu     sync.Mutex
	known  map[string]string // by the id of the token
}

const (
	// mostOwners bounds the tokens whose owner is kept.
	mostOwners = 10_000
	// ownerWithin bounds how long a login waits for the owner of its token.
	ownerWithin = 5 * time.Second
)

func newOwners(ask func(context.Context) (*kmsg.DescribeDelegationTokenResponse, error)) *owners {
	return &owners{ask: ask, asking: make(chan struct{}, 1), known: map[string]string{}}
}

// lookup returns the owner of a token. If the owner is unknown, the error says why.
func (o *owners) lookup(ctx context.Context, token string) (string, error) {
	if name := o.remembered(token); name != "" {
		return name, nil
	}
	ctx, cancel := context.WithTimeout(ctx, ownerWithin)
	defer cancel()
	select {
	case o.asking <- struct{}{}:
		defer func() { <-o.asking }()
	case <-ctx.Done():
		return "", ctx.Err()
	}
	if name := o.remembered(token); name != "" { // meanwhile
		return name, nil
	}
	resp, err := o.ask(ctx)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	if err != nil {
		return "", err
	}
	o.remember(resp.TokenDetails)
	for _, t := range resp.TokenDetails { // remember may not have kept this one
		if t.TokenID == token && t.PrincipalName != "" {
			return t.PrincipalName, nil
		}
	}
	return "", endErrorf("the brokers do not show this token to the gateway's own principal; it needs the right to describe delegation tokens")
}

func (o *owners) remembered(token string) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.known[token]
}

// remember keeps the owners in an answer. If there is no place, it drops all others, because they can be asked for again.
func (o *owners) remember(all []kmsg.DescribeDelegationTokenResponseTokenDetail) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.known)+len(all) > mostOwners {
		clear(o.known)
	}
	for _, t := range all[:min(len(all), mostOwners)] {
		o.known[t.TokenID] = t.PrincipalName
	}
}
