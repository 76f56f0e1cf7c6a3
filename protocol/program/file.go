package program

import (
	"fmt"
	"os"
	"strings"

	"ipufarm/protocol/atomicfile"
)

// DigestSuffix is appended to the name of a package file for the file that holds
// its digest in the format of sha256sum: sha256sum -c FILE.sha256 checks it, too.
const DigestSuffix = ".sha256"

// WriteFile writes a package and, beside it, its digest. A package file has no
// checksum of its own, so a bit that flips inside tile data cannot be noticed
// without the digest. At no time does the final name hold half a package, or a
// package with the digest of another one.
func WriteFile(path string, p *Package) error {
	file, err := Encode(p)
	if err != nil {
		return err
	}
	return WriteEncoded(path, file)
}

// WriteEncoded is WriteFile for a package that is encoded already.
func WriteEncoded(path string, file []byte) error {
	// The old digest goes first: a crash in between leaves a package without one,
	// which is honest, where the reverse order would leave one that accuses a good package.
	if err := os.Remove(path + DigestSuffix); err != nil && !os.IsNotExist(err) {
		return err
	}
	if err := atomicfile.Write(path, file); err != nil {
		return err
	}
	line := fmt.Sprintf("%s  %s\n", SHA256(file), path[strings.LastIndexByte(path, os.PathSeparator)+1:])
	return atomicfile.Write(path+DigestSuffix, []byte(line))
}

// ReadFile reads a package file and compares it with a digest: want if it is not
// empty, else the one in the file beside it, if there is one. The second result
// says whether there was anything to compare with. The bytes are not decoded.
func ReadFile(path, want string) (file []byte, compared bool, err error) {
	source := "the digest that was asked for"
	if want == "" {
		source = path + DigestSuffix
		if want, err = readDigest(source); err != nil {
			return nil, false, err
		}
	} else if !isDigest(want) {
		return nil, false, fmt.Errorf("%q is not a SHA-256 digest of 64 hexadecimal digits", want)
	}
	file, err = os.ReadFile(path)
	if err != nil {
		return nil, false, err
	}
	if want == "" {
		return file, false, nil
	}
	if got := SHA256(file); !strings.EqualFold(got, want) {
		return nil, true, fmt.Errorf("%s: damaged or another package: its SHA-256 is %s, %s says %s", path, got, source, strings.ToLower(want))
	}
	return file, true, nil
}

// readDigest reads a digest file, "" if there is none.
func readDigest(path string) (string, error) {
	b, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	fields := strings.Fields(string(b))
	if len(fields) == 0 || !isDigest(fields[0]) {
		return "", fmt.Errorf("%s does not start with a SHA-256 digest of 64 hexadecimal digits", path)
	}
	return fields[0], nil
}

func isDigest(s string) bool {
	return len(s) == 64 && strings.Trim(s, "0123456789abcdefABCDEF") == ""
}
