package workload

import (
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"ipufarm/compiler/graph"
	"ipufarm/protocol/numeric"
)

// source is a tensor as a checkpoint or a fixture names and shapes it.
type source struct {
	name  string
	shape []int
}

// sources returns what a parameter is made of, in order:
//
//	P.qkv.kernel [in, 3n]     P.query.kernel, P.key.kernel, P.value.kernel, each [in, n],
//	                          side by side along the last axis; P.qkv.bias likewise
//	P.kv.kernel  [in, 2n]     P.key.kernel, P.value.kernel; P.kv.bias likewise
//	P.probe [batch, 1, w]     P.probe [1, 1, w], repeated along the first axis
//	pos_embedding [t, w]      pos_embedding [1, t, w]
//
// Any other parameter is its own source.
func sources(p *graph.Value) []source {
	for _, fused := range []struct {
		infix string
		parts []string
	}{
		{".qkv.", []string{".query.", ".key.", ".value."}},
		{".kv.", []string{".key.", ".value."}},
	} {
		if !strings.Contains(p.Name, fused.infix) {
			continue
		}
		shape := slices.Clone(p.Shape)
		shape[len(shape)-1] /= len(fused.parts)
		var all []source
		for _, part := range fused.parts {
			all = append(all, source{strings.Replace(p.Name, fused.infix, part, 1), shape})
		}
		return all
	}
	switch {
	case strings.HasSuffix(p.Name, ".probe"):
		return []source{{p.Name, []int{1, 1, p.Width()}}}
	case p.Name == "pos_embedding":
		return []source{{p.Name, append([]int{1}, p.Shape...)}}
	}
	return []source{{p.Name, p.Shape}}
}

// compose makes a parameter of its sources' data.
func compose(p *graph.Value, parts [][]uint16) graph.Tensor {
	if len(parts) == 1 {
		// More than one repetition is a probe in a batch.
		return graph.Tensor{Shape: p.Shape, Data: slices.Repeat(parts[0], p.Elements()/len(parts[0]))}
	}
	t := graph.NewTensor(p.Shape...)
	row, n := p.Width(), p.Width()/len(parts)
	for i, part := range parts {
		for r := range len(part) / n {
			copy(t.Data[r*row+i*n:], part[r*n:(r+1)*n])
		}
	}
	return t
}

// decompose is the inverse of compose.
func decompose(p *graph.Value, t graph.Tensor) [][]uint16 {
	from := sources(p)
	if len(from) == 1 {
		n := 1
		for _, d := range from[0].shape {
			n *= d
		}
		return [][]uint16{t.Data[:n]}
	}
	parts := make([][]uint16, len(from))
	row, n := p.Width(), p.Width()/len(from)
	for i := range parts {
		for r := range len(t.Data) / row {
			parts[i] = append(parts[i], t.Data[r*row+i*n:r*row+(i+1)*n]...)
		}
	}
	return parts
}

// biasSigma is the deviation of the biases, those of the norms among them.
const biasSigma = 1e-6

// sigma returns the deviation of a source's normal distribution; ones says that
// it is all ones instead. Kernels are Xavier-like, N(0, 2/(fan in + fan out)) with
// the fans of the separate projection; learned vectors N(0, 1/width). Source:
// published SigLIP benchmark notes, 2026-09-07.
func (s source) sigma() (sigma float64, ones bool, err error) {
	switch {
	case strings.HasSuffix(s.name, ".kernel") && len(s.shape) == 2:
		return math.Sqrt(2 / float64(s.shape[0]+s.shape[1])), false, nil
	case strings.HasSuffix(s.name, ".bias"):
		return biasSigma, false, nil
	case strings.HasSuffix(s.name, ".scale"):
		return 0, true, nil
	case strings.HasSuffix(s.name, ".probe"), s.name == "pos_embedding":
		return math.Sqrt(1 / float64(s.shape[len(s.shape)-1])), false, nil
	}
	return 0, false, fmt.Errorf("parameter %s of shape %v: no initialisation for that name", s.name, s.shape)
}

// draw returns n halves from N(0, sigma²), a function of the seed and the name.
func draw(seed uint64, name string, n int, sigma float64) []uint16 {
	h := fnv.New64a()
	h.Write([]byte(name))
	r := rand.New(rand.NewPCG(seed, h.Sum64()))
	data := make([]uint16, n)
	for i := range data {
		data[i] = numeric.F32ToF16(float32(r.NormFloat64() * sigma))
	}
	return data
}

// Weights draws every parameter of g from o.Seed. Each source of a parameter has
// its own stream, so that neither --fuse-qkv nor the batch changes a value.
func Weights(g *graph.Graph, o Options) (map[string]graph.Tensor, error) {
	return each(g.Parameters(), func(p *graph.Value) (graph.Tensor, error) {
		var parts [][]uint16
		for _, s := range sources(p) {
			sigma, ones, err := s.sigma()
			if err != nil {
				return graph.Tensor{}, err
			}
			n := 1
			for _, d := range s.shape {
				n *= d
			}
			if ones {
				parts = append(parts, slices.Repeat([]uint16{numeric.F32ToF16(1)}, n))
			} else {
				parts = append(parts, draw(o.Seed, s.name, n, sigma))
			}
		}
		return compose(p, parts), nil
	})
}

// Inputs draws every input of g from N(0, 1). The first token of an image with a
// class slot is zero.
func Inputs(g *graph.Graph, o Options) (map[string]graph.Tensor, error) {
	classSlot := false
	if o.Workload == "siglip-vit-benchmark" {
		m, err := o.vit()
		if err != nil {
			return nil, err
		}
		classSlot = m.classSlot
	}
	return each(g.Inputs(), func(v *graph.Value) (graph.Tensor, error) {
		t := graph.Tensor{Shape: v.Shape, Data: draw(o.Seed, v.Name, v.Elements(), 1)}
		if classSlot && v.Name == "image" {
			image := v.Shape[1] * v.Shape[2]
			for i := 0; i < len(t.Data); i += image {
				clear(t.Data[i : i+v.Shape[2]])
			}
		}
		return t, nil
	})
}

// each makes the tensor of every value, several at a time.
func each(values []*graph.Value, produce func(*graph.Value) (graph.Tensor, error)) (map[string]graph.Tensor, error) {
	tensors := make([]graph.Tensor, len(values))
	var group errgroup.Group
	group.SetLimit(runtime.GOMAXPROCS(0))
	for i, v := range values {
		group.Go(func() (err error) {
			tensors[i], err = produce(v)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	named := make(map[string]graph.Tensor, len(values))
	for i, v := range values {
		named[v.Name] = tensors[i]
	}
	return named, nil
}
