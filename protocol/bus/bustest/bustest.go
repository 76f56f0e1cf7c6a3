// Package bustest gives tests a real message bus: a NATS server in the process,
// for one test.
package bustest

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"ipufarm/protocol"
	"ipufarm/protocol/bus"
	"ipufarm/protocol/bus/server"
)

// Timers are short enough for tests in which silence must be noticed. The bucket
// TTL of the server is precise to about a second.
func Timers() protocol.Timers {
	return protocol.Timers{
		Heartbeat: 100 * time.Millisecond, AckWait: time.Second,
		RunHeartbeat: 100 * time.Millisecond, RunAckWait: time.Second,
		Renew: 200 * time.Millisecond, LeaseTTL: 2 * time.Second, SelfFence: 1500 * time.Millisecond,
		AskOwner: 150 * time.Millisecond, Reap: 300 * time.Millisecond, Poll: 100 * time.Millisecond, Retry: 20 * time.Millisecond,
	}
}

// Server is a NATS server that can be stopped and started again on its folder.
type Server struct {
	*server.Server
	t    testing.TB
	opts server.Options
	url  string
}

// Start runs a server until the test ends.
func Start(t testing.TB) *Server {
	t.Helper()
	s := &Server{t: t, opts: server.Options{Dir: t.TempDir(), Log: Log(t)}}
	s.Restart()
	t.Cleanup(func() { s.Stop() })
	return s
}

// Restart starts the server, on the port that it had before.
func (s *Server) Restart() {
	s.t.Helper()
	var err error
	if s.Server, err = server.Start(s.opts); err != nil {
		s.t.Fatal(err)
	}
	if s.url == "" { // the next starts are on the same port, also in the eyes of who connects meanwhile
		s.opts.Port, s.url = s.PortOf(), s.ClientURL()
	}
}

// Connect opens a connection over TCP, as from another process. It waits for a
// server that is being restarted.
func (s *Server) Connect(name string) *bus.Bus {
	s.t.Helper()
	var err error
	for range 200 {
		var b *bus.Bus
		if b, err = bus.Connect(bus.Config{URL: s.url, Name: name, Log: Log(s.t)}); err == nil {
			s.t.Cleanup(b.Close)
			return b
		}
		time.Sleep(20 * time.Millisecond)
	}
	s.t.Fatal(err)
	return nil
}

// Setup opens a connection and makes the layout of a farm with short timers and
// devices of class "ipu21".
func (s *Server) Setup(devices ...string) *bus.Bus {
	s.t.Helper()
	b := s.Connect("coordinator")
	if _, _, err := b.Setup(context.Background(), bus.DefaultLayout(Timers(), "ipu21", devices...)); err != nil {
		s.t.Fatal(err)
	}
	return b
}

// Log writes to the test's log.
func Log(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelInfo}))
}

// TryAgain starts a second server on the folder of s and returns why it did not start.
func (s *Server) TryAgain(port int) error {
	opts := s.opts
	opts.Port = port
	second, err := server.Start(opts)
	if err == nil {
		second.Stop()
	}
	return err
}
