package runcmd

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"

	"ipufarm/compiler"
	"ipufarm/compiler/workload"
	"ipufarm/deploy/local"
	"ipufarm/protocol"
)

// loadFixture checks a fixture here, where its errors name the user's own files,
// and packs it for the farm.
func loadFixture(spec compiler.Spec, dir string) ([]byte, error) {
	g, _, err := spec.Model()
	if err != nil {
		return nil, err
	}
	if _, err := workload.LoadFixture(dir, g, spec.Workload); err != nil {
		return nil, fmt.Errorf("--reference-fixture: %w", err)
	}
	return compiler.PackFixture(dir)
}

func upload(ctx context.Context, farm *local.Farm, fixture []byte) (*protocol.Artifact, error) {
	dir, err := os.MkdirTemp("", "ipufarm-fixture-*")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, protocol.RoleFixture)
	if err := os.WriteFile(path, fixture, 0o600); err != nil {
		return nil, err
	}
	a, err := farm.Client.Upload(ctx, protocol.RoleFixture, path)
	return &a, err
}

// saveFixture writes what the job was given and what the reference said of it.
func saveFixture(ctx context.Context, farm *local.Farm, r *protocol.JobReport, spec compiler.Spec, o options) error {
	g, _, err := spec.Model()
	if err != nil {
		return err
	}
	f := workload.Fixture{Expected: map[string][]float32{}}
	if o.fixture != "" {
		if f, err = workload.LoadFixture(o.fixture, g, spec.Workload); err != nil {
			return fmt.Errorf("--reference-fixture: %w", err)
		}
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
	if err := farm.Client.Fetch(ctx, r.Artifacts[protocol.RoleExpected], path); err != nil {
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
	if err := workload.SaveFixture(o.save, g, spec.Workload, f); err != nil {
		return fmt.Errorf("--save-reference-inputs: %w", err)
	}
	return nil
}
