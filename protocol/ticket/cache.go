package ticket

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sync/singleflight"

	"ipufarm/protocol"
	"ipufarm/protocol/store"
)

// Cache is a folder of artifacts by digest on the local disk, so that a host
// fetches each once. Its files are read-only and complete: they appear by
// renaming. Several holders may share one.
type Cache struct {
	dir     string
	fetches singleflight.Group
}

// NewCache makes the folder if it is absent; dir must be absolute.
func NewCache(dir string) (*Cache, error) {
	if !filepath.IsAbs(dir) {
		return nil, fmt.Errorf("cache folder %q is not absolute", dir)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	return &Cache{dir: dir}, nil
}

// Path fetches an artifact unless it is there and returns its file.
func (c *Cache) Path(ctx context.Context, s *store.Store, a protocol.Artifact) (string, error) {
	path := filepath.Join(c.dir, a.SHA256)
	if info, err := os.Stat(path); err == nil && info.Size() == a.Size {
		return path, nil
	}
	_, err, _ := c.fetches.Do(a.SHA256, func() (any, error) { return nil, s.GetFile(ctx, a, path, 0o400) })
	if err != nil {
		return "", err
	}
	return path, nil
}

// adopt moves a file that was just uploaded into the cache: the next stage on
// this host wants it.
func (c *Cache) adopt(path string, a protocol.Artifact) {
	if os.Chmod(path, 0o400) == nil {
		os.Rename(path, filepath.Join(c.dir, a.SHA256)) // on failure it is fetched when wanted
	}
}
