package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// NewVersionCommand returns weir version.
func NewVersionCommand(version string) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Say which weir this is",
		Args:  needs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), versionLine(version))
			return err
		},
	}
}

func versionLine(version string) string {
	return fmt.Sprintf("weir %s %s %s/%s", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// versionOf returns the version that the linker was given, or what the build
// knows of itself.
func versionOf(linked string) string {
	if linked != "" {
		return linked
	}
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" || info.Main.Version == "(devel)" {
		return "devel"
	}
	return info.Main.Version
}
