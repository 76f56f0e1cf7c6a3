package store_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ipufarm/protocol"
	"ipufarm/protocol/store"
	"ipufarm/protocol/store/server"
	"ipufarm/protocol/store/storetest"
)

func TestMain(m *testing.M) { storetest.Main(m) }

func TestEmbedded(t *testing.T) {
	s, folder := storetest.Open(t)
	storetest.Suite(t, s, func(t *testing.T, object string) {
		path := filepath.Join(folder, object)
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		data[0] ^= 1
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	})
}

func TestCredentialsAreChecked(t *testing.T) {
	cfg := storetest.Config()
	cfg.Bucket, cfg.SecretKey = "bucket-x", "wrong"
	if _, err := store.Open(context.Background(), cfg); err == nil {
		t.Error("opened with a wrong secret")
	}
}

// A server that ends waits for the connections that nobody closed.
func TestCloseEndsConnections(t *testing.T) {
	closed := make(chan struct{}, 8)
	s3 := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})) // accepts any bucket
	s3.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateClosed {
			closed <- struct{}{}
		}
	}
	s3.Start()
	defer s3.Close()
	s, err := store.Open(context.Background(), store.Config{Endpoint: s3.Listener.Addr().String(), Bucket: "bucket", AccessKey: "a", SecretKey: "s"})
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	select {
	case <-closed:
	case <-time.After(30 * time.Second):
		t.Error("the connection is still open")
	}
}

func TestMalformedManifestIsRefused(t *testing.T) {
	s, folder := storetest.Open(t)
	m := storetest.Manifest(7, "")
	if _, _, err := s.PutManifest(context.Background(), m); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(folder, protocol.ManifestKey(m.Key))
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	other := storetest.Manifest(8, "")
	for name, data := range map[string]string{
		"rubbish":                  "rubbish",
		"truncated":                string(good[:len(good)-1]),
		"manifest of another task": strings.Replace(string(good), m.Key, other.Key, 1),
		"unknown version":          strings.Replace(string(good), `"version":1`, `"version":2`, 1),
		"oversize":                 string(good) + strings.Repeat(" ", protocol.MaxManifest),
	} {
		if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.Manifest(context.Background(), m.Key); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}

func TestServerRefusesWhatCannotBe(t *testing.T) {
	if _, err := server.Start(server.Options{Dir: "relative"}); err == nil || !strings.Contains(err.Error(), "absolute") {
		t.Errorf("a relative folder: %v", err)
	}
	_, port, _ := strings.Cut(storetest.Config().Endpoint, ":")
	n := 0
	for _, c := range port {
		n = 10*n + int(c-'0')
	}
	before, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	_, err = server.Start(server.Options{Dir: t.TempDir(), Port: n, AccessKey: "a", SecretKey: "b"})
	if err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("a port in use: %v", err)
	}
	if after, err := os.Getwd(); err != nil || after != before {
		t.Errorf("working directory %q became %q, %v", before, after, err)
	}
}

func BenchmarkPutGet4KiB(b *testing.B) {
	s, _ := storetest.Open(b)
	data := make([]byte, 4096)
	for i := range b.N {
		data[0], data[1], data[2], data[3] = byte(i), byte(i>>8), byte(i>>16), byte(b.N)
		a, err := s.PutBytes(context.Background(), "x", data)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := s.GetBytes(context.Background(), a); err != nil {
			b.Fatal(err)
		}
	}
}
