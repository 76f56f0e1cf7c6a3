// Package server runs a NATS server with JetStream inside of the process: the
// message bus of the embedded farm and of tests. It syncs every write, because
// an acknowledged submission must survive a power cut, and locks its folder,
// which the server itself does not.
package server

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// Options of a server.
type Options struct {
	Dir            string // absolute; made if absent
	Port           int    // on 127.0.0.1; 0 takes a free one
	User, Password string
	Log            *slog.Logger // nil discards
}

// Server is a running server.
type Server struct {
	*server.Server
	lock *os.File
	log  *logger
}

// startTimeout is long: recovering a large folder takes a moment, and a machine
// may be busy.
const startTimeout = 20 * time.Second

// Start runs a server until Stop.
func Start(o Options) (*Server, error) {
	if !filepath.IsAbs(o.Dir) {
		return nil, fmt.Errorf("nats: folder %q is not absolute", o.Dir)
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("nats: %w", err)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	lock, err := Lock(filepath.Join(o.Dir, "lock"))
	if err != nil {
		return nil, fmt.Errorf("nats: %w", err)
	}
	s, err := start(o)
	if err != nil {
		lock.Close()
		return nil, fmt.Errorf("nats: %w", err)
	}
	s.lock = lock
	return s, nil
}

func start(o Options) (*Server, error) {
	port := o.Port
	if port == 0 {
		port = server.RANDOM_PORT
	} else if err := CheckPort(port); err != nil {
		return nil, err
	}
	opts := &server.Options{
		ServerName: "ipufarm", Host: "127.0.0.1", Port: port, Username: o.User, Password: o.Password,
		JetStream: true, StoreDir: filepath.Join(o.Dir, "store"), SyncAlways: true,
		NoSigs: true, DisableJetStreamBanner: true, MaxPayload: 1 << 20,
	}
	ns, err := server.NewServer(opts)
	if err != nil {
		return nil, err
	}
	l := &logger{log: o.Log}
	ns.SetLoggerV2(l, false, false, false)
	ns.Start()
	s := &Server{Server: ns, log: l}
	for deadline := time.Now().Add(startTimeout); !ns.ReadyForConnections(10 * time.Millisecond); {
		if err := l.fatal(); err != nil || time.Now().After(deadline) {
			ns.Shutdown()
			return nil, errors.Join(err, errors.New("the server does not start"))
		}
	}
	return s, nil
}

// Stop ends the server and releases its folder.
func (s *Server) Stop() {
	s.Shutdown()
	s.WaitForShutdown()
	s.lock.Close()
}

// CheckPort reports, in one line, that a port of 127.0.0.1 cannot be listened on.
func CheckPort(port int) error {
	if port < 1 || port > 65535 {
		return fmt.Errorf("port %d, accepted are 1 to 65535, or 0 for a free one", port)
	}
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("port %d of 127.0.0.1 is in use by another program; choose another, or 0 for a free one", port)
	}
	if err != nil {
		return err
	}
	return l.Close()
}

// Lock takes the lock of a folder, which the kernel drops with the process. Two
// servers on one store would both give out sequence 1.
func Lock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("folder %s is in use by another farm", filepath.Dir(path))
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}

// logger hands the server's lines to slog and keeps what it calls fatal: the
// server reports a taken port that way, and by default ends the process.
type logger struct {
	log *slog.Logger
	mu  sync.Mutex
	err error
}

func (l *logger) fatal() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

func (l *logger) Noticef(format string, v ...any) { l.log.Debug("nats: " + fmt.Sprintf(format, v...)) }

func (l *logger) Warnf(format string, v ...any) {
	// The server's advice to hash passwords is for those in a file. Ours is random,
	// lives as long as the server and never leaves the process.
	if text := fmt.Sprintf(format, v...); !strings.HasPrefix(text, "Plaintext passwords") {
		l.log.Warn("nats: " + text)
	}
}

func (l *logger) Errorf(format string, v ...any) { l.log.Error("nats: " + fmt.Sprintf(format, v...)) }
func (l *logger) Debugf(string, ...any)          {}
func (l *logger) Tracef(string, ...any)          {}

func (l *logger) Fatalf(format string, v ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = fmt.Errorf(format, v...)
	l.log.Error("nats: " + l.err.Error())
}

// PortOf returns the port that the server listens on.
func (s *Server) PortOf() int { return s.Addr().(*net.TCPAddr).Port }
