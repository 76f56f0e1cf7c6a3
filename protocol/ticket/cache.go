package ticket

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sync/singleflight"

	"ipufarm/protocol"
	"ipufarm/protocol/store"
)

// Cache is a folder of artifacts by digest on the local disk, so that a host
// fetches each once. Its files are read-only and complete: they appear by
// renaming. Nothing is synced, and disks rot, so a file from an earlier process is
// read through before its first use. Several holders may share a Cache.
type Cache struct {
	dir     string
	fetches singleflight.Group

	mu    sync.Mutex
	known map[string]bool // digests that this process has fetched, made or verified
}

// NewCache makes the folder if it is absent; dir must be absolute.
func NewCache(dir string) (*Cache, error) {
	if !filepath.IsAbs(dir) {
		return nil, fmt.Errorf("cache folder %q is not absolute", dir)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	return &Cache{dir: dir, known: map[string]bool{}}, nil
}

// Path fetches an artifact unless it is there and returns its file.
func (c *Cache) Path(ctx context.Context, s *store.Store, a protocol.Artifact) (string, error) {
	path := filepath.Join(c.dir, a.SHA256)
	if c.has(a.SHA256) {
		if info, err := os.Stat(path); err == nil && info.Size() == a.Size {
			return path, nil
		}
	}
	_, err, _ := c.fetches.Do(a.SHA256, func() (any, error) {
		if digest, size, err := store.DigestFile(path); err == nil && digest == a.SHA256 && size == a.Size {
			c.learn(digest)
			return nil, nil
		}
		err := s.GetFile(ctx, a, path, 0o400)
		if err == nil {
			c.learn(a.SHA256)
		}
		return nil, err
	})
	if err != nil {
		return "", err
	}
	return path, nil
}

func (c *Cache) has(digest string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.known[digest]
}

func (c *Cache) learn(digest string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known[digest] = true
}

// adopt moves a file that was just uploaded into the cache: the next stage on
// this host wants it. On failure it is fetched when wanted.
func (c *Cache) adopt(path string, a protocol.Artifact) {
	if os.Chmod(path, 0o400) == nil && os.Rename(path, filepath.Join(c.dir, a.SHA256)) == nil {
		c.learn(a.SHA256)
	}
}
