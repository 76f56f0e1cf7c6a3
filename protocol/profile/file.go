package profile

import (
	"fmt"
	"os"

	"ipufarm/protocol/atomicfile"
)

// WriteFile writes a profile, compressed. The final name never holds half of it.
func WriteFile(path string, p *Profile) error {
	b, err := EncodeCompressed(p)
	if err != nil {
		return err
	}
	return atomicfile.Write(path, b)
}

// ReadFile reads a profile file, plain or compressed, and checks it. Errors name
// the file.
func ReadFile(path string) (*Profile, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > MaxBytes {
		return nil, fmt.Errorf("%s: want a regular file of at most %d bytes", path, MaxBytes)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	p, err := Verify(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return p, nil
}
