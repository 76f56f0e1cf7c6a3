package loader

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"unicode"
	"unicode/utf8"

	"ipufarm/protocol/machine"
	"ipufarm/protocol/profile"
	"ipufarm/runner"
)

// version of the contract.
const version = 1

// Limits of an answer in bytes, and of its numbers.
const (
	maxOutputs = 1 << 30
	maxResult  = 64 << 10
	maxDetail  = 32 << 10
	maxProfile = 256 << 20
	maxModel   = 128
	maxCycles  = 1 << 53 // what every reader of JSON keeps exactly
)

// answer is result.json.
type answer struct {
	Version   int             `json:"version"`
	Model     string          `json:"model"`
	Cycles    uint64          `json:"cycles"`
	CyclesAre string          `json:"cycles_are"`
	Profile   string          `json:"profile"`
	Detail    json.RawMessage `json:"detail"`
}

const (
	measured = "measured"
	modelled = "modelled"
)

// parse reads result.json. It is strict: an unknown key may be one that a newer
// loader relies on.
func parse(data []byte) (*answer, error) {
	if !utf8.Valid(data) {
		return nil, errors.New("result.json is not UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	var a answer
	if err := d.Decode(&a); err != nil {
		return nil, fmt.Errorf("result.json: %w", err)
	}
	if rest := bytes.TrimSpace(data[d.InputOffset():]); len(rest) > 0 {
		return nil, fmt.Errorf("result.json: %d bytes behind the object", len(rest))
	}
	if a.Version != version {
		return nil, fmt.Errorf("result.json: version %d, %d is accepted", a.Version, version)
	}
	if err := printable(a.Model); err != nil {
		return nil, fmt.Errorf("result.json: model: %w", err)
	}
	if a.Cycles < 1 || a.Cycles > maxCycles {
		return nil, fmt.Errorf("result.json: cycles %d, 1 to %d are accepted", a.Cycles, uint64(maxCycles))
	}
	if a.CyclesAre != measured && a.CyclesAre != modelled {
		return nil, fmt.Errorf("result.json: cycles_are %.40q, %q and %q are accepted", a.CyclesAre, measured, modelled)
	}
	if a.Profile != "" && (filepath.Base(a.Profile) != a.Profile || !filepath.IsLocal(a.Profile) || a.Profile == ".") {
		return nil, fmt.Errorf("result.json: profile %.80q, the name of a file in the output folder is accepted", a.Profile)
	}
	if bytes.Equal(a.Detail, []byte("null")) {
		a.Detail = nil
	}
	if len(a.Detail) > 0 && a.Detail[0] != '{' || len(a.Detail) > maxDetail {
		return nil, fmt.Errorf("result.json: detail has %d bytes, an object of at most %d is accepted", len(a.Detail), maxDetail)
	}
	return &a, nil
}

func printable(s string) error {
	n := 0
	for _, r := range s {
		if !unicode.IsPrint(r) {
			return fmt.Errorf("%.80q has characters that cannot be printed", s)
		}
		n++
	}
	if n < 1 || n > maxModel {
		return fmt.Errorf("%d characters, 1 to %d are accepted", n, maxModel)
	}
	return nil
}

// collect reads what the command left in its output folder, when nothing writes
// there any more. It returns the run and what the device is.
func collect(dir string, outputs uint64) (runner.Result, string, error) {
	text, err := take(dir, "result.json", maxResult)
	if err != nil {
		return runner.Result{}, "", err
	}
	a, err := parse(text)
	if err != nil {
		return runner.Result{}, "", err
	}
	r := runner.Result{Cycles: a.Cycles, Measured: a.CyclesAre == measured, Detail: a.Detail}
	if r.Outputs, err = take(dir, "outputs", int64(outputs)); err != nil {
		return runner.Result{}, "", err
	}
	if uint64(len(r.Outputs)) != outputs {
		return runner.Result{}, "", fmt.Errorf("outputs has %d bytes, the package binds %d", len(r.Outputs), outputs)
	}
	if r.Profile, err = takeProfile(dir, a.Profile); err != nil {
		return runner.Result{}, "", err
	}
	return r, a.Model + ", cycles are " + a.CyclesAre, nil
}

// takeProfile reads a profile; without one it is a profile without samples.
func takeProfile(dir, name string) ([]byte, error) {
	if name == "" {
		return profile.EncodeCompressed(&profile.Profile{SchemaVersion: profile.SchemaVersion, ClockHz: machine.ClockHz})
	}
	data, err := take(dir, name, maxProfile)
	if err != nil {
		return nil, err
	}
	if _, err := profile.Verify(data); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return data, nil
}

// take reads a regular file of a folder, after looking at its size.
func take(dir, name string, limit int64) ([]byte, error) {
	path := filepath.Join(dir, name)
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, fmt.Errorf("%s is missing", name)
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file", name)
	case info.Size() > limit:
		return nil, fmt.Errorf("%s has %d bytes, at most %d are accepted", name, info.Size(), limit)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data := make([]byte, info.Size())
	if _, err := io.ReadFull(f, data); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return data, nil
}
