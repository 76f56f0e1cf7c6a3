// Package placecmd holds the verbs of the placer: solve replays captured problems.
package placecmd

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"ipufarm/compiler/place"
	"ipufarm/protocol/machine"
)

// Command returns the verb "place".
func Command() *cobra.Command {
	c := &cobra.Command{
		Use:   "place",
		Short: "Give the buffers of tiles their SRAM addresses",
		Args:  cobra.NoArgs,
	}
	c.AddCommand(solve())
	return c
}

// maxCapture bounds the file: a whole card of tiles has some 8 MB.
const maxCapture = 256 << 20

func solve() *cobra.Command {
	var (
		tile, effort int
		asJSON       bool
	)
	c := &cobra.Command{
		Use:   "solve FILE",
		Short: "Solve the placement problems of a capture and check the answers",
		Long: `Solve the placement problems of a capture, tile by tile, and check every answer by
the rules alone. The exit status is 0 if every tile was placed.`,
		Args:          cobra.ExactArgs(1),
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(c *cobra.Command, args []string) error {
			if effort < 0 {
				return fmt.Errorf("--effort %d; accepted: 0 (the default of %d) or more", effort, place.DefaultEffort)
			}
			tiles, err := read(args[0])
			if err != nil {
				return err
			}
			if c.Flags().Changed("tile") {
				if tiles = only(tiles, tile); len(tiles) == 0 {
					return fmt.Errorf("--tile %d; accepted: a tile of %s", tile, args[0])
				}
			}
			results, err := solveAll(tiles, effort)
			if err != nil {
				return err
			}
			if err := write(c.OutOrStdout(), results, asJSON); err != nil {
				return err
			}
			if n := refused(results); n > 0 {
				return fmt.Errorf("place: %d of %d tiles were refused", n, len(results))
			}
			return nil
		},
	}
	f := c.Flags()
	f.IntVar(&tile, "tile", 0, "solve only this tile of the capture")
	f.IntVar(&effort, "effort", 0, "steps for each tile after the greedy attempts (0: the default)")
	f.BoolVar(&asJSON, "json", false, "print one JSON object")
	return c
}

func read(name string) ([]place.Tile, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxCapture+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if len(data) > maxCapture {
		return nil, fmt.Errorf("%s is longer than %d bytes, which is the most that is accepted", name, maxCapture)
	}
	tiles, err := place.DecodeCapture(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return tiles, nil
}

func only(tiles []place.Tile, tile int) []place.Tile {
	var kept []place.Tile
	for _, t := range tiles {
		if t.Tile == tile {
			kept = append(kept, t)
		}
	}
	return kept
}

// result is what became of one tile.
type result struct {
	Tile      int      `json:"tile"`
	Verdict   string   `json:"verdict"` // "placed", or the kind of the refusal
	Requests  int      `json:"requests"`
	LiveBytes int64    `json:"live_bytes_peak"`
	FreeBytes int64    `json:"free_bytes"`
	Seconds   float64  `json:"seconds"`
	Addresses []uint32 `json:"addresses,omitempty"`

	Refusal string  `json:"refusal,omitempty"`
	Request *int32  `json:"request,omitempty"`
	Step    *int32  `json:"step,omitempty"`
	Live    []int32 `json:"live,omitempty"`
}

func solveAll(tiles []place.Tile, effort int) ([]result, error) {
	s := place.Solver{Effort: effort}
	results := make([]result, 0, len(tiles))
	for i := range tiles {
		t := &tiles[i]
		p := &t.Problem
		r := result{Tile: t.Tile, Verdict: "placed", Requests: len(p.Requests), LiveBytes: place.PeakLive(p)}
		for _, f := range p.Free {
			r.FreeBytes += int64(f.End - f.Start)
		}
		start := time.Now()
		if err := s.Reset(p); err != nil {
			return nil, fmt.Errorf("tile %d: %w", t.Tile, err)
		}
		addresses, err := s.Solve()
		r.Seconds = time.Since(start).Seconds()
		var refusal *place.Refusal
		switch {
		case err == nil:
			r.Addresses = addresses
			if err := place.Check(p, addresses); err != nil {
				return nil, fmt.Errorf("tile %d: the solver broke a rule: %w", t.Tile, err)
			}
		case errors.As(err, &refusal):
			refusal.Tile = int32(t.Tile)
			r.Verdict, r.Refusal = refusal.Kind.String(), refusal.Error()
			r.Request, r.Step, r.Live = &refusal.Request, &refusal.Step, refusal.Live
		default:
			return nil, fmt.Errorf("tile %d: %w", t.Tile, err)
		}
		results = append(results, r)
	}
	return results, nil
}

func refused(results []result) int {
	n := 0
	for _, r := range results {
		if r.Verdict != "placed" {
			n++
		}
	}
	return n
}

func write(w io.Writer, results []result, asJSON bool) error {
	if asJSON {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(struct {
			Tiles []result `json:"tiles"`
		}{results})
	}
	var seconds float64
	for _, r := range results {
		seconds += r.Seconds
		line := fmt.Sprintf("tile %d: placed %d buffers, %d of %d bytes live at most", r.Tile, r.Requests, r.LiveBytes, r.FreeBytes)
		if r.Verdict != "placed" {
			line = r.Refusal
		}
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w, "%d of %d tiles placed and checked in %.3f ms (tile memory %d bytes)\n",
		len(results)-refused(results), len(results), seconds*1e3, machine.MemorySize)
	return err
}
