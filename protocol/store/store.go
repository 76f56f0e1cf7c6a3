// Package store keeps artifacts in S3 by what they are: blobs under the digest
// of their bytes, manifests under the key of their task. It is the only importer
// of minio-go.
//
//	cas/sha256/ab/cd/<digest>   a blob; writing it twice is harmless
//	ac/v1/<key>                 a task's manifest; the first writer wins
//
// Whoever reads a blob verifies its digest, so a server that returns other bytes
// is an error and never an input.
package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"golang.org/x/sync/errgroup"

	"ipufarm/protocol"
)

// Config of a store.
type Config struct {
	Endpoint             string // host:port
	Bucket               string
	AccessKey, SecretKey string
	Secure               bool // TLS
}

// Store is a bucket. Its methods may be used by many goroutines.
type Store struct {
	client    *minio.Client
	transport *http.Transport
	bucket    string
}

// Errors of reading.
var (
	ErrNotFound = errors.New("not in the store")
	ErrDigest   = errors.New("bytes do not match their digest")
)

const region = "us-east-1"

// partSize is from where on a blob is uploaded in parts; a manifest never is,
// since several servers ignore the condition of a multipart upload.
const partSize = 128 << 20

// Open connects to a bucket and makes it if it is absent.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	transport, err := minio.DefaultTransport(cfg.Secure)
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	transport.MaxIdleConnsPerHost = 64 // as many tasks may read at a time
	client, err := minio.New(cfg.Endpoint, &minio.Options{
		Creds: credentials.NewStaticV4(cfg.AccessKey, cfg.SecretKey, ""), Secure: cfg.Secure, Region: region, Transport: transport,
	})
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	s := &Store{client: client, transport: transport, bucket: cfg.Bucket}
	err = client.MakeBucket(ctx, cfg.Bucket, minio.MakeBucketOptions{Region: region})
	if code := minio.ToErrorResponse(err).Code; err != nil && code != minio.BucketAlreadyOwnedByYou && code != minio.BucketAlreadyExists {
		s.Close()
		return nil, fmt.Errorf("store: bucket %s at %s: %w", cfg.Bucket, cfg.Endpoint, err)
	}
	return s, nil
}

// Close ends the connections that are in no use. The transport may have opened one
// and then found another free; a server that waits for requests in flight before
// it ends waits for the first one of such a connection, too.
func (s *Store) Close() { s.transport.CloseIdleConnections() }

// CheckConditions reports a server that does not honour "only if absent", on
// which a commit could overwrite another.
func (s *Store) CheckConditions(ctx context.Context) error {
	var b [16]byte
	copy(b[:], time.Now().UTC().Format(time.RFC3339Nano))
	key := "probe/" + hex.EncodeToString(b[:])
	defer s.client.RemoveObject(context.WithoutCancel(ctx), s.bucket, key, minio.RemoveObjectOptions{})
	if _, err := s.putIfAbsent(ctx, key, []byte("1")); err != nil {
		return fmt.Errorf("store: probe: %w", err)
	}
	won, err := s.putIfAbsent(ctx, key, []byte("2"))
	if err != nil {
		return fmt.Errorf("store: probe: %w", err)
	}
	if won {
		return errors.New("store: the server ignores If-None-Match on put, which commits need")
	}
	return nil
}

// DigestFile returns the SHA-256 and the size of a file.
func DigestFile(path string) (digest string, size int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return "", 0, err
	}
	defer f.Close()
	h := sha256.New()
	size, err = io.Copy(h, f)
	if err != nil {
		return "", 0, fmt.Errorf("read %s: %w", path, err)
	}
	return hex.EncodeToString(h.Sum(nil)), size, nil
}

// PutFile stores a file as a blob that plays a role, unless it is there already.
func (s *Store) PutFile(ctx context.Context, role, path string) (protocol.Artifact, error) {
	digest, size, err := DigestFile(path)
	if err != nil {
		return protocol.Artifact{}, fmt.Errorf("store: %w", err)
	}
	f, err := os.Open(path)
	if err != nil {
		return protocol.Artifact{}, fmt.Errorf("store: %w", err)
	}
	defer f.Close()
	a := protocol.Artifact{Role: role, SHA256: digest, Size: size}
	return a, s.putBlob(ctx, a, f)
}

// PutBytes is PutFile of bytes.
func (s *Store) PutBytes(ctx context.Context, role string, data []byte) (protocol.Artifact, error) {
	sum := sha256.Sum256(data)
	a := protocol.Artifact{Role: role, SHA256: hex.EncodeToString(sum[:]), Size: int64(len(data))}
	return a, s.putBlob(ctx, a, bytes.NewReader(data))
}

func (s *Store) putBlob(ctx context.Context, a protocol.Artifact, r io.Reader) error {
	if s.Has(ctx, a) == nil {
		return nil
	}
	if _, err := s.client.PutObject(ctx, s.bucket, protocol.BlobKey(a.SHA256), r, a.Size, putOptions(a.Size)); err != nil {
		return fmt.Errorf("store: put %s %s: %w", a.Role, a.SHA256, err)
	}
	return nil
}

// putOptions: an empty object goes unsigned, because the client would send it
// chunked, which one server leaves on the connection and another refuses.
func putOptions(size int64) minio.PutObjectOptions {
	return minio.PutObjectOptions{ContentType: "application/octet-stream", PartSize: partSize, DisableContentSha256: size == 0}
}

// Has reports an artifact that is absent or has another size.
func (s *Store) Has(ctx context.Context, a protocol.Artifact) error {
	info, err := s.client.StatObject(ctx, s.bucket, protocol.BlobKey(a.SHA256), minio.StatObjectOptions{})
	if isNotFound(err) {
		return fmt.Errorf("store: %s %s: %w", a.Role, a.SHA256, ErrNotFound)
	}
	if err != nil {
		return fmt.Errorf("store: stat %s %s: %w", a.Role, a.SHA256, err)
	}
	if info.Size != a.Size {
		return fmt.Errorf("store: %s %s has %d bytes, want %d: %w", a.Role, a.SHA256, info.Size, a.Size, ErrDigest)
	}
	return nil
}

// GetFile writes an artifact to a file with some permissions, complete and
// verified or not at all.
func (s *Store) GetFile(ctx context.Context, a protocol.Artifact, path string, mode os.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".get-*")
	if err != nil {
		return fmt.Errorf("store: %w", err)
	}
	defer os.Remove(f.Name())
	err = s.get(ctx, a, f)
	if err == nil {
		err = f.Chmod(mode)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return fmt.Errorf("store: %w", err)
	}
	return nil
}

// GetBytes reads an artifact into memory, verified.
func (s *Store) GetBytes(ctx context.Context, a protocol.Artifact) ([]byte, error) {
	var out bytes.Buffer
	if a.Size < 1<<30 {
		out.Grow(int(a.Size))
	}
	if err := s.get(ctx, a, &out); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func (s *Store) get(ctx context.Context, a protocol.Artifact, w io.Writer) error {
	fail := func(err error) error { return fmt.Errorf("store: get %s %s: %w", a.Role, a.SHA256, err) }
	object, err := s.client.GetObject(ctx, s.bucket, protocol.BlobKey(a.SHA256), minio.GetObjectOptions{})
	if err != nil {
		return fail(err)
	}
	defer object.Close()
	h := sha256.New()
	// One byte more than expected is enough to see that there are too many.
	n, err := io.Copy(io.MultiWriter(w, h), io.LimitReader(object, a.Size+1))
	if isNotFound(err) {
		return fail(ErrNotFound)
	}
	if err != nil {
		return fail(err)
	}
	if n != a.Size || !sameDigest(h, a.SHA256) {
		return fail(fmt.Errorf("%d bytes, want %d: %w", n, a.Size, ErrDigest))
	}
	return nil
}

func sameDigest(h hash.Hash, digest string) bool { return hex.EncodeToString(h.Sum(nil)) == digest }

// PutManifest stores the manifest of a task and returns the digest of the one
// that now holds. When another was first, that one stays, and same says whether
// it has the same bytes; two honest executions give the same.
func (s *Store) PutManifest(ctx context.Context, m *protocol.Manifest) (digest string, same bool, err error) {
	data, err := protocol.Encode(m, protocol.MaxManifest)
	if err != nil {
		return "", false, fmt.Errorf("store: %w", err)
	}
	won, err := s.putIfAbsent(ctx, protocol.ManifestKey(m.Key), data)
	if err != nil {
		return "", false, fmt.Errorf("store: put manifest %s: %w", m.Key, err)
	}
	if won {
		return digestOf(data), true, nil
	}
	old, err := s.winner(ctx, m.Key)
	if err != nil {
		return "", false, err
	}
	return digestOf(old), bytes.Equal(old, data), nil
}

// winner reads the manifest to which a put was lost. The server may say so while the
// other writer has not finished, and its object cannot be read yet.
func (s *Store) winner(ctx context.Context, key string) ([]byte, error) {
	const (
		tries = 100
		pause = 20 * time.Millisecond
	)
	for i := 1; ; i++ {
		data, err := s.manifestBytes(ctx, key)
		if !errors.Is(err, ErrNotFound) || i == tries {
			return data, err
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(err, ctx.Err())
		case <-time.After(pause):
		}
	}
}

// ReplaceManifest stores a manifest over one that is of no use: unreadable, with
// missing blobs, or of a failed execution.
func (s *Store) ReplaceManifest(ctx context.Context, m *protocol.Manifest) (digest string, err error) {
	data, err := protocol.Encode(m, protocol.MaxManifest)
	if err != nil {
		return "", fmt.Errorf("store: %w", err)
	}
	if err := s.put(ctx, protocol.ManifestKey(m.Key), data, minio.PutObjectOptions{}); err != nil {
		return "", fmt.Errorf("store: replace manifest %s: %w", m.Key, err)
	}
	return digestOf(data), nil
}

func (s *Store) putIfAbsent(ctx context.Context, key string, data []byte) (won bool, err error) {
	var options minio.PutObjectOptions
	options.SetMatchETagExcept("*")
	err = s.put(ctx, key, data, options)
	// 409 is the answer while another writer of the key has not finished.
	if status := minio.ToErrorResponse(err).StatusCode; status == http.StatusPreconditionFailed || status == http.StatusConflict {
		return false, nil
	}
	return err == nil, err
}

func (s *Store) put(ctx context.Context, key string, data []byte, options minio.PutObjectOptions) error {
	options.DisableMultipart = true
	_, err := s.client.PutObject(ctx, s.bucket, key, bytes.NewReader(data), int64(len(data)), options)
	return err
}

// Manifest reads the manifest of a task and the digest of its bytes.
func (s *Store) Manifest(ctx context.Context, key string) (*protocol.Manifest, string, error) {
	data, err := s.manifestBytes(ctx, key)
	if err != nil {
		return nil, "", err
	}
	m := new(protocol.Manifest)
	if err := protocol.Decode(data, protocol.MaxManifest, m); err != nil {
		return nil, "", fmt.Errorf("store: manifest %s: %w", key, err)
	}
	if m.Key != key {
		return nil, "", fmt.Errorf("store: manifest %s is of task %s: %w", key, m.Key, ErrDigest)
	}
	return m, digestOf(data), nil
}

func (s *Store) manifestBytes(ctx context.Context, key string) ([]byte, error) {
	fail := func(err error) ([]byte, error) { return nil, fmt.Errorf("store: manifest %s: %w", key, err) }
	object, err := s.client.GetObject(ctx, s.bucket, protocol.ManifestKey(key), minio.GetObjectOptions{})
	if err != nil {
		return fail(err)
	}
	defer object.Close()
	data, err := io.ReadAll(io.LimitReader(object, protocol.MaxManifest+1))
	if isNotFound(err) {
		return fail(ErrNotFound)
	}
	if err != nil {
		return fail(err)
	}
	return data, nil
}

// Complete reports the first artifact of a manifest that is not in the store as
// the manifest says. A manifest alone is no cache hit.
func (s *Store) Complete(ctx context.Context, m *protocol.Manifest) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, a := range m.Artifacts {
		group.Go(func() error { return s.Has(ctx, a) })
	}
	return group.Wait()
}

func digestOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

func isNotFound(err error) bool {
	return minio.ToErrorResponse(err).StatusCode == http.StatusNotFound
}
