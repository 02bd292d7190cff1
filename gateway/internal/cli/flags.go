package cli

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/internal/setting"
)

// onceFlag is a text that may be given once: of two, one would be forgotten.
type onceFlag struct{ to *string }

// Set implements [pflag.Value].
func (f onceFlag) Set(text string) error {
	if *f.to != "" {
		return fmt.Errorf("it is %s already; more than one needs a file, which weir init writes", *f.to)
	}
	*f.to = text
	return nil
}

// String implements [pflag.Value].
func (f onceFlag) String() string {
	if f.to == nil {
		return ""
	}
	return *f.to
}

// Type implements [pflag.Value].
func (f onceFlag) Type() string { return "string" }

// emptyFlag refuses a text or a list that is given and empty, as of a variable that is not set. As if it were left out, a
// condition or an identity would be lost in silence. Flags of other types refuse such a value themselves.
func emptyFlag(cmd *cobra.Command) (err error) {
	cmd.Flags().Visit(func(f *pflag.Flag) {
		empty := f.Value.Type() == "string" && f.Value.String() == "" || f.Value.Type() == "stringSlice" && f.Value.String() == "[]"
		if empty && err == nil {
			err = usage("--%s is empty; write a value, or leave the flag out", f.Name)
		}
	})
	return err
}

// durationFlag is a flag that reads durations as files do, with the same advice.
type durationFlag struct{ to *time.Duration }

func (f durationFlag) Set(text string) error {
	d, err := setting.ParseDuration(text)
	if err == nil {
		*f.to = d
	}
	return err
}

func (f durationFlag) String() string {
	if f.to == nil || *f.to == 0 {
		return ""
	}
	return f.to.String()
}

func (f durationFlag) Type() string { return "duration" }

// addDuration adds a flag for a duration.
func addDuration(flags *pflag.FlagSet, to *time.Duration, name string, byDefault time.Duration, about string) {
	*to = byDefault
	flags.Var(durationFlag{to}, name, about)
}

// limitFlag is a number of requests, or auto for one that is found.
type limitFlag struct {
	to   *int64
	auto *bool
}

// Set implements [pflag.Value].
func (f limitFlag) Set(text string) (err error) {
	if *f.auto = text == "auto"; *f.auto {
		*f.to = 0
		return nil
	}
	*f.to, err = strconv.ParseInt(text, 0, 64)
	return err
}

// String implements [pflag.Value].
func (f limitFlag) String() string {
	switch {
	case f.auto != nil && *f.auto:
		return "auto"
	case f.to == nil || *f.to == 0:
		return ""
	}
	return strconv.FormatInt(*f.to, 10)
}

// Type implements [pflag.Value].
func (f limitFlag) Type() string { return "int" }

// foreignFlags are flags of other products, and what they are here.
var foreignFlags = map[string]string{
	"bootstrap-server": "kafka", "bootstrap-servers": "kafka", "broker-list": "kafka", "brokers": "kafka", "broker": "kafka",
	"target": "upstream", "backend": "upstream", "to": "upstream", "url": "upstream", "from": "listen", "port": "listen", "bind": "listen", "address": "listen",
}

// flagProblem returns what is wrong with a flag, in plainer words than the packages have that
// find it.
func flagProblem(cmd *cobra.Command, err error) string {
	var unknown *pflag.NotExistError
	var lacking *pflag.ValueRequiredError
	var wrong *pflag.InvalidValueError
	switch {
	case errors.As(err, &unknown) && unknown.GetSpecifiedShortnames() == "":
		name := unknown.GetSpecifiedName()
		text := fmt.Sprintf("there is no flag --%s", name)
		known := flagNames(cmd)
		near := fault.Nearest(name, known)
		if ours := foreignFlags[name]; slices.Contains(known, ours) {
			near = ours
		}
		if near != "" {
			text += fmt.Sprintf("; did you mean --%s?", near)
		}
		return text
	case errors.As(err, &unknown) && unknown.GetSpecifiedShortnames() == "t" && !cmd.HasParent():
		return "there is no flag -t; write weir check FILE"
	case errors.As(err, &unknown):
		return fmt.Sprintf("there is no flag -%s", unknown.GetSpecifiedName())
	case errors.As(err, &lacking):
		f := lacking.GetFlag()
		return fmt.Sprintf("--%s needs a value: %s", f.Name, f.Usage)
	case errors.As(err, &wrong):
		return fmt.Sprintf("--%s %q: %s", wrong.GetFlag().Name, wrong.GetValue(), valueProblem(wrong.Unwrap()))
	}
	return err.Error()
}

// valueProblem returns what is wrong with the value of a flag.
func valueProblem(err error) string {
	var num *strconv.NumError
	if !errors.As(err, &num) {
		return err.Error()
	}
	switch {
	case errors.Is(err, strconv.ErrRange):
		return "it is too large or too small"
	case num.Func == "ParseFloat":
		return "it is not a number"
	case num.Func == "ParseBool":
		return "it is neither true nor false"
	}
	return "it is not a whole number"
}

// flagNames returns the names of a command's flags.
func flagNames(cmd *cobra.Command) (names []string) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	})
	return names
}

// completeFiles has shells complete arguments with files of these endings.
func completeFiles(endings ...string) cobra.CompletionFunc {
	return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return endings, cobra.ShellCompDirectiveFilterFileExt
	}
}

// completeFlag has shells complete a flag with words.
func completeFlag(cmd *cobra.Command, flag string, words ...string) {
	// It fails only for a flag that the command does not have.
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
}

// sentence returns a text of a flag or command with a capital and a full stop, for pages.
func sentence(text string) string {
	if text == "" {
		return ""
	}
	text = strings.ToUpper(text[:1]) + text[1:]
	if !strings.HasSuffix(text, ".") {
		text += "."
	}
	return text
}
