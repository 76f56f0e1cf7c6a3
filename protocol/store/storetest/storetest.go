// Package storetest is what every S3 server must do for the store, as one suite,
// and a server to try it on.
package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"ipufarm/protocol"
	"ipufarm/protocol/store"
	"ipufarm/protocol/store/server"
)

// Main runs the tests of a package with one embedded S3 server, because a
// process can have only one. It is called from TestMain:
//
//	func TestMain(m *testing.M) { storetest.Main(m) }
func Main(m *testing.M) {
	dir, err := os.MkdirTemp("", "storetest-*")
	if err != nil {
		panic(err)
	}
	s, err := server.Start(server.Options{Dir: dir, AccessKey: "test", SecretKey: "test-secret"})
	if err != nil {
		panic(err)
	}
	config = store.Config{Endpoint: s.Endpoint, AccessKey: "test", SecretKey: "test-secret"}
	objects = filepath.Join(dir, "objects")
	code := m.Run()
	s.Stop()
	os.RemoveAll(dir)
	os.Exit(code)
}

var (
	config  store.Config // of the server that Main started
	objects string       // its folder of buckets
	buckets atomic.Int32
)

// Open returns a store in a bucket of its own, and the folder of that bucket.
func Open(t testing.TB) (*store.Store, string) {
	t.Helper()
	cfg := config
	cfg.Bucket = fmt.Sprintf("bucket-%d", buckets.Add(1))
	s, err := store.Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s, filepath.Join(objects, cfg.Bucket)
}

// Config returns how to reach the server that Main started, without a bucket.
func Config() store.Config { return config }

// Suite checks a store on an empty bucket. corrupt changes a stored object
// behind the server's back, or is nil when the server's disk cannot be reached.
func Suite(t *testing.T, s *store.Store, corrupt func(t *testing.T, object string)) {
	ctx := context.Background()
	put := func(t *testing.T, data string) protocol.Artifact {
		t.Helper()
		a, err := s.PutBytes(ctx, "blob", []byte(data))
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	t.Run("conditions", func(t *testing.T) {
		if err := s.CheckConditions(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Run("blobs", func(t *testing.T) {
		for _, size := range []int{0, 1, 4096, 3 << 20} {
			data := strings.Repeat("x", size)
			for range 2 { // the second finds it there
				a := put(t, data)
				got, err := s.GetBytes(ctx, a)
				if err != nil || string(got) != data {
					t.Errorf("%d bytes come back as %d, %v", size, len(got), err)
				}
			}
		}
	})
	t.Run("files", func(t *testing.T) {
		dir := t.TempDir()
		from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
		if err := os.WriteFile(from, []byte("hello"), 0o600); err != nil {
			t.Fatal(err)
		}
		a, err := s.PutFile(ctx, "greeting", from)
		if err != nil || a.Size != 5 || a.Role != "greeting" {
			t.Fatalf("%+v, %v", a, err)
		}
		if err := s.GetFile(ctx, a, to, 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(to); err != nil || string(got) != "hello" {
			t.Errorf("read %q, %v", got, err)
		}
	})
	// Empty objects have their own test: the client sends them in a way that
	// some servers leave on the connection for an innocent request to trip over.
	t.Run("empty objects do not disturb others", func(t *testing.T) {
		full := put(t, "full")
		var group sync.WaitGroup
		for range 4 {
			group.Go(func() {
				for range 50 {
					if _, err := s.PutBytes(ctx, "empty", nil); err != nil {
						t.Error(err)
						return
					}
					if err := s.Has(ctx, full); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		group.Wait()
	})
	t.Run("absent", func(t *testing.T) {
		a := protocol.Artifact{Role: "none", SHA256: strings.Repeat("0", 64), Size: 4}
		if err := s.Has(ctx, a); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("Has: %v", err)
		}
		if _, err := s.GetBytes(ctx, a); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("GetBytes: %v", err)
		}
		path := filepath.Join(t.TempDir(), "x")
		if err := s.GetFile(ctx, a, path, 0o600); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("GetFile: %v", err)
		}
		if _, err := os.Stat(path); err == nil {
			t.Error("a file was left of an absent blob")
		}
		if _, _, err := s.Manifest(ctx, a.SHA256); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("Manifest: %v", err)
		}
	})
	t.Run("wrong size", func(t *testing.T) {
		a := put(t, "four")
		for _, size := range []int64{3, 5} {
			wrong := a
			wrong.Size = size
			if _, err := s.GetBytes(ctx, wrong); !errors.Is(err, store.ErrDigest) {
				t.Errorf("GetBytes as %d bytes: %v", size, err)
			}
			if err := s.Has(ctx, wrong); !errors.Is(err, store.ErrDigest) {
				t.Errorf("Has as %d bytes: %v", size, err)
			}
		}
	})
	t.Run("corruption", func(t *testing.T) {
		if corrupt == nil {
			t.Skip("the server's disk cannot be reached")
		}
		a := put(t, "precious")
		corrupt(t, protocol.BlobKey(a.SHA256))
		path := filepath.Join(t.TempDir(), "x")
		if err := s.GetFile(ctx, a, path, 0o600); !errors.Is(err, store.ErrDigest) {
			t.Errorf("GetFile: %v", err)
		}
		if _, err := os.Stat(path); err == nil {
			t.Error("a file was left of a corrupt blob")
		}
	})
	t.Run("first manifest wins", func(t *testing.T) {
		var group sync.WaitGroup
		var wins atomic.Int32
		digests := make([]string, 16)
		for i := range digests {
			group.Go(func() {
				digest, same, err := s.PutManifest(ctx, Manifest(1, fmt.Sprintf(`{"writer":%d}`, i)))
				if err != nil {
					t.Error(err)
				}
				if same {
					wins.Add(1)
				}
				digests[i] = digest
			})
		}
		group.Wait()
		if wins.Load() != 1 {
			t.Errorf("%d of %d different manifests won", wins.Load(), len(digests))
		}
		m, digest, err := s.Manifest(ctx, Manifest(1, "").Key)
		if err != nil {
			t.Fatal(err)
		}
		for i, d := range digests {
			if d != digest {
				t.Errorf("writer %d was told %s, the store has %s", i, d, digest)
			}
		}
		if got, same, err := s.PutManifest(ctx, m); got != digest || !same || err != nil {
			t.Errorf("the same manifest again: %s, %v, %v", got, same, err)
		}
		other := Manifest(1, `{"writer":99}`)
		if digest, err = s.ReplaceManifest(ctx, other); err != nil {
			t.Fatal(err)
		}
		if m, got, err := s.Manifest(ctx, other.Key); err != nil || got != digest || !bytes.Equal(m.Facts, other.Facts) {
			t.Errorf("after replacing: %+v, %s, %v", m, got, err)
		}
	})
	t.Run("completeness", func(t *testing.T) {
		m := Manifest(2, "")
		m.Artifacts = []protocol.Artifact{put(t, "one"), put(t, "two")}
		m.Artifacts[1].Role = "other"
		if err := s.Complete(ctx, m); err != nil {
			t.Error(err)
		}
		m.Artifacts[1].SHA256 = strings.Repeat("1", 64)
		if err := s.Complete(ctx, m); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("with a missing blob: %v", err)
		}
	})
}

// Manifest returns a manifest of a made-up task.
func Manifest(key int, facts string) *protocol.Manifest {
	return &protocol.Manifest{
		Version: protocol.Version, Key: fmt.Sprintf("%064x", key), Kind: protocol.KindPlan, Tool: strings.Repeat("ab", 32),
		Verdict: protocol.Verdict{Kind: protocol.Feasible}, Artifacts: []protocol.Artifact{}, Facts: []byte(facts),
	}
}
