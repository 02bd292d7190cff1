package cli

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"
)

// NewManCommand returns weir man, which prints the manual pages of all commands.
func NewManCommand(version string) *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "man [COMMAND]",
		Short: "Print a manual page, or write all of them to a directory",
		Long: `Man prints the manual page of a command, in the form that man reads. Without COMMAND it
is that of weir. --dir writes the pages of all commands, as weir.1, weir-run.1 and so on,
to a directory that is made if it is not there. The packages install them already.`,
		Example: "  weir man run | man -l -\n  weir man --dir /usr/local/share/man/man1",
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			root := documented(version)
			if dir != "" && len(args) > 0 {
				return usage("--dir writes the pages of all commands; leave %s out", strings.Join(args, " "))
			}
			if dir != "" {
				if err := os.MkdirAll(dir, 0o755); err != nil {
					return fmt.Errorf("man: %w", err)
				}
				return writeManuals(root, version, dir)
			}
			of, rest, err := root.Find(args)
			if err != nil || len(rest) > 0 {
				return usage("there is no command %q; see weir --help", strings.Join(args, " "))
			}
			return writeManual(of, version, cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "directory to write the pages of all commands to")
	return cmd
}

func writeManuals(cmd *cobra.Command, version, dir string) error {
	f, err := os.Create(filepath.Join(dir, strings.ReplaceAll(cmd.CommandPath(), " ", "-")+".1"))
	if err != nil {
		return fmt.Errorf("man: %w", err)
	}
	err = writeManual(cmd, version, f)
	if closed := f.Close(); err == nil {
		err = closed
	}
	for _, sub := range cmd.Commands() {
		if err == nil && listed(sub) {
			err = writeManuals(sub, version, dir)
		}
	}
	return err
}

func writeManual(cmd *cobra.Command, version string, out io.Writer) error {
	cmd.DisableAutoGenTag = true
	return doc.GenMan(cmd, &doc.GenManHeader{Section: "1", Source: "weir " + version, Manual: "weir"}, out)
}

// NewCompletionCommand returns weir completion, which prints what shells complete commands by.
func NewCompletionCommand() *cobra.Command {
	scripts := map[string]func(*cobra.Command, io.Writer) error{
		"bash":       func(root *cobra.Command, out io.Writer) error { return root.GenBashCompletionV2(out, true) },
		"zsh":        func(root *cobra.Command, out io.Writer) error { return root.GenZshCompletion(out) },
		"fish":       func(root *cobra.Command, out io.Writer) error { return root.GenFishCompletion(out, true) },
		"powershell": func(root *cobra.Command, out io.Writer) error { return root.GenPowerShellCompletionWithDesc(out) },
	}
	shells := []string{"bash", "zsh", "fish", "powershell"}
	return &cobra.Command{
		Use:   "completion SHELL",
		Short: "Print the script by which a shell completes weir's commands and flags",
		Long: `Completion prints a script for bash, zsh, fish or powershell. With it, the shell completes
commands, flags and their values. The packages install those for bash, zsh and fish.`,
		Example:   "  source <(weir completion bash)\n  weir completion zsh > \"${fpath[1]}/_weir\"\n  weir completion fish > ~/.config/fish/completions/weir.fish",
		ValidArgs: shells,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 || scripts[args[0]] == nil {
				return usage("for which shell? Write weir completion %s", strings.Join(shells, ", or "))
			}
			return scripts[args[0]](cmd.Root(), cmd.OutOrStdout())
		},
	}
}

// documented returns weir with all its commands, their texts as Markdown.
func documented(version string) *cobra.Command {
	root := NewRootCommand(version)
	root.InitDefaultHelpCmd()
	asMarkdown(root)
	return root
}

// asMarkdown turns the texts of a command and those below it into Markdown.
func asMarkdown(cmd *cobra.Command) {
	cmd.InitDefaultHelpFlag()
	cmd.Long = markdown(longOf(cmd))
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		f.Usage = markdown(sentence(f.Usage))
		if f.DefValue == "0" { // which stands for no value
			f.DefValue = ""
		}
	})
	for _, sub := range cmd.Commands() {
		asMarkdown(sub)
	}
}

// markdown returns a text for terminals as Markdown. Indented lines become code.
func markdown(text string) string {
	var b strings.Builder
	code := false
	for line := range strings.Lines(text) {
		indented := strings.HasPrefix(line, "  ")
		if indented != code {
			b.WriteString("\n")
			code = indented
		}
		if indented {
			b.WriteString("  " + line)
			continue
		}
		b.WriteString(escapes.Replace(line))
	}
	return b.String()
}

var escapes = strings.NewReplacer(`\`, `\\`, "*", `\*`, "_", `\_`, "`", "\\`", "<", `\<`, "[", `\[`)

// listed reports whether a command has a place in pages.
func listed(cmd *cobra.Command) bool {
	return cmd.IsAvailableCommand() && cmd.Name() != "help"
}
