// Package capturecmd is the verbs that write what the compiler hands to its
// schedulers: exchange phases and tile placements of any finalist, for replaying
// them with "exchange schedule" and "place solve".
package capturecmd

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"ipufarm/compiler"
	"ipufarm/compiler/exchange"
	"ipufarm/compiler/place"
	"ipufarm/compiler/plan"
	"ipufarm/compiler/workload"
	"ipufarm/protocol/atomicfile"
)

// options choose a finalist.
type options struct {
	workload workload.Options
	tiles    int
	finalist int
	out      string
}

func (o *options) bind(c *cobra.Command) {
	o.workload = workload.Defaults()
	f := c.Flags()
	workload.BindFlags(f, &o.workload)
	f.IntVar(&o.tiles, "tiles", o.workload.Tiles, "tiles to use, a multiple of 64 up to 1472")
	f.IntVar(&o.finalist, "finalist", 0, "rank of the finalist")
	f.StringVarP(&o.out, "output", "o", "captures", "folder to write to")
}

// finish plans the workload and returns the chosen finalist, finished. A finalist
// that is refused is an error here: it has no addresses.
func (o *options) finish(ctx context.Context, progress io.Writer) (*compiler.Compiled, error) {
	spec, err := compiler.NewSpec(o.workload, o.tiles)
	if err != nil {
		return nil, err
	}
	_, m, err := spec.Model()
	if err != nil {
		return nil, err
	}
	list, err := plan.Search(m, plan.Options{Tiles: spec.Tiles, Finalists: spec.Finalists, Effort: spec.Effort}, func(s string) { fmt.Fprintln(progress, s) })
	if err != nil {
		return nil, err
	}
	if o.finalist < 0 || o.finalist >= len(list) {
		return nil, fmt.Errorf("--finalist %d: ranks 0 to %d are accepted", o.finalist, len(list)-1)
	}
	c, err := compiler.Finish(ctx, m, &list[o.finalist], func(string) {})
	if err != nil {
		return nil, fmt.Errorf("finalist %d (%s): %w", o.finalist, list[o.finalist].Family, err)
	}
	return c, nil
}

// folder makes the output folder and says so early if it cannot.
func (o *options) folder() error {
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return fmt.Errorf("--output: %w", err)
	}
	return nil
}

// Exchange returns "exchange capture".
func Exchange() *cobra.Command {
	var o options
	c := &cobra.Command{
		Use:   "capture",
		Short: "write the exchange phases of a finalist, as exchange schedule reads them",
		Args:  cobra.NoArgs, SilenceUsage: true,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := o.folder(); err != nil {
				return err
			}
			k, err := o.finish(c.Context(), c.ErrOrStderr())
			if err != nil {
				return err
			}
			for i := range k.Program.Phases {
				p := k.Problem(i)
				path := filepath.Join(o.out, fmt.Sprintf("phase-%03d.json", i))
				if err := atomicfile.WriteFunc(path, func(w io.Writer) error { return exchange.WriteProblem(w, p) }); err != nil {
					return err
				}
				op := k.Program.Operations[k.Program.Phases[i].Operations[0]]
				fmt.Fprintf(c.OutOrStdout(), "%s  %d transfers  %s/%s\n", path, len(p.Transfers), op.Name, op.Kind)
			}
			return nil
		},
	}
	o.bind(c)
	return c
}

// Place returns "place capture".
func Place() *cobra.Command {
	var o options
	c := &cobra.Command{
		Use:   "capture",
		Short: "write the tile placements of a finalist, as place solve reads them",
		Args:  cobra.NoArgs, SilenceUsage: true,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := o.folder(); err != nil {
				return err
			}
			k, err := o.finish(c.Context(), c.ErrOrStderr())
			if err != nil {
				return err
			}
			problems, _, err := compiler.Problems(k.Program, k.Reserved)
			if err != nil {
				return err
			}
			tiles := make([]place.Tile, len(problems))
			for i := range problems {
				tiles[i] = place.Tile{Tile: i, Problem: problems[i]}
			}
			path := filepath.Join(o.out, "placement.json")
			if err := atomicfile.Write(path, place.EncodeCapture(tiles)); err != nil {
				return err
			}
			fmt.Fprintf(c.OutOrStdout(), "%s  %d tiles, %d buffers\n", path, len(tiles), len(k.Program.Buffers))
			return nil
		},
	}
	o.bind(c)
	return c
}
