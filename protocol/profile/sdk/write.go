package sdk

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"ipufarm/protocol/atomicfile"
)

// Names of the files that Write makes.
const (
	SummaryFile = "summary.json"
	StepsFile   = "steps.csv"
	BodyFile    = "first-body.csv"
	TilesFile   = "tiles.csv"
)

// number spells a number of a table; what is not recorded stays empty.
func number(n int64) string {
	if n < 0 {
		return ""
	}
	return strconv.FormatInt(n, 10)
}

var stepColumns = []string{"step", "type", "inference", "stage", "role", "kernel", "program", "compute_set", "measured_cycles",
	"active_tiles", "measured_start", "measured_end", "exchange_code_bytes_max", "name"}

// stepsCSV writes steps as a table; inference is 0 outside of one.
func stepsCSV(steps []Step, inference func(id int64) int) []byte {
	var b bytes.Buffer
	w := csv.NewWriter(&b)
	w.Write(stepColumns) // a buffer does not fail
	for i := range steps {
		s := &steps[i]
		of := ""
		if n := inference(s.ID); n > 0 {
			of = strconv.Itoa(n)
		}
		w.Write([]string{number(s.ID), s.Type, of, s.Stage.String(), s.Role.String(), s.Kernel(), number(s.Program), number(s.ComputeSet), number(s.Cycles),
			number(s.ActiveTiles), number(s.Start), number(s.End), number(s.CodeBytes), s.Name})
	}
	w.Flush()
	return b.Bytes()
}

// tilesCSV writes the memory of every tile that either list knows.
func tilesCSV(memory, code []TileBytes) []byte {
	var b bytes.Buffer
	w := csv.NewWriter(&b)
	w.Write([]string{"tile", "allocated_bytes", "exchange_code_bytes"})
	for len(memory) > 0 || len(code) > 0 {
		row := []string{"", "", ""}
		tile := int64(maxTile)
		for _, list := range [][]TileBytes{memory, code} {
			if len(list) > 0 {
				tile = min(tile, list[0].Tile)
			}
		}
		row[0] = number(tile)
		for i, list := range []*[]TileBytes{&memory, &code} {
			if len(*list) > 0 && (*list)[0].Tile == tile {
				row[1+i] = number((*list)[0].Bytes)
				*list = (*list)[1:]
			}
		}
		w.Write(row)
	}
	w.Flush()
	return b.Bytes()
}

// Write writes the summary, the steps, those of the first shared body and the
// memory of the tiles into a folder, which it makes. Each file is complete or
// absent; the summary comes last, so where it is, the others are of the same
// recording.
func (s *Summary) Write(folder string) error {
	summary, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	inference := func(id int64) int {
		i, found := slices.BinarySearchFunc(s.Inferences, id, func(x Inference, id int64) int {
			switch {
			case x.LastStep < id:
				return -1
			case x.FirstStep > id:
				return 1
			}
			return 0
		})
		if !found {
			return 0
		}
		return s.Inferences[i].Index
	}
	var body []Step
	if s.Body != nil {
		body = s.Body.steps
	}
	if err := os.MkdirAll(folder, 0o777); err != nil {
		return err
	}
	for _, f := range []struct {
		name string
		data []byte
	}{
		{StepsFile, stepsCSV(s.recording.Steps, inference)},
		{BodyFile, stepsCSV(body, inference)},
		{TilesFile, tilesCSV(s.recording.Memory, s.recording.ExchangeCode)},
		{SummaryFile, append(summary, '\n')},
	} {
		if err := atomicfile.Write(filepath.Join(folder, f.name), f.data); err != nil {
			return err
		}
	}
	return nil
}
