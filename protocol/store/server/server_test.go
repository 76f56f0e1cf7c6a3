package server_test

import (
	"context"
	"os"
	"testing"

	"ipufarm/protocol/store"
	"ipufarm/protocol/store/server"
	"ipufarm/protocol/store/storetest"
)

// TestServerWithoutAttributes runs the suite on a server that keeps the metadata
// of its objects in files, and again on what it left after a restart.
func TestServerWithoutAttributes(t *testing.T) {
	o := server.WithoutAttributes(server.Options{Dir: t.TempDir(), AccessKey: "a", SecretKey: "s"})
	for _, bucket := range []string{"first", "second"} {
		s, err := server.Start(o)
		if err != nil {
			t.Fatal(err)
		}
		artifacts, err := store.Open(context.Background(), store.Config{Endpoint: s.Endpoint, Bucket: bucket, AccessKey: "a", SecretKey: "s"})
		if err != nil {
			t.Fatal(err)
		}
		storetest.Suite(t, artifacts, nil)
		a, err := artifacts.PutBytes(context.Background(), "x", []byte("kept"))
		if err != nil {
			t.Fatal(err)
		}
		if err := artifacts.Has(context.Background(), a); err != nil {
			t.Error(err)
		}
		artifacts.Close()
		if err := s.Stop(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestOneServerPerProcess: a second one is refused, and the first goes on.
func TestOneServerPerProcess(t *testing.T) {
	home, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	s, err := server.Start(server.Options{Dir: t.TempDir(), AccessKey: "a", SecretKey: "s"})
	if err != nil {
		t.Fatal(err)
	}
	if second, err := server.Start(server.Options{Dir: t.TempDir(), AccessKey: "a", SecretKey: "s"}); err == nil {
		second.Stop()
		t.Error("a second server started")
	}
	artifacts, err := store.Open(context.Background(), store.Config{Endpoint: s.Endpoint, Bucket: "bucket", AccessKey: "a", SecretKey: "s"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := artifacts.PutBytes(context.Background(), "x", []byte("data")); err != nil {
		t.Error(err)
	}
	artifacts.Close()
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	if now, err := os.Getwd(); err != nil || now != home {
		t.Errorf("the working directory is %q, was %q (%v)", now, home, err)
	}
}
