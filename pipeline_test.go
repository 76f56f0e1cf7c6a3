package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"

	"ipufarm/compiler"
	"ipufarm/compiler/graph"
	"ipufarm/compiler/kernel"
	"ipufarm/compiler/lower"
	"ipufarm/compiler/plan"
	"ipufarm/compiler/reference"
	"ipufarm/compiler/workload"
	"ipufarm/protocol/compare"
	"ipufarm/protocol/numeric"
	"ipufarm/protocol/program"
	"ipufarm/runner/device"
)

// These tests hold the compiler against the device, which share nothing but
// protocol/: this package and deploy/local are the only ones that may see both.

// subject is a spec with everything that its finalists are judged by.
type subject struct {
	spec    compiler.Spec
	graph   *graph.Graph
	model   *lower.Model
	weights map[string]graph.Tensor
	inputs  map[string]graph.Tensor
	want    []float32
}

func newSubject(t testing.TB, tiles int, change func(*workload.Options)) *subject {
	t.Helper()
	o := workload.Defaults()
	o.Small = true
	change(&o)
	spec, err := compiler.NewSpec(o, tiles)
	if err != nil {
		t.Fatal(err)
	}
	s := &subject{spec: spec}
	if s.graph, s.model, err = spec.Model(); err != nil {
		t.Fatal(err)
	}
	if s.weights, err = workload.Weights(s.graph, spec.Workload); err != nil {
		t.Fatal(err)
	}
	if s.inputs, err = workload.Inputs(s.graph, spec.Workload); err != nil {
		t.Fatal(err)
	}
	want, err := reference.Evaluate(context.Background(), s.graph, s.weights, s.inputs)
	if err != nil {
		t.Fatal(err)
	}
	s.want = want[s.graph.Outputs[0].Name]
	return s
}

// run compiles a recipe, runs its bytes on the device and compares the outcome.
func (s *subject) run(t testing.TB, f *plan.Finalist) (*device.Result, *compiler.Compiled, *program.Package, compare.Report) {
	t.Helper()
	ctx := context.Background()
	c, err := compiler.Finish(ctx, s.model, f, func(string) {})
	if err != nil {
		t.Fatalf("%s %+v: %v", f.Family, f.Recipe, err)
	}
	file, files, err := c.Assemble(s.graph, s.weights, s.inputs)
	if err != nil {
		t.Fatalf("%s: %v", f.Family, err)
	}
	p, err := program.Decode(file)
	if err != nil {
		t.Fatal(err)
	}
	d := device.New(device.Options{CollectSamples: true})
	if err := d.Load(p); err != nil {
		t.Fatal(err)
	}
	if err := d.Initialize(ctx, files.Parameters); err != nil {
		t.Fatal(err)
	}
	r, err := d.Run(ctx, files.Inputs)
	if err != nil {
		t.Fatalf("%s: %v", f.Family, err)
	}
	got := make([]float32, len(r.Outputs)/2)
	for i := range got {
		got[i] = numeric.F16ToF32(binary.LittleEndian.Uint16(r.Outputs[2*i:]))
	}
	return r, c, p, compare.Compare(got, s.want, 0, 0)
}

func fp8(scale int) *int { return &scale }

var cases = []struct {
	name   string
	change func(*workload.Options)
	limit  float64 // largest absolute error
}{
	{"f16 separate", func(o *workload.Options) {}, 0.006},
	{"f16 fused", func(o *workload.Options) { o.FuseQKV = true }, 0.006},
	{"f16 batch 2", func(o *workload.Options) { o.Batch = 2 }, 0.009},
	{"f16 batch 3, two layers", func(o *workload.Options) { o.Batch, o.Layers, o.FuseQKV = 3, 2, true }, 0.02},
	{"f16 nine tokens", func(o *workload.Options) { o.ImageSize = 42 }, 0.009},
	{"f16 25 tokens", func(o *workload.Options) { o.ImageSize, o.FuseQKV = 70, true }, 0.009},
	{"fp8 separate", func(o *workload.Options) { o.FP8 = fp8(-4) }, 0.26},
	{"fp8 fused", func(o *workload.Options) { o.FP8, o.FuseQKV = fp8(-4), true }, 0.26},
	{"fp8 batch 2", func(o *workload.Options) { o.FP8, o.Batch, o.FuseQKV = fp8(-4), 2, true }, 0.26},
}

// Every finalist of every case must run on the device without a fault, agree with
// the reference, and take exactly the cycles that the compiler says: two
// implementations of the kernel laws and of the barriers.
func TestFinalistsOnTheDevice(t *testing.T) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := newSubject(t, 64, c.change)
			list, err := plan.Search(s.model, plan.Options{Tiles: s.spec.Tiles, Finalists: 8}, nil)
			if err != nil {
				t.Fatal(err)
			}
			for i := range list {
				r, k, p, report := s.run(t, &list[i])
				if report.MaxAbs > c.limit || report.NonFinite > 0 {
					t.Errorf("finalist %d (%s): %v, want at most %v", i, list[i].Family, report, c.limit)
				}
				if int64(r.Cycles) != k.Exact.Cycles {
					t.Errorf("finalist %d (%s): the device took %d modelled cycles, the compiler says %d", i, list[i].Family, r.Cycles, k.Exact.Cycles)
					explain(t, p, r)
				}
			}
			t.Logf("best of %d: %d modelled cycles", len(list), list[0].Cost.Cycles)
		})
	}
}

// explain lists kernel calls for which the device and the kernel table differ.
func explain(t *testing.T, p *program.Package, r *device.Result) {
	for i := range p.Tiles {
		commands, err := p.Tiles[i].Commands()
		if err != nil {
			t.Fatal(err)
		}
		for j, s := range r.Profile.Tiles[i].Samples {
			if commands[j].Kind != program.Call {
				continue
			}
			if want, got := kernel.CommandCycles(&commands[j]), int32(s.EndCycle-s.StartCycle); got != want {
				t.Errorf("%v %v: device %d, table %d", commands[j].Kernel, commands[j].Args, got, want)
				return
			}
		}
	}
}

// The other workloads: results with GELU in whole rows, inputs that several GEMMs
// read, batches of matrices.
func TestOtherWorkloadsOnTheDevice(t *testing.T) {
	for name, change := range map[string]func(*workload.Options){
		"mlp-smoke":          func(o *workload.Options) {},
		"gemm-smoke":         func(o *workload.Options) {},
		"batched-gemm-smoke": func(o *workload.Options) {},
		"siglip-mlp-benchmark": func(o *workload.Options) {
			o.MLP = workload.MLPOptions{Batch: 1, Tokens: 33, Dim: 128, Hidden: 304, Blocks: 2}
		},
		"siglip-attention-benchmark": func(o *workload.Options) {
			o.Attention = workload.AttentionOptions{Batch: 1, Heads: 1, Blocks: 1, Project: true}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSubject(t, 64, func(o *workload.Options) {
				o.Workload, o.Small = name, false
				change(o)
			})
			list, err := plan.Search(s.model, plan.Options{Tiles: s.spec.Tiles, Finalists: 2}, nil)
			if err != nil {
				t.Fatal(err)
			}
			for i := range list {
				r, k, p, report := s.run(t, &list[i])
				if report.MaxAbs > 0.01 || report.NonFinite > 0 {
					t.Errorf("finalist %d (%s): %v, want at most 0.01", i, list[i].Family, report)
				}
				if int64(r.Cycles) != k.Exact.Cycles {
					t.Errorf("finalist %d (%s): the device took %d modelled cycles, the compiler says %d", i, list[i].Family, r.Cycles, k.Exact.Cycles)
					explain(t, p, r)
				}
			}
		})
	}
}

// Recipes that no planner would choose must still be lowered right: random grids,
// score layouts and first tiles. A failure prints the seed.
func TestRandomRecipesOnTheDevice(t *testing.T) {
	rounds := 40
	if os.Getenv("IPUFARM_LONG") != "" {
		rounds = 2000
	}
	subjects := []*subject{
		newSubject(t, 64, func(o *workload.Options) { o.FuseQKV = true }),
		newSubject(t, 64, func(o *workload.Options) { o.FP8 = fp8(-4) }),
		newSubject(t, 128, func(o *workload.Options) { o.ImageSize, o.Batch = 56, 2 }),
		newSubject(t, 64, func(o *workload.Options) { o.ImageSize, o.FP8, o.FuseQKV = 70, fp8(-4), true }),
	}
	limits := []float64{0.009, 0.26, 0.009, 0.26}
	for seed := range uint64(rounds) {
		i := int(seed) % len(subjects)
		s := subjects[i]
		rng := rand.New(rand.NewPCG(seed, 1))
		r := lower.RandomRecipe(rng, s.model, s.spec.Tiles)
		if err := r.Check(s.model); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		sketch, err := lower.NewSketch(s.model, &r)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		f := plan.Finalist{Family: fmt.Sprint("seed ", seed), Recipe: r, Cost: sketch.Cost}
		res, k, p, report := s.run(t, &f)
		if k.Exact.Cycles < sketch.Cost.Bound {
			t.Errorf("seed %d: %d cycles are below the bound %d: pruning by it could lose the winner", seed, k.Exact.Cycles, sketch.Cost.Bound)
		}
		if report.MaxAbs > limits[i] || report.NonFinite > 0 {
			t.Errorf("seed %d: %v, want at most %v\n%+v", seed, report, limits[i], r)
		}
		if int64(res.Cycles) != k.Exact.Cycles {
			t.Errorf("seed %d: the device took %d modelled cycles, the compiler says %d", seed, res.Cycles, k.Exact.Cycles)
			explain(t, p, res)
		}
	}
}
