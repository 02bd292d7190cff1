package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/internal/fault"
)

// checkOptions are the settings of weir check.
type checkOptions struct {
	Files  []string // "-" is In
	Strict bool     // warnings are faults
	JSON   bool
	In     io.Reader
	Out    io.Writer // summaries and warnings
	Err    io.Writer // faults
}

// NewCheckCommand returns weir check.
func NewCheckCommand() *cobra.Command {
	var o checkOptions
	cmd := &cobra.Command{
		Use:        "check FILE...",
		Aliases:    []string{"validate"},
		SuggestFor: []string{"test", "configtest", "lint", "verify"},
		Short:      "List all faults of a configuration, line by line",
		Long: `Check reads configurations as weir run does, and prints every fault with its
line and what to write instead. It opens no port and connects to nothing, but it
reads the files that a configuration names. For a file without faults it prints a
summary, and a warning for each setting that is allowed and probably a mistake.
FILE - is standard input.

With --strict, warnings count as faults. With --json, one list with an entry for
each file is printed.

The exit code is 0 if no file has a fault, and 1 if one has.`,
		Example: "  weir check weir.yaml\n  weir check --strict --json weir.yaml",
		Args:    needs(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Files, o.In, o.Out, o.Err = args, cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()
			return runCheck(o)
		},
	}
	cmd.Flags().BoolVar(&o.Strict, "strict", false, "warnings are faults")
	cmd.Flags().BoolVar(&o.JSON, "json", false, "print faults and warnings as JSON")
	return cmd
}

// checked is what check has to say of a file, as JSON.
type checked struct {
	File    string `json:"file"`
	OK      bool   `json:"ok"`
	Summary string `json:"summary,omitempty"`
	// Error is why the file could not be read at all.
	Error    string  `json:"error,omitempty"`
	Faults   []found `json:"faults"`
	More     int     `json:"more_faults,omitempty"` // which were only counted
	Warnings []found `json:"warnings"`
	Notes    []found `json:"notes"`
}

// found is a fault, a warning or a note.
type found struct {
	Line    int    `json:"line,omitempty"`
	Column  int    `json:"column,omitempty"`
	Path    string `json:"path,omitempty"`
	Problem string `json:"problem"`
	Instead string `json:"instead,omitempty"`
}

func foundOf(f *fault.Fault) found {
	return found{f.Line, f.Col, f.Path.String(), f.Problem, f.Instead}
}

func runCheck(o checkOptions) error {
	bad, written := 0, &firstError{Writer: o.Out}
	o.Out = written
	list := make([]checked, 0, len(o.Files))
	for _, file := range o.Files {
		c := o.check(file)
		if !c.OK {
			bad++
		}
		list = append(list, c)
	}
	if o.JSON {
		enc := json.NewEncoder(o.Out)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		if err := enc.Encode(list); err != nil {
			return err
		}
	}
	switch {
	case bad == 0:
		return written.err
	case len(o.Files) == 1 || o.JSON:
		return &ExitError{Code: exitError} // its faults are printed
	}
	return &ExitError{Code: exitError, Err: fmt.Errorf("%d of %s cannot be used", bad, count(len(o.Files), "file"))}
}

// firstError is a writer that keeps the first error of all its writes.
type firstError struct {
	io.Writer
	err error
}

func (w *firstError) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	if w.err == nil {
		w.err = err
	}
	return n, err
}

// check reads one file, and prints what it finds unless the answer is JSON.
func (o *checkOptions) check(file string) checked {
	out, errs := o.Out, o.Err
	if o.JSON {
		out, errs = io.Discard, io.Discard
	}
	c := checked{File: file, Faults: []found{}, Warnings: []found{}, Notes: []found{}}
	cfg, err := readConfig(file, o.In)
	var faults *fault.Faults
	if errors.As(err, &faults) {
		for i := range faults.List {
			c.Faults = append(c.Faults, foundOf(&faults.List[i]))
		}
		c.More = faults.More
	} else if err != nil {
		c.Error = err.Error()
	}
	if err != nil {
		fmt.Fprintln(errs, err)
		return c
	}
	notes := cfg.Notes()
	for i := range notes {
		if n := &notes[i]; n.Warning {
			c.Warnings = append(c.Warnings, foundOf(&n.Fault))
		} else {
			c.Notes = append(c.Notes, foundOf(&n.Fault))
		}
	}
	c.OK, c.Summary = !o.Strict || len(c.Warnings) == 0, summary(cfg)
	if c.OK {
		fmt.Fprintf(out, "%s: ok: %s\n", file, c.Summary)
	}
	for _, n := range notes {
		if n.Warning && o.Strict {
			fmt.Fprintln(errs, n)
		} else {
			fmt.Fprintln(out, n)
		}
	}
	return c
}

func readConfig(file string, in io.Reader) (*config.Config, error) {
	if file != "-" {
		return loadConfig(file)
	}
	data, err := io.ReadAll(io.LimitReader(in, config.MaxSize+1))
	if err != nil {
		return nil, fmt.Errorf("standard input: %w", err)
	}
	cfg, err := config.Parse("stdin", data)
	if err != nil && kindOf(data) == scenarioFile {
		return nil, fmt.Errorf("stdin: is a scenario for weir sim, not a configuration of the gateway")
	}
	return cfg, err
}

// summary describes a configuration in one line. It shows at a glance whether it is the
// right one.
func summary(c *config.Config) string {
	var parts []string
	clusters := c.KafkaListeners()
	if n := len(clusters); n > 0 {
		parts = append(parts, count(n, "cluster")+" of Kafka")
	}
	if c.ServesHTTP() || len(clusters) == 0 {
		parts = append(parts, count(len(c.Listeners), "listener"), count(len(c.Gates), "gate"), count(len(c.Routes), "route"),
			count(len(c.Upstreams), "upstream")+" with "+count(c.TargetCount(), "target"))
	} else {
		parts = append(parts, count(len(c.Gates), "gate"))
	}
	text := strings.Join(parts, ", ")
	if c.Admin.Enabled() {
		return text + ", admin on " + c.Admin.Address
	}
	return text + ", no admin listener"
}

// count returns a number and its noun.
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// initOptions are the settings of weir init.
type initOptions struct {
	File     string // empty or "-": Out
	Upstream string // empty: that of the starter
	Full     bool   // every setting
	Force    bool   // overwrite
	Out      io.Writer
}

// NewInitCommand returns weir init, which writes a configuration to grow from.
func NewInitCommand() *cobra.Command {
	var o initOptions
	cmd := &cobra.Command{
		Use:   "init [FILE]",
		Short: "Write a commented configuration to grow from",
		Long: `Init writes a short configuration: a listener, the server behind it, and a gate that
finds how much the server can carry. With --full it has every setting, most of them
commented out at their defaults. --upstream says which server; without it, that is
http://127.0.0.1:3000.

Without FILE, or with -, it goes to standard output. A file that exists already is
left alone, unless --force is given.`,
		Example: "  weir init weir.yaml --upstream http://127.0.0.1:3000\n  weir init --full > weir.yaml",
		Args:    needs(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				o.File = args[0]
			}
			o.Out = cmd.OutOrStdout()
			return runInit(o)
		},
	}
	cmd.Flags().StringVar(&o.Upstream, "upstream", "", "server to guard, for instance http://127.0.0.1:3000 or unix:/run/app.sock")
	cmd.Flags().BoolVar(&o.Full, "full", false, "with every setting")
	cmd.Flags().BoolVar(&o.Force, "force", false, "overwrite a file that exists")
	return cmd
}

// text returns the configuration to write.
func (o *initOptions) text() ([]byte, error) {
	starter := config.Starter
	if o.Full {
		starter = config.FullStarter
	}
	if o.Upstream == "" {
		return starter, nil
	}
	text, err := config.StartFor(starter, o.Upstream)
	if err != nil {
		return nil, usage("--upstream %w", err)
	}
	return text, nil
}

func runInit(o initOptions) error {
	text, err := o.text()
	if err != nil {
		return err
	}
	if o.File == "" || o.File == "-" {
		_, err := o.Out.Write(text)
		return err
	}
	if strings.Contains(o.File, "://") {
		return usage("%s is a URL, not a file; write weir init weir.yaml --upstream %s", o.File, o.File)
	}
	if err := writeStarter(o.File, text, o.Force); err != nil {
		return err
	}
	next := "run weir check " + o.File
	if o.Upstream == "" {
		next = "set the upstream's URL in it, then " + next
	}
	_, err = fmt.Fprintf(o.Out, "wrote %s: %s\n", o.File, next)
	return err
}

func writeStarter(file string, text []byte, force bool) error {
	flags := os.O_WRONLY | os.O_CREATE
	if force {
		flags |= os.O_TRUNC
	} else {
		flags |= os.O_EXCL
	}
	f, err := os.OpenFile(file, flags, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("init: %s exists already; give another name, or --force to overwrite it", file)
	}
	if err != nil {
		return fmt.Errorf("init: %w", err)
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("init: %s is incomplete: %w", file, err)
	}
	return nil
}

// NewSchemaCommand returns weir schema, which prints the JSON schema of the file.
func NewSchemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON schema of the configuration, for editors",
		Long: `Schema prints the JSON schema (2020-12) of the configuration. An editor that
understands schemas completes keys with it, shows their meaning, and marks
mistakes while you type. It knows the form only; weir check knows the rest.`,
		Example: "  weir schema > weir.schema.json",
		Args:    needs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := cmd.OutOrStdout().Write(config.Schema)
			return err
		},
	}
}

// loadConfig reads a configuration of the gateway. For a scenario its error says only that
// it is one, for all of its fields would be faults.
func loadConfig(file string) (*config.Config, error) {
	if file == "-" {
		return nil, usage("only weir check reads the standard input (-); write the configuration to a file, and name that")
	}
	cfg, err := config.Load(file)
	var faults *fault.Faults
	if !errors.As(err, &faults) {
		return cfg, err
	}
	if data, readErr := config.ReadFile(file); readErr == nil && kindOf(data) == scenarioFile {
		return nil, fmt.Errorf("%s: is a scenario, not a configuration of the gateway; weir sim %s runs it", file, file)
	}
	return nil, err
}

// kind is what a file seems to be for.
type kind int

const (
	unknownFile kind = iota
	configFile
	scenarioFile
)

// kindOf guesses the kind by the fields at the top level: the two kinds of file share none.
// A file with fields of both kinds, or of neither, is unknown.
func kindOf(data []byte) kind {
	root, _ := config.ParseDocument("", data)
	if root == nil {
		return unknownFile
	}
	has := func(names ...string) bool {
		for _, name := range names {
			if root.Get(name) != nil {
				return true
			}
		}
		return false
	}
	gateway := has("upstreams", "listeners", "routes")
	scenario := has("phases", "backend", "traffic")
	switch {
	case gateway && !scenario:
		return configFile
	case scenario && !gateway:
		return scenarioFile
	}
	return unknownFile
}
