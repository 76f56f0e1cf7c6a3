package runner

import (
	"encoding/binary"
	"fmt"
	"math"

	"ipufarm/protocol"
	"ipufarm/protocol/compare"
	"ipufarm/protocol/numeric"
	"ipufarm/protocol/program"
)

// check compares the outputs of a run with the reference, binding by binding,
// and returns the report and the outputs as little-endian float32.
func check(file []byte, result Result, expected []byte, task *protocol.Task) (*protocol.RunReport, []byte, error) {
	p, err := program.Decode(file)
	if err != nil {
		return nil, nil, fmt.Errorf("package: %w", err)
	}
	got, err := decodeOutputs(p.Outputs, result.Outputs)
	if err != nil {
		return nil, nil, err
	}
	want, err := decodeFloats(expected)
	if err != nil {
		return nil, nil, fmt.Errorf("expected outputs: %w", err)
	}
	tolerance := task.Run.Tolerance
	r := &protocol.RunReport{
		Version: protocol.Version, Cycles: result.Cycles, Measured: result.Measured, Passed: true, Tolerance: tolerance, Inputs: task.Inputs, Detail: result.Detail,
	}
	for i, b := range p.Outputs {
		// A reference that is too short leaves an output without elements, and that
		// does not pass.
		n := min(len(got[i]), len(want))
		c := compare.Compare(got[i], want[:n], tolerance.Atol, tolerance.Rtol)
		want = want[n:]
		o := protocol.OutputCheck{Name: b.Name, Elements: int64(c.Elements), Mismatches: int64(c.OutOfTolerance + c.NonFinite), MaxAbsError: c.MaxAbs}
		if !c.Pass() {
			r.Passed = false
			o.Message = c.String()
		}
		if c.NonFinite > 0 {
			o.MaxAbsError = math.MaxFloat64
		}
		r.MaxAbsError = max(r.MaxAbsError, o.MaxAbsError)
		r.Outputs = append(r.Outputs, o)
	}
	if len(want) > 0 {
		return nil, nil, fmt.Errorf("the reference has %d elements more than the package has outputs", len(want))
	}
	if len(r.Outputs) == 0 {
		return nil, nil, fmt.Errorf("the package has no outputs, so nothing can be compared")
	}
	values := make([]byte, 0, len(expected))
	for _, output := range got {
		for _, x := range output {
			values = binary.LittleEndian.AppendUint32(values, math.Float32bits(x))
		}
	}
	return r, values, nil
}

// decodeOutputs cuts the output file into its bindings, which follow each other
// in order, row-major, and widens their elements.
func decodeOutputs(bindings []program.Binding, file []byte) ([][]float32, error) {
	var outputs [][]float32
	for _, b := range bindings {
		n := 1
		for _, d := range b.Shape {
			if d > 1<<30 || n > 1<<30 {
				return nil, fmt.Errorf("output %s: shape %v is too large", b.Name, b.Shape)
			}
			n *= int(d)
		}
		size, ok := map[string]int{"f16": 2, "f32": 4}[b.DType]
		if !ok {
			return nil, fmt.Errorf("output %s has elements of type %q; f16 and f32 can be compared", b.Name, b.DType)
		}
		if n*size > len(file) {
			return nil, fmt.Errorf("output %s: %d bytes are left of the device's output, its shape %v needs %d", b.Name, len(file), b.Shape, n*size)
		}
		values := make([]float32, n)
		if size == 2 {
			numeric.DecodeF16LE(values, file[:2*n])
		} else {
			for i := range values {
				values[i] = math.Float32frombits(binary.LittleEndian.Uint32(file[4*i:]))
			}
		}
		outputs = append(outputs, values)
		file = file[n*size:]
	}
	if len(file) > 0 {
		return nil, fmt.Errorf("the device gave %d bytes more than the package's outputs have", len(file))
	}
	return outputs, nil
}

func decodeFloats(data []byte) ([]float32, error) {
	if len(data)%4 != 0 {
		return nil, fmt.Errorf("%d bytes are no sequence of float32", len(data))
	}
	values := make([]float32, len(data)/4)
	for i := range values {
		values[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:]))
	}
	return values, nil
}
