package cli

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/weir-go/weir/gateway/internal/quotas"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/quota"
)

// exitConflict is the exit code if the rules no longer have the ETag of --if-match.
const exitConflict = 3

// quotaOptions are the settings of weir quota and its commands.
type quotaOptions struct {
	Admin        string
	TokenFile    string
	JSON         bool
	Gate         string
	Rule         policy.QuotaRuleSpec
	BurstSet     bool // --burst is given
	ValidateOnly bool
	IfMatch      string
	All          bool
	Out          io.Writer

	known bool // a gateway answers at Admin
}

// NewQuotaCommand returns weir quota with its commands.
func NewQuotaCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "quota",
		Short: "Set, delete and show rules of quotas while the gateway runs, and fill buckets",
		Long: `Quota changes the rules of a gate's quota while the gateway runs. They override those of
the configuration file. The setting runtime_quotas: says where they are kept. They are in force
when the command returns (with a store, at the other gateways within two seconds).
Buckets keep their tokens and debts.

A rule is known by what it matches: --user, --client, --tenant, --route, --priority and
--address. Each is a value, or '*' for every value, which gives each value a bucket of
its own. A rule ignores the parts that are left out: without any of them it is for all
together. weir explain shows which of several rules counts for a request.

For users of kafka-configs: set is --alter --add-config, delete is --alter --delete-config,
describe is --describe. --user alice is --entity-type users --entity-name alice, and
--user '*' is --entity-type users --entity-default. Unlike there, set replaces a rule as
a whole.

Reset fills one bucket, and so forgives a debt. It changes no rule.

Writing needs the gateway's admin socket (--admin unix:/run/weir/admin.sock) or its
token (--token-file); reading needs neither. Each write, refused or not, is a line in
the gateway's log.

Exit codes:
  0  done
  1  not done: no gateway, not allowed, no such rule, gate or bucket, a rule that does not fit
  2  the command line is wrong
  3  the rules no longer have the ETag of --if-match`,
		Example: `  weir quota describe
  weir quota set --gate api --user alice --rate 100/s --admin unix:/run/weir/admin.sock
  weir quota set --gate api --user '*' --rate 10/s --token-file /etc/weir/admin.token
  weir quota delete --gate api --user alice --admin unix:/run/weir/admin.sock
  weir quota reset --gate api --user alice --admin unix:/run/weir/admin.sock
  weir explain --user alice --path /v1/items`,
		Args: knownCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(quotaSet(), quotaDelete(), quotaReset(), quotaList(), quotaDescribe())
	return cmd
}

// command returns a command of weir quota with the flags that all have.
func (o *quotaOptions) command(use, short, long, example string, run func(context.Context, *quotaOptions) error) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short, Long: long, Example: example, Args: needs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.checkParts(cmd); err != nil {
				return err
			}
			if err := emptyFlag(cmd); err != nil {
				return err
			}
			o.Out, o.BurstSet = cmd.OutOrStdout(), cmd.Flags().Changed("burst")
			ctx, cancel := context.WithTimeout(cmd.Context(), 2*patience) // the gateway's store has its own
			defer cancel()
			return run(ctx, o)
		},
	}
	f := cmd.Flags()
	adminFlag(cmd, &o.Admin)
	f.StringVar(&o.TokenFile, "token-file", "", "file with the gateway's token")
	f.BoolVar(&o.JSON, "json", false, "print the gateway's answer as JSON")
	f.StringVar(&o.Gate, "gate", "", "gate whose quota it is (default: the only one that has a quota)")
	return cmd
}

// parts adds the flags that say what a rule matches, or whose bucket it is.
func (o *quotaOptions) parts(cmd *cobra.Command, about, address string) {
	for _, part := range quota.Parts() {
		usage := part
		switch part {
		case "priority":
			usage = "background, normal, high or critical"
		case "address":
			usage = address
		case "descriptor":
			usage = "descriptor such as database=users"
		}
		cmd.Flags().StringVar((*string)(o.Rule.Part(part)), part, "", usage+about)
	}
}

// matching adds the flags that say what a rule matches.
func (o *quotaOptions) matching(cmd *cobra.Command) {
	o.parts(cmd, ", or '*' for each", "network such as 10.0.0.0/8")
}

// checkParts refuses an empty name, as of a variable that is not set: it would make a rule for
// everybody. It also refuses bytes that are no text, because JSON cannot carry them.
func (o *quotaOptions) checkParts(cmd *cobra.Command) error {
	for _, part := range quota.Parts() {
		switch name := string(*o.Rule.Part(part)); {
		case cmd.Flags().Changed(part) && name == "":
			return usage("--%s is empty; write a name, or '*' for each, or leave the flag out", part)
		case !utf8.ValidString(name):
			return usage("--%s %q is not UTF-8; the gateway uses its hash: write sha256:%x", part, name, sha256.Sum256([]byte(name)))
		}
	}
	return nil
}

// writing adds the flags of commands that write.
func (o *quotaOptions) writing(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&o.ValidateOnly, "validate-only", false, "say what would happen, and change nothing")
	cmd.Flags().StringVar(&o.IfMatch, "if-match", "", "do it only if the rules still have this ETag, as describe prints it")
}

func quotaSet() *cobra.Command {
	o := new(quotaOptions)
	cmd := o.command("set", "Put a rule in force, in place of one that matches the same",
		`Set puts a rule in force. It replaces the whole rule that matches the same: what you do
not write again, such as a burst, has its default. The bucket keeps its tokens and debts.
With --validate-only everything is checked and nothing changes. With --if-match and the
ETag that describe prints, nothing changes if somebody else has changed a rule since.`,
		`  weir quota set --gate api --user alice --rate 100/s --burst 200  # one user
  weir quota set --gate api --user '*' --rate 10/s  # each user, the default
  weir quota set --gate api --user alice --client '*' --rate 5/s  # each client of alice
  weir quota set --gate api --limit '10/s burst 20' --limit 1000/h  # all together, two windows
  weir quota set --gate api --tenant acme --rate '5000 a day Europe/Berlin'
  weir quota set --gate api --address 10.0.0.0/8 --exempt
  weir quota set --gate api --user mallory --blocked --validate-only`, runQuotaSet)
	o.matching(cmd)
	o.writing(cmd)
	f := cmd.Flags()
	f.StringVar(&o.Rule.Rate, "rate", "", "limit: 10/s, 1000/h, or '5000 a day Europe/Berlin'")
	f.Float64Var(&o.Rule.Burst, "burst", 0, "most tokens at once (default: what the rate says)")
	f.StringArrayVar(&o.Rule.Limits, "limit", nil, "one of several limits, instead of --rate: '10/s burst 20'; may be repeated")
	f.BoolVar(&o.Rule.Exempt, "exempt", false, "let them through without counting")
	f.BoolVar(&o.Rule.Blocked, "blocked", false, "refuse them all")
	return cmd
}

func quotaDelete() *cobra.Command {
	o := new(quotaOptions)
	cmd := o.command("delete", "Delete a rule that was set at run time",
		`Delete deletes a rule that was set at run time, so that the configuration file holds
again. Name the rule by what it matches, exactly as it was set. A rule whose gate is gone
can be deleted too. With --all it deletes all rules of a gate. A rule of the file cannot
be deleted; set another in its place.`,
		`  weir quota delete --gate api --user alice
  weir quota delete --gate api --user alice --client '*'
  weir quota delete --gate api --all --validate-only`, runQuotaDelete)
	o.matching(cmd)
	o.writing(cmd)
	cmd.Flags().BoolVar(&o.All, "all", false, "all rules of the gate that were set at run time")
	return cmd
}

func quotaList() *cobra.Command {
	o := new(quotaOptions)
	return o.command("list", "List the rules that were set at run time",
		"List prints the rules that were set at run time, of all gates or of one. Describe also\nprints those of the file. It needs no token.",
		"  weir quota list\n  weir quota list --gate api --json",
		func(ctx context.Context, o *quotaOptions) error { return runQuotaShow(ctx, o, true) })
}

func quotaDescribe() *cobra.Command {
	o := new(quotaOptions)
	cmd := o.command("describe", "Show all rules, where each comes from, and which are in force",
		`Describe prints all rules: those of the configuration file with their lines, and those
set at run time with when and by whom. It says which are in force. With --user or
another part it prints only rules with the same value there. --user alice shows the rules
that name alice, --user '*' those for each user. weir explain --user alice shows which
rule counts for a request of alice. It needs no token.`,
		`  weir quota describe
  weir quota describe --gate api --user alice
  weir quota describe --json`,
		func(ctx context.Context, o *quotaOptions) error { return runQuotaShow(ctx, o, false) })
	o.matching(cmd)
	return cmd
}

// bare reports whether no flag says what the rule matches.
func (o *quotaOptions) bare() bool { return o.Rule.Pattern().String() == "all" }

func runQuotaSet(ctx context.Context, o *quotaOptions) error {
	r := &o.Rule
	if r.Rate == "" && len(r.Limits) == 0 && !r.Exempt && !r.Blocked {
		return usage("the rule gives nothing; add --rate 10/s, --limit, --exempt or --blocked")
	}
	if o.BurstSet && !(r.Burst > 0 && r.Burst <= quota.MaxTokens) {
		return usage("--burst %v is not a number of tokens; write one from 1 to %v, or leave the flag out", r.Burst, float64(quota.MaxTokens))
	}
	if _, err := r.Parse(); err != nil {
		return usage("%v", err)
	}
	return o.change(ctx, quotas.Op{Gate: o.Gate, Set: r})
}

func runQuotaDelete(ctx context.Context, o *quotaOptions) error {
	switch {
	case o.All && !o.bare():
		return usage("--all and what a rule matches are both given; leave one out")
	case o.All && o.Gate == "":
		return usage("--all needs the gate that it is about; add --gate")
	case o.All:
		return o.change(ctx, quotas.Op{Gate: o.Gate, Clear: true})
	}
	return o.change(ctx, quotas.Op{Gate: o.Gate, Delete: &o.Rule.Rule})
}

// change asks the gateway for one operation and prints what came of it.
func (o *quotaOptions) change(ctx context.Context, op quotas.Op) error {
	var res quotas.Result
	text, err := o.ask(ctx, "/quotas", &quotas.Change{Ops: []quotas.Op{op}, ValidateOnly: o.ValidateOnly}, &res, "steps")
	switch {
	case err != nil:
		return err
	case o.JSON:
		_, err = legibleJSON{o.Out}.Write(text)
		return err
	}
	return printSteps(legible{o.Out}, &res)
}

func runQuotaShow(ctx context.Context, o *quotaOptions, dynamicOnly bool) error {
	path := "/quotas"
	if o.Gate != "" {
		path += "/" + url.PathEscape(o.Gate)
	}
	l, err := o.list(ctx, path)
	if err != nil {
		return err
	}
	l.Rules = slices.DeleteFunc(l.Rules, func(v quotas.View) bool {
		return dynamicOnly && v.Source != quotas.FromDynamic || !o.wanted(&v.Rule)
	})
	if o.JSON {
		return printJSON(o.Out, l)
	}
	err = printRules(legible{o.Out}, l, dynamicOnly)
	if err == nil && len(l.Rules) == 0 && !o.bare() {
		_, err = fmt.Fprintf(o.Out, "no rule says %s; weir explain shows which one counts for a request\n", o.Rule.Pattern().String())
	}
	return err
}

// wanted reports whether a rule says the same as the flags, in each part that they name.
func (o *quotaOptions) wanted(r *policy.QuotaRuleSpec) bool {
	for _, part := range quota.Parts() {
		if want := *o.Rule.Part(part); want != "" && want != *r.Part(part) {
			return false
		}
	}
	return true
}

func quotaReset() *cobra.Command {
	o := new(quotaOptions)
	cmd := o.command("reset", "Fill one bucket, and forgive its debt",
		`Reset fills the bucket of the user, client or other names that you give, in all of its
windows, and prints what it had. It is for a debt that is a mistake, for example because
an upstream reported costs in the wrong unit. No rule changes. Give one name for each part
that the rule counts by; weir explain shows the rule and its bucket. If several users share
the bucket, it is filled for all of them.

If each gateway keeps its buckets in memory, this fills only the bucket of the gateway
that you ask. Requests that wait for tokens keep their time. A gateway with a lease may
repeat a refusal that it remembers, for as long as the lease lasts.`,
		`  weir quota reset --gate api --user alice
  weir quota reset --user alice --client web --json`, runQuotaReset)
	o.parts(cmd, " whose bucket it is", "address such as 10.0.0.7")
	return cmd
}

func runQuotaReset(ctx context.Context, o *quotaOptions) error {
	whose := url.Values{}
	for _, part := range quota.Parts() {
		switch name := *o.Rule.Part(part); name {
		case "":
		case "*":
			return usage("--%s '*' is not a name; one bucket is filled at a time", part)
		default:
			whose.Set(part, string(name))
		}
	}
	if len(whose) == 0 {
		return usage("nobody is named; add --user alice, or another part that the rule counts by")
	}
	gate, err := o.gate(ctx)
	if err != nil {
		return err
	}
	var r quotas.Refilled
	text, err := o.ask(ctx, "/quotas/"+url.PathEscape(gate)+"/reset?"+whose.Encode(), nil, &r, "bucket")
	switch {
	case err != nil:
		return err
	case o.JSON:
		_, err = legibleJSON{o.Out}.Write(text)
		return err
	}
	return printRefilled(legible{o.Out}, &r)
}

// gate returns the gate that the flags name, or the only one that has a quota.
func (o *quotaOptions) gate(ctx context.Context) (string, error) {
	if o.Gate != "" {
		return o.Gate, nil
	}
	l, err := o.list(ctx, "/quotas")
	if err != nil {
		return "", err
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

// list asks for the rules at a path. It sends no token: reading needs none, and what answers may be no gateway.
func (o *quotaOptions) list(ctx context.Context, path string) (*quotas.Listing, error) {
	res, err := askAdmin(ctx, o.Admin, http.MethodGet, path, nil, nil)
	switch {
	case err != nil:
		return nil, err
	case res.StatusCode != http.StatusOK:
		return nil, o.refusal(res)
	}
	l := new(quotas.Listing)
	return l, res.decode(l, "gates")
}

// ask has the gateway write something, with body as JSON unless it is nil. It returns the answer, and decodes it
// into v, which has a field. If the gateway refuses, the error says why.
func (o *quotaOptions) ask(ctx context.Context, path string, body, v any, field string) ([]byte, error) {
	header, err := o.header()
	if err != nil {
		return nil, err
	}
	if !o.known { // what is no gateway gets no token
		if _, err := o.list(ctx, "/quotas"); err != nil {
			return nil, err
		}
		o.known = true
	}
	var text []byte
	if body != nil {
		header.Set("Content-Type", "application/json")
		if text, err = json.Marshal(body); err != nil {
			return nil, err
		}
	}
	res, err := askAdmin(ctx, o.Admin, http.MethodPost, path, header, text)
	switch {
	case body != nil && (errors.Is(err, errBrokeOff) || errors.Is(err, context.DeadlineExceeded)):
		return nil, fmt.Errorf("%w; check with weir quota list whether it was done", err)
	case err != nil:
		return nil, err
	case res.StatusCode != http.StatusOK:
		return nil, o.refusal(res)
	}
	return res.text, res.decode(v, field)
}

// header returns the header fields that the flags ask for.
func (o *quotaOptions) header() (http.Header, error) {
	h, err := tokenHeader(o.TokenFile)
	if o.IfMatch != "" && err == nil {
		h.Set("If-Match", `"`+strings.Trim(o.IfMatch, `"`)+`"`)
	}
	return h, err
}

// refusal is the error of an answer that is not 200.
func (o *quotaOptions) refusal(res *answer) error {
	err := res.problem()
	switch res.StatusCode {
	case http.StatusPreconditionFailed:
		return &ExitError{Code: exitConflict, Err: fmt.Errorf("%w (now %s)", err, res.Header.Get("ETag"))}
	case http.StatusUnauthorized:
		return fmt.Errorf("%w; --token-file names the file with the gateway's token", err)
	}
	return err
}

// printSteps prints what a change has done.
func printSteps(out io.Writer, res *quotas.Result) error {
	did := "now"
	if res.ValidateOnly {
		did = "would be"
	}
	if len(res.Steps) == 0 {
		_, err := fmt.Fprintln(out, "nothing to change")
		return err
	}
	for i := range res.Steps {
		s := &res.Steps[i]
		if _, err := fmt.Fprintf(out, "gate %s, %s: %s %s\n", s.Gate, printable(s.Matches), did, stepResult(s)); err != nil {
			return err
		}
	}
	return nil
}

// stepResult says what holds after a step, and what held before.
func stepResult(s *quotas.Step) string {
	var was []string
	if s.Before != nil {
		was = append(was, "set before: "+quotas.FullTerms(&s.Before.QuotaRuleSpec))
	}
	text := s.Gives
	switch {
	case s.After == nil:
		text = "as the file says: " + cmp.Or(s.FileGives, "no rule for it")
	case s.FileGives != "":
		was = append(was, "the file gives "+s.FileGives)
	}
	if len(was) > 0 {
		text += " (" + strings.Join(was, "; ") + ")"
	}
	return text
}

// printRules prints rules as a table.
func printRules(out io.Writer, l *quotas.Listing, dynamicOnly bool) error {
	if l.KeptIn == "" {
		fmt.Fprintln(out, "no rules can be set at run time; add runtime_quotas: to the configuration, which says where to keep them")
	} else {
		fmt.Fprintf(out, "rules set at run time are kept in %s, ETag %s\n", l.KeptIn, l.ETag)
	}
	if l.Trouble != "" {
		fmt.Fprintf(out, "they cannot be read now; %s: %s\n", quotas.Holds(l.NeverRead), l.Trouble)
	}
	p := newPage(out)
	for i := range l.Rules {
		v := &l.Rules[i]
		force := "yes"
		if !v.InForce {
			force = "no: " + v.Because
		}
		if dynamicOnly {
			p.row("GATE|MATCHES|GIVES|SET|BY|IN FORCE", v.Gate, printable(v.Matches), v.Gives, when(v.SetAt), v.SetBy, force)
			continue
		}
		p.row("GATE|MATCHES|GIVES|FROM|IN FORCE", v.Gate, printable(v.Matches), v.Gives, v.Origin(), force)
	}
	if len(l.Rules) == 0 {
		fmt.Fprintln(p, "none")
	}
	return p.Flush()
}

func when(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}
