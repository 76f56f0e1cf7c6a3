package runcmd

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"

	"ipufarm/compiler"
	"ipufarm/compiler/workload"
	"ipufarm/coordinator/client"
	"ipufarm/protocol"
)

// loadFixture reads a fixture here, where its errors name the user's own files, and
// packs it for the farm. Without a folder there is none.
func loadFixture(spec compiler.Spec, dir string) (*workload.Fixture, []byte, error) {
	if dir == "" {
		return nil, nil, nil
	}
	g, _, err := spec.Model()
	if err != nil {
		return nil, nil, err
	}
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return nil, nil, fmt.Errorf("--reference-fixture %s: a folder with weights, inputs and expected outputs is accepted", dir)
	}
	f, err := workload.LoadFixture(dir, g, spec.Workload)
	if err != nil {
		return nil, nil, fmt.Errorf("--reference-fixture: %w", err)
	}
	packed, err := compiler.PackFixture(dir)
	if err != nil {
		return nil, nil, fmt.Errorf("--reference-fixture: %w", err)
	}
	return &f, packed, nil
}

// newFolder makes sure that a folder can be made.
func newFolder(path string) error {
	if _, err := os.Lstat(path); err == nil {
		return errors.New("it exists")
	}
	return writable(path)
}

func upload(ctx context.Context, c *client.Client, fixture []byte) (*protocol.Artifact, error) {
	dir, err := os.MkdirTemp("", "ipufarm-fixture-*")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, protocol.RoleFixture)
	if err := os.WriteFile(path, fixture, 0o600); err != nil {
		return nil, err
	}
	a, err := c.Upload(ctx, protocol.RoleFixture, path)
	return &a, err
}

// saveFixture writes what the job was given and what the reference said of it.
func saveFixture(ctx context.Context, c *client.Client, r *protocol.JobReport, spec compiler.Spec, given *workload.Fixture, to string) error {
	g, _, err := spec.Model()
	if err != nil {
		return err
	}
	f := workload.Fixture{Expected: map[string][]float32{}}
	if given != nil {
		f = *given
	} else {
		if f.Weights, err = workload.Weights(g, spec.Workload); err != nil {
			return err
		}
		if f.Inputs, err = workload.Inputs(g, spec.Workload); err != nil {
			return err
		}
	}
	dir, err := os.MkdirTemp("", "ipufarm-expected-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "expected")
	if err := c.Fetch(ctx, r.Artifacts[protocol.RoleExpected], path); err != nil {
		return err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	for _, v := range g.Outputs {
		n := v.Elements()
		if len(data) < 4*n {
			return fmt.Errorf("expected outputs end before %s", v.Name)
		}
		out := make([]float32, n)
		for i := range out {
			out[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:]))
		}
		f.Expected[v.Name], data = out, data[4*n:]
	}
	if err := workload.SaveFixture(to, g, spec.Workload, f); err != nil {
		return fmt.Errorf("--save-reference-inputs: %w", err)
	}
	return nil
}
