package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weir-go/weir/gateway/internal/quotas"
	"github.com/weir-go/weir/quota"
)

func quotaReset() *cobra.Command {
	o := new(quotaOptions)
	cmd := o.command("reset", "Fill the bucket of somebody, and forgive what debt is in it",
		`Reset fills the bucket that somebody is charged to, in all of its windows, and says what
was there: for a debt that is a mistake, such as one that an upstream has settled in the
wrong unit. No rule changes. It takes one name in each part that the rule looks at, as
weir explain says which rule and bucket those are; a bucket that several share is filled
for all of them.

Where each gateway keeps its buckets in memory, it is the bucket of the one that is
asked. What waits for its tokens keeps its time, and a gateway with a lease may repeat
for as long as that lasts a refusal that it remembers.`,
		`  weir quota reset --gate api --user alice
  weir quota reset --user alice --client web --json`, runQuotaReset)
	for _, part := range quota.Parts() {
		usage := part + " whose bucket it is"
		switch part {
		case "priority":
			usage = "background, normal, high or critical"
		case "address":
			usage = "address such as 10.0.0.7"
		}
		cmd.Flags().StringVar(o.Rule.Part(part), part, "", usage)
	}
	return cmd
}

func runQuotaReset(ctx context.Context, o *quotaOptions) error {
	whose := url.Values{}
	for _, part := range quota.Parts() {
		switch name := *o.Rule.Part(part); name {
		case "":
		case "*":
			return usage("--%s '*' is nobody's name; one bucket is filled at a time", part)
		default:
			whose.Set(part, name)
		}
	}
	if len(whose) == 0 {
		return usage("nobody is named; add --user alice, or what else the rule looks at")
	}
	gate, err := o.gate(ctx)
	if err != nil {
		return err
	}
	text, err := o.ask(ctx, http.MethodPost, "/quotas/"+url.PathEscape(gate)+"/reset?"+whose.Encode(), nil)
	if err != nil {
		return err
	}
	var r quotas.Refilled
	if err := json.Unmarshal(text, &r); err != nil {
		return fmt.Errorf("%s does not answer as a gateway does: %w", o.Admin, err)
	}
	if o.JSON {
		_, err := o.Out.Write(text)
		return err
	}
	return printRefilled(o.Out, &r)
}

// gate returns the gate that the flags name, or the only one that has a quota.
func (o *quotaOptions) gate(ctx context.Context) (string, error) {
	if o.Gate != "" {
		return o.Gate, nil
	}
	text, err := o.ask(ctx, http.MethodGet, "/quotas", nil)
	if err != nil {
		return "", err
	}
	var l quotas.Look
	if err := json.Unmarshal(text, &l); err != nil {
		return "", fmt.Errorf("%s does not answer as a gateway does: %w", o.Admin, err)
	}
	switch len(l.Gates) {
	case 0:
		return "", fmt.Errorf("no gate of the gateway at %s has a quota", o.Admin)
	case 1:
		return l.Gates[0], nil
	}
	return "", usage("several gates have a quota; add --gate, one of %s", strings.Join(l.Gates[:min(len(l.Gates), 10)], ", "))
}

// printRefilled prints which bucket was filled, and what was in it.
func printRefilled(out io.Writer, r *quotas.Refilled) error {
	held := strconv.FormatFloat(r.Held, 'f', -1, 64)
	if r.Window > 0 && r.Window <= len(r.Limits) {
		held += " of " + r.Limits[r.Window-1]
	}
	_, err := fmt.Fprintf(out, "gate %s, %s: bucket %s of rule %s is full again (%s); it held %s\n",
		r.Gate, printable(r.Whose), printable(r.Bucket), printable(r.Rule), strings.Join(r.Limits, "; "), held)
	return err
}
