package kafka

import (
	"context"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// owners knows whose delegation tokens are. A client that logs in with one names the token only. Its owner never changes, so it is asked
// for once, by the gateway's own principal: a connection that came by a token may not ask. It is safe for concurrent use.
type owners struct {
	ask func(context.Context) (*kmsg.DescribeDelegationTokenResponse, error)

	asking chan struct{} // has one element while somebody asks
	mu     sync.Mutex
	known  map[string]string // by the id of the token
}

const (
	// mostOwners bounds the tokens whose owner is remembered.
	mostOwners = 10_000
	// ownerWithin bounds how long a login waits for the owner of its token.
	ownerWithin = 5 * time.Second
)

func newOwners(ask func(context.Context) (*kmsg.DescribeDelegationTokenResponse, error)) *owners {
	return &owners{ask: ask, asking: make(chan struct{}, 1), known: map[string]string{}}
}

// lookup returns the owner of a token, empty with the reason if that cannot be told.
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
	for _, t := range resp.TokenDetails { // it may be beyond what is remembered
		if t.TokenID == token && t.PrincipalName != "" {
			return t.PrincipalName, nil
		}
	}
	return "", endErrorf("the brokers do not show this token to the gateway's own principal, which needs the right to describe delegation tokens")
}

func (o *owners) remembered(token string) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.known[token]
}

// remember keeps what an answer says, and forgets all else when there is no place: what is asked for again comes back.
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
