package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weir-go/weir/policy"
)

// identityFlags are those that say who is asking.
func (o *runOptions) identityFlags(cmd *cobra.Command) {
	id, flags := &o.Identity, cmd.Flags()
	flags.StringVar(&id.Tenant, "tenant", "", "where the tenant of a request comes from without a file, for instance header:X-Tenant; tenants are served fairly")
	flags.StringVar(&id.User, "user", "", "where the user comes from without a file, for instance header:X-User; users are served fairly, then the tenants of each")
	flags.StringVar(&id.Priority, "priority", "", "where the priority comes from without a file, for instance header:X-Priority: background, normal, high or critical")
	flags.StringSliceVar(&id.Trusted, "trusted", nil, "networks whose headers are believed without a file, for instance 10.0.0.0/8 (default 127.0.0.0/8,::1/128)")
}

// identifies reports whether one of them is given.
func (o *runOptions) identifies() bool {
	id := &o.Identity
	return id.Tenant != "" || id.User != "" || id.Priority != "" || id.Trusted != nil
}

// identityFaults returns everything that is wrong with them.
func (o *runOptions) identityFaults() []error {
	p, err := policy.Compile(policy.Spec{Identity: o.Identity}, policy.Options{})
	if err == nil {
		p.Close()
		return nil
	}
	var faults *policy.Faults
	if !errors.As(err, &faults) {
		return []error{err}
	}
	var wrong []error
	for _, f := range faults.List {
		flag := strings.TrimPrefix(f.Path, "identity.")
		if len(f.Keys) > 1 {
			flag = f.Keys[1]
		}
		if flag == "user" && o.Rate.By != "" && o.Identity.User == o.Rate.By {
			flag = "by"
		}
		wrong = append(wrong, fmt.Errorf("--%s: %s; %s", flag, f.Problem, f.Instead))
	}
	return wrong
}
