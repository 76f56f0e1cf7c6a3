// Package server runs an S3 server inside of the process: versitygw over a
// folder, the store of the embedded farm and of tests.
//
// The gateway has properties that callers must know. One can run per process at
// a time. It changes the working directory of the process to its folder, so
// every other path must be absolute while it runs; Stop changes it back. A key
// and a key below it ("x" and "x/y") cannot both exist.
//
// And it has faults that this package cures: it never syncs (the wrapped commit
// points do), an empty chunked request leaves its last bytes on the connection
// for the next one to trip over (such connections are closed), and its threshold
// for copies must be set for copies to work at all.
package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/gofiber/fiber/v3"
	"github.com/versity/versitygw/auth"
	"github.com/versity/versitygw/backend/meta"
	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/embedgw"
	"github.com/versity/versitygw/s3api"
	"github.com/versity/versitygw/s3response"
)

// Options of a server.
type Options struct {
	Dir                  string // absolute; made if absent
	Port                 int    // on 127.0.0.1; 0 takes a free one
	AccessKey, SecretKey string

	noAttributes bool // as on a file system without extended attributes
}

// Server is a running server.
type Server struct {
	Endpoint string // host:port
	cancel   context.CancelFunc
	done     chan error
	home     string // the working directory to return to
}

const startTimeout = 20 * time.Second

// Start runs a server until Stop.
func Start(o Options) (*Server, error) {
	if !filepath.IsAbs(o.Dir) {
		return nil, fmt.Errorf("s3: folder %q is not absolute", o.Dir)
	}
	objects, sidecar := filepath.Join(o.Dir, "objects"), filepath.Join(o.Dir, "metadata")
	if err := os.MkdirAll(objects, 0o700); err != nil {
		return nil, fmt.Errorf("s3: %w", err)
	}
	home, err := os.Getwd()
	if err != nil {
		return nil, fmt.Errorf("s3: %w", err)
	}
	disk, err := openDisk(objects, sidecar, o.noAttributes)
	if err != nil {
		os.Chdir(home)
		return nil, fmt.Errorf("s3: %w", err)
	}
	// The gateway takes an address and does not tell which port it got, so a free
	// one is found first; somebody may be faster, hence more than one try.
	for range 5 {
		var port int
		if port, err = choosePort(o.Port); err != nil {
			break
		}
		var s *Server
		if s, err = run(o, disk, port); err == nil {
			s.home = home
			return s, nil
		}
		if o.Port != 0 {
			break
		}
	}
	os.Chdir(home)
	return nil, fmt.Errorf("s3: %w", err)
}

// openDisk keeps the metadata of objects in extended attributes, or in files
// beside them where the file system has none.
func openDisk(objects, sidecar string, noAttributes bool) (*syncedDisk, error) {
	options := posix.PosixOpts{CopyObjectThreshold: 5 << 30, DataIntegrityEtag: true}
	var metadata meta.MetadataStorer = meta.XattrMeta{}
	if noAttributes || (meta.XattrMeta{}).Test(objects) != nil {
		if err := os.MkdirAll(sidecar, 0o700); err != nil {
			return nil, err
		}
		store, err := meta.NewSideCar(sidecar)
		if err != nil {
			return nil, err
		}
		metadata, options.SideCarDir = store, sidecar
	}
	disk, err := posix.New(objects, metadata, options)
	if err != nil {
		return nil, err
	}
	return &syncedDisk{Posix: disk, root: objects, known: map[string]uint64{}}, nil
}

func choosePort(port int) (int, error) {
	if port < 0 || port > 65535 {
		return 0, fmt.Errorf("port %d, accepted are 1 to 65535, or 0 for a free one", port)
	}
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return 0, fmt.Errorf("port %d of 127.0.0.1 is in use by another program; choose another, or 0 for a free one", port)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

func run(o Options, disk *syncedDisk, port int) (*Server, error) {
	ctx, cancel := context.WithCancel(context.Background())
	s := &Server{Endpoint: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), cancel: cancel, done: make(chan error, 1)}
	ready := make(chan struct{})
	go func() {
		s.done <- embedgw.RunVersityGW(ctx, disk, &embedgw.Config{
			// Given here because the gateway, making its own, prints a line to standard output.
			IAMService:     auth.NewIAMServiceSingle(auth.Account{Access: o.AccessKey, Secret: o.SecretKey, Role: auth.RoleAdmin}),
			RootUserAccess: o.AccessKey, RootUserSecret: o.SecretKey, Region: "us-east-1", Ports: []string{s.Endpoint},
			MaxConnections: 4096, MaxRequests: 2048, MultipartMaxParts: 10_000, Quiet: true, KeepAlive: true,
			S3Options: []s3api.Option{s3api.WithOnListen(func() { close(ready) }), s3api.WithMiddleware("/", closeChunked)},
		})
	}()
	select {
	case <-ready:
		return s, nil
	case err := <-s.done:
		cancel()
		return nil, errors.Join(err, errors.New("the server did not start"))
	case <-time.After(startTimeout):
		cancel()
		return nil, fmt.Errorf("the server did not start within %v", startTimeout)
	}
}

// closeChunked ends the connection after a request of unknown length.
func closeChunked(c fiber.Ctx) error {
	if c.Request().Header.ContentLength() == -1 {
		c.RequestCtx().SetConnectionClose()
	}
	return c.Next()
}

// Stop ends the server and returns the process to its former working directory.
func (s *Server) Stop() error {
	s.cancel()
	err := <-s.done
	if err := os.Chdir(s.home); err != nil {
		return fmt.Errorf("s3: %w", err)
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("s3: %w", err)
	}
	return nil
}

// syncedDisk makes an object durable before its success is reported: its bytes,
// its entry in its folder, and the entry of every folder that is new since the
// server started.
type syncedDisk struct {
	*posix.Posix
	root string

	mu    sync.Mutex
	known map[string]uint64 // folders whose own entries are durable, by inode
}

// PutObject implements backend.Backend.
func (d *syncedDisk) PutObject(ctx context.Context, in s3response.PutObjectInput) (s3response.PutObjectOutput, error) {
	out, err := d.Posix.PutObject(ctx, in)
	if err != nil {
		return out, err
	}
	return out, d.sync(*in.Bucket, *in.Key)
}

// CompleteMultipartUpload implements backend.Backend.
func (d *syncedDisk) CompleteMultipartUpload(ctx context.Context, in *s3.CompleteMultipartUploadInput) (s3response.CompleteMultipartUploadResult, string, error) {
	out, version, err := d.Posix.CompleteMultipartUpload(ctx, in)
	if err != nil {
		return out, version, err
	}
	return out, version, d.sync(*in.Bucket, *in.Key)
}

func (d *syncedDisk) sync(bucket, key string) error {
	if strings.HasSuffix(key, "/") {
		return nil
	}
	path := filepath.Join(d.root, bucket, filepath.FromSlash(key))
	if err := syncPath(path); err != nil {
		return err
	}
	synced := map[string]uint64{}
	for dir := filepath.Dir(path); len(dir) >= len(d.root); dir = filepath.Dir(dir) {
		if err := syncPath(dir); err != nil {
			return err
		}
		number := inode(dir)
		d.mu.Lock()
		known := number != 0 && d.known[dir] == number
		d.mu.Unlock()
		if known {
			break
		}
		synced[dir] = number
	}
	// Only now: somebody else who stops at one of these relies on all above it.
	d.mu.Lock()
	defer d.mu.Unlock()
	maps.Copy(d.known, synced)
	return nil
}

// inode tells a folder from a later one of the same name: the gateway removes
// folders that became empty.
func inode(dir string) uint64 {
	var stat syscall.Stat_t
	if syscall.Stat(dir, &stat) != nil {
		return 0
	}
	return stat.Ino
}

func syncPath(path string) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // replaced or deleted by somebody else; their success is theirs to make durable
	}
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
