// Package programcmd holds the command-line verbs for package files (.ipuexe):
// package inspect, verify and diff.
package programcmd

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"ipufarm/protocol/machine"
	"ipufarm/protocol/program"
)

const digestHelp = `A package file carries no checksum. Damage that breaks its structure, its command
streams or its exchange rows is always found; a bit that flips inside a number or a
value that has no wrong states is found only by comparing the SHA-256 of the file,
with --sha256 or with FILE.sha256 beside it, which ipufarm writes with every package.`

// Command returns the verb "package" with its three verbs. Every failure is one
// line that names the file.
func Command() *cobra.Command {
	c := &cobra.Command{Use: "package", Short: "Inspect, verify and compare packages (.ipuexe)"}
	c.AddCommand(inspectCommand(), verifyCommand(), diffCommand())
	for _, verb := range c.Commands() {
		// The line names the file; how to call the verb does not help with that.
		verb.SilenceUsage = true
	}
	return c
}

func inspectCommand() *cobra.Command {
	var digest string
	o := program.InspectOptions{}
	c := &cobra.Command{
		Use:   "inspect FILE",
		Short: "Print what a package holds",
		Long:  "Print what a package holds, or everything about one tile with --tile. The package\nis verified first.\n\n" + digestHelp,
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if o.Tile < -1 || o.Tile >= machine.Tiles {
				return fmt.Errorf("--tile %d, want a physical tile from 0 to %d", o.Tile, machine.Tiles-1)
			}
			p, _, err := load(args[0], digest)
			if err != nil {
				return err
			}
			return program.Inspect(c.OutOrStdout(), p, o)
		},
	}
	c.Flags().IntVar(&o.Tile, "tile", -1, "physical `tile` to print with its commands and exchange rows")
	c.Flags().BoolVar(&o.JSON, "json", false, "print one JSON object")
	digestFlag(c, &digest)
	return c
}

func verifyCommand() *cobra.Command {
	var digest string
	var asJSON bool
	c := &cobra.Command{
		Use:   "verify FILE",
		Short: "Check everything about a package that can be checked without running it",
		Long:  "Check everything about a package that can be checked without running it.\n\n" + digestHelp,
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			p, v, err := load(args[0], digest)
			if err != nil {
				return err
			}
			v.Tiles = len(p.Tiles)
			return v.print(c.OutOrStdout(), asJSON)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	digestFlag(c, &digest)
	return c
}

func digestFlag(c *cobra.Command, digest *string) {
	c.Flags().StringVar(digest, "sha256", "", "`digest` that the file must have (default: that in FILE.sha256, if there is one)")
}

// verdict is what verify says about a good package.
type verdict struct {
	File     string `json:"file"`
	SHA256   string `json:"sha256"`
	Bytes    int    `json:"bytes"`
	Tiles    int    `json:"tiles"`
	Compared bool   `json:"digest_compared"`
}

func (v verdict) print(w io.Writer, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(w).Encode(v)
	}
	note := "digest matches"
	if !v.Compared {
		note = "no digest to compare with, so damage inside values would not be noticed"
	}
	_, err := fmt.Fprintf(w, "%s: good: %d tiles, %d bytes, SHA-256 %s (%s)\n", v.File, v.Tiles, v.Bytes, v.SHA256, note)
	return err
}

// load reads and verifies a package file.
func load(path, digest string) (*program.Package, verdict, error) {
	file, compared, err := program.ReadFile(path, digest)
	if err != nil {
		return nil, verdict{}, err
	}
	p, err := program.Verify(file)
	if err != nil {
		return nil, verdict{}, fmt.Errorf("%s: %w", path, err)
	}
	return p, verdict{File: path, SHA256: program.SHA256(file), Bytes: len(file), Compared: compared}, nil
}

func diffCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "diff A B",
		Short: "List how two packages differ",
		Long:  "List how two packages differ. Exit status 0 means that they are the same.",
		Args:  cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			a, va, err := load(args[0], "")
			if err != nil {
				return err
			}
			b, vb, err := load(args[1], "")
			if err != nil {
				return err
			}
			differences, err := program.Diff(a, b)
			if err != nil {
				return err
			}
			if len(differences) == 0 && va.SHA256 != vb.SHA256 {
				differences = []program.Difference{{What: "encoding of equal contents", A: va.SHA256, B: vb.SHA256}}
			}
			if err := printDifferences(c.OutOrStdout(), differences, asJSON); err != nil {
				return err
			}
			if n := len(differences); n > 0 {
				return fmt.Errorf("%s and %s differ in %d ways", args[0], args[1], n)
			}
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print one JSON array")
	return c
}

func printDifferences(w io.Writer, differences []program.Difference, asJSON bool) error {
	if asJSON {
		if differences == nil {
			differences = []program.Difference{}
		}
		return json.NewEncoder(w).Encode(differences)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, d := range differences {
		fmt.Fprintf(t, "%s\t%s\t%s\n", d.What, d.A, d.B)
	}
	return t.Flush()
}
