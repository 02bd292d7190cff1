package cli

import (
	"github.com/spf13/cobra"

	"github.com/weir-go/weir/gateway/internal/config"
)

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
			schema, err := config.Schema()
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(schema)
			return err
		},
	}
}
