package local

import (
	"io"
	"log/slog"
	"os"
	"runtime"
	"testing"

	"ipufarm/protocol"
)

// BenchmarkNoop measures what the farm costs per task when tasks do nothing:
// jobs of 64 finalists, each scheduled and validated, on a slot for each core.
func BenchmarkNoop(b *testing.B) {
	executable, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	for name, o := range map[string]Options{
		"function": {Workers: runtime.NumCPU()},
		"child":    {Workers: runtime.NumCPU(), Command: []string{executable, "fake-stage"}},
	} {
		b.Run(name, func(b *testing.B) {
			o.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
			f := start(b, o)
			tasks := 0
			for i := range b.N {
				spec := fake{Finalists: make([]fakeFinalist, 64), Salt: 1000*b.N + i}
				for i := range spec.Finalists {
					spec.Finalists[i].Cycles = uint64(100 + i)
				}
				r := result(b, f, submit(b, f, spec, protocol.Policy{Name: protocol.VerifyAll}))
				if r.State != protocol.JobDone {
					b.Fatal(r.Error)
				}
				tasks += 2*len(r.Finalists) + 3
			}
			b.ReportMetric(float64(tasks)/b.Elapsed().Seconds(), "tasks/s")
			b.ReportMetric(b.Elapsed().Seconds()*1000/float64(tasks), "ms/task")
		})
	}
}

// BenchmarkStart measures start and end of a whole farm.
func BenchmarkStart(b *testing.B) {
	for range b.N {
		f := start(b, Options{Workers: runtime.NumCPU(), Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
		if err := f.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
