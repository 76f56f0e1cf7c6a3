package exchange

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// This file reads and writes phases as JSON, the form that `exchange schedule`
// takes and `exchange capture` writes:
//
//	{"version":1,"tiles":1472,"transfers":[
//	  {"source":0,"addresses":[413696],"words":64,"receivers":[{"tile":5,"address":524288}]}]}
//
// Tiles are logical, addresses in bytes. A transfer has one source address, or
// one for each iteration of the loop that the phase is part of, and may have
// "width":32 or 64; without, the scheduler chooses.

const phaseVersion = 1

// MaxPhaseBytes bounds the text of a phase.
const MaxPhaseBytes = 1 << 30

type jsonPhase struct {
	Version   int            `json:"version"`
	Tiles     int            `json:"tiles"`
	Transfers []jsonTransfer `json:"transfers"`
}

type jsonTransfer struct {
	Source    int32          `json:"source"`
	Addresses []uint32       `json:"addresses"`
	Words     int32          `json:"words"`
	Receivers []jsonReceiver `json:"receivers"`
	Width     uint8          `json:"width,omitempty"`
}

type jsonReceiver struct {
	Tile    int32  `json:"tile"`
	Address uint32 `json:"address"`
}

// ReadProblem reads a phase. It checks the form only: see Check.
func ReadProblem(r io.Reader) (*Problem, error) {
	limited := &io.LimitedReader{R: r, N: MaxPhaseBytes + 1}
	d := json.NewDecoder(limited)
	d.DisallowUnknownFields()
	var j jsonPhase
	if err := d.Decode(&j); err != nil {
		if limited.N <= 0 {
			return nil, fmt.Errorf("exchange phase is over %d bytes", MaxPhaseBytes)
		}
		return nil, fmt.Errorf("exchange phase: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("exchange phase: something follows the object")
	}
	if j.Version != phaseVersion {
		return nil, fmt.Errorf("exchange phase has version %d, accepted is %d", j.Version, phaseVersion)
	}
	return j.problem()
}

func (j *jsonPhase) problem() (*Problem, error) {
	p := &Problem{Tiles: j.Tiles, Transfers: make([]Transfer, len(j.Transfers))}
	iterations := 1
	if len(j.Transfers) > 0 {
		iterations = len(j.Transfers[0].Addresses)
	}
	if iterations > 1 {
		p.Moves = make([][]uint32, iterations-1)
		for i := range p.Moves {
			p.Moves[i] = make([]uint32, len(j.Transfers))
		}
	}
	for t := range j.Transfers {
		x := &j.Transfers[t]
		if len(x.Addresses) == 0 || len(x.Addresses) != iterations {
			return nil, fmt.Errorf("exchange transfer %d has %d source addresses, the first has %d; all must have one, or one for each iteration", t, len(x.Addresses), iterations)
		}
		p.Transfers[t] = Transfer{x.Source, x.Addresses[0], x.Words, int32(len(p.Receivers)), int32(len(x.Receivers))}
		for i, a := range x.Addresses[1:] {
			p.Moves[i][t] = a
		}
		for _, r := range x.Receivers {
			p.Receivers = append(p.Receivers, Receiver(r))
		}
		if x.Width != 0 && p.Widths == nil {
			p.Widths = make([]uint8, len(j.Transfers))
		}
		if x.Width != 0 {
			p.Widths[t] = x.Width
		}
	}
	return p, nil
}

// WriteProblem writes a phase, one transfer a line.
func WriteProblem(w io.Writer, p *Problem) error {
	b := bufio.NewWriterSize(w, 1<<16)
	fmt.Fprintf(b, `{"version":%d,"tiles":%d,"transfers":[`, phaseVersion, p.Tiles)
	var line []byte
	for t := range p.Transfers {
		line = appendTransfer(line[:0], p, int32(t))
		if t > 0 {
			b.WriteByte(',')
		}
		b.WriteByte('\n')
		b.Write(line)
	}
	b.WriteString("]}\n")
	return b.Flush()
}

func appendTransfer(b []byte, p *Problem, t int32) []byte {
	number := func(key string, n int64) {
		b = append(b, key...)
		b = strconv.AppendInt(b, n, 10)
	}
	x := &p.Transfers[t]
	number(`{"source":`, int64(x.Source))
	number(`,"addresses":[`, int64(x.Address))
	for _, addresses := range p.Moves {
		number(",", int64(addresses[t]))
	}
	number(`],"words":`, int64(x.Words))
	b = append(b, `,"receivers":[`...)
	for i, r := range p.receivers(t) {
		if i > 0 {
			b = append(b, ',')
		}
		number(`{"tile":`, int64(r.Tile))
		number(`,"address":`, int64(r.Address))
		b = append(b, '}')
	}
	b = append(b, ']')
	if width := p.width(t); width != 0 {
		number(`,"width":`, int64(width))
	}
	return append(b, '}')
}
