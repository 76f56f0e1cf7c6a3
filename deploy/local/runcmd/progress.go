package runcmd

import (
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"sync/atomic"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"

	"ipufarm/protocol"
)

// progress shows a person how far a job is.
type progress interface {
	event(e *protocol.Event)
	end()
}

// newProgress draws a bar on a terminal and writes lines elsewhere.
func newProgress(w io.Writer) progress {
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return newBar(f)
	}
	return lines{w}
}

// describe is the line for an event, empty for those that tell a person nothing.
func describe(e *protocol.Event) string {
	switch e.Type {
	case protocol.EventPlanned:
		return fmt.Sprintf("planned: %d finalists", e.Total)
	case protocol.EventReference:
		return "reference evaluated"
	case protocol.EventVerdict:
		line := fmt.Sprintf("decided %d of %d: finalist %d (%s) %s", e.Decided, e.Total, e.Candidate, e.Family, e.Verdict)
		switch {
		case e.Cycles > 0:
			line += fmt.Sprintf(", %s modelled cycles", Group(e.Cycles))
		case e.Constraint != "":
			line += ": " + e.Constraint
		}
		return line
	case protocol.EventDecided:
		return fmt.Sprintf("winner: finalist %d (%s), %s modelled cycles", e.Candidate, e.Family, Group(e.Cycles))
	case protocol.EventRunning:
		return "running"
	case protocol.EventChecked:
		verdict := "agrees with"
		if !e.Passed {
			verdict = "does not agree with"
		}
		return fmt.Sprintf("checked: %s %s cycles, %s the reference (max abs error %s)", Group(e.Cycles), origin(e.Measured), verdict, errorText(e.MaxAbsError, 4))
	case protocol.EventFault:
		task := string(e.Kind)
		if e.Candidate != protocol.NoCandidate {
			task = fmt.Sprintf("%s of finalist %d", e.Kind, e.Candidate)
		}
		return fmt.Sprintf("%s is tried again: %s", task, e.Message)
	}
	return ""
}

// errorText is an error of outputs with so many digits. JSON has no infinity, so
// outputs that are not finite have the largest number for an error.
func errorText(x float64, digits int) string {
	if x >= math.MaxFloat64 {
		return "not finite"
	}
	return strconv.FormatFloat(x, 'g', digits, 64)
}

type lines struct{ w io.Writer }

func (l lines) event(e *protocol.Event) {
	if s := describe(e); s != "" {
		fmt.Fprintln(l.w, s)
	}
}

func (lines) end() {}

// bar counts planning, the finalists, the run and its check.
type bar struct {
	out    *mpb.Progress
	bar    *mpb.Bar
	status atomic.Value
	total  int
	done   int
}

func newBar(w io.Writer, options ...mpb.ContainerOption) *bar {
	b := &bar{out: mpb.New(append(options, mpb.WithOutput(w), mpb.WithWidth(32))...), total: 3}
	b.status.Store("planning")
	// A bar that is made with a total completes there, whatever SetTotal says later.
	b.bar = b.out.AddBar(0,
		mpb.PrependDecorators(decor.Elapsed(decor.ET_STYLE_MMSS), decor.Name(" ")),
		mpb.AppendDecorators(decor.CountersNoUnit("%d/%d "), decor.Any(func(decor.Statistics) string { return b.status.Load().(string) })))
	b.bar.SetTotal(int64(b.total), false)
	return b
}

func (b *bar) event(e *protocol.Event) {
	switch e.Type {
	case protocol.EventPlanned:
		b.total = e.Total + 3
		b.bar.SetTotal(int64(b.total), false)
		b.done++
	case protocol.EventVerdict, protocol.EventPruned:
		if b.done < b.total-2 {
			b.done++
		}
	case protocol.EventDecided: // also those that were never started
		b.done = b.total - 2
	case protocol.EventRunning, protocol.EventChecked:
		b.done++
	}
	b.bar.SetCurrent(int64(b.done))
	switch s := describe(e); {
	case s != "":
		b.status.Store(s)
	case e.Type == protocol.EventProgress && e.Message != "":
		b.status.Store(fmt.Sprintf("%s: %s", e.Kind, e.Message))
	}
}

// end draws the bar for the last time, where it is: a job without a result leaves
// it short.
func (b *bar) end() {
	if b.done == b.total {
		b.bar.SetTotal(int64(b.total), true)
	} else {
		b.bar.Abort(false)
	}
	b.out.Wait()
}
