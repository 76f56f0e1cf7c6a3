// Package config is how a process finds its farm: the addresses and credentials of
// the NATS and S3 servers, and what the process is called and offers. It comes from
// one JSON file, and every key has a flag that overrides it.
package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"ipufarm/protocol"
)

// DefaultFile is read when no file is named and it exists in the working directory.
const DefaultFile = "ipufarm.json"

// maxFile bounds a file: it holds a few addresses.
const maxFile = 64 << 10

// Config is the contents of a file.
type Config struct {
	NATS   NATS   `json:"nats"`
	S3     S3     `json:"s3"`
	State  string `json:"state,omitempty"` // folder of the process
	Name   string `json:"name,omitempty"`  // of a worker or runner
	Slots  int    `json:"slots,omitempty"` // of a worker
	Device Device `json:"device"`
	// Devices are the names that the coordinator keeps a queue for.
	Devices []string `json:"devices,omitempty"`
	// Tool is the digest of the executable that the workers of the farm run; jobs
	// name it. Empty is that of the process itself.
	Tool string `json:"tool,omitempty"`
	// Timers are durations by name, such as "lease_ttl": "30s"; the rest has its
	// defaults. All processes of a farm need the same.
	Timers map[string]string `json:"timers,omitempty"`
	// Embedded marks a file that an embedded farm wrote and may replace.
	Embedded bool `json:"embedded,omitempty"`
}

// NATS is the message bus.
type NATS struct {
	URLs     []string `json:"urls,omitempty"`
	User     string   `json:"user,omitempty"`
	Password string   `json:"password,omitempty"`
	Replicas int      `json:"replicas,omitempty"` // of streams and buckets
}

// S3 is the store of artifacts.
type S3 struct {
	Endpoint  string `json:"endpoint,omitempty"` // host:port
	Bucket    string `json:"bucket,omitempty"`
	AccessKey string `json:"access_key,omitempty"`
	SecretKey string `json:"secret_key,omitempty"`
	TLS       bool   `json:"tls,omitempty"`
}

// Device is what a runner guards and a job wants.
type Device struct {
	Class string `json:"class,omitempty"`
	Name  string `json:"name,omitempty"`
}

// Defaults of what neither a file nor a flag says.
func defaults() Config {
	return Config{NATS: NATS{Replicas: 1}, S3: S3{Bucket: "farm"}, Device: Device{Class: "ipu21"}, Devices: []string{"sim0"}}
}

// keys are what a file may hold, by the object that they are in.
var keys = map[string][]string{
	"":       {"nats", "s3", "state", "name", "slots", "device", "devices", "tool", "timers", "embedded"},
	"nats":   {"urls", "user", "password", "replicas"},
	"s3":     {"endpoint", "bucket", "access_key", "secret_key", "tls"},
	"device": {"class", "name"},
	"timers": slices.Sorted(maps.Keys(timers(&protocol.Timers{}))),
}

// timers are the fields of a set of timers by key.
func timers(t *protocol.Timers) map[string]*time.Duration {
	return map[string]*time.Duration{
		"heartbeat": &t.Heartbeat, "ack_wait": &t.AckWait, "run_heartbeat": &t.RunHeartbeat, "run_ack_wait": &t.RunAckWait,
		"renew": &t.Renew, "lease_ttl": &t.LeaseTTL, "self_fence": &t.SelfFence, "ask_owner": &t.AskOwner, "reap": &t.Reap, "poll": &t.Poll, "retry": &t.Retry,
	}
}

// Parse reads the contents of a file over the defaults. A key that is unknown or
// there twice, and a value of another type, are errors that name the key.
func Parse(data []byte) (Config, error) {
	c := defaults()
	text, err := protocol.Canonical(data) // refuses keys that are there twice
	if err != nil {
		return c, err
	}
	var object map[string]any
	if err := json.Unmarshal(text, &object); err != nil || object == nil {
		return c, errors.New("a JSON object is accepted")
	}
	if err := known("", object); err != nil {
		return c, err
	}
	err = json.Unmarshal(text, &c)
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		return c, fmt.Errorf("key %q: a %s is not accepted, a value for %s is", wrong.Field, wrong.Value, wrong.Type)
	}
	return c, err
}

// known reports a key that a file may not hold; encoding/json would take one that
// differs in case.
func known(within string, object map[string]any) error {
	for _, key := range slices.Sorted(maps.Keys(object)) {
		name := strings.TrimPrefix(within+"."+key, ".")
		if !slices.Contains(keys[within], key) {
			return fmt.Errorf("key %q is unknown; accepted are %s", name, strings.TrimPrefix(within+".", ".")+strings.Join(keys[within], ", "+strings.TrimPrefix(within+".", ".")))
		}
		if below, ok := object[key].(map[string]any); ok && within == "" && keys[key] != nil {
			if err := known(key, below); err != nil {
				return err
			}
		}
	}
	return nil
}

// Read reads a file.
func Read(path string) (Config, error) {
	f, err := os.Open(path)
	if err != nil {
		return Config{}, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return Config{}, err
	}
	if len(data) > maxFile {
		return Config{}, fmt.Errorf("more than %d bytes", maxFile)
	}
	return Parse(data)
}

// Write writes a file that nobody but its owner can read, complete or not at all.
func Write(path string, c Config) error {
	data, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".ipufarm-*") // with the permissions 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(append(data, '\n'))
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// CheckNATS refuses addresses that cannot be ones of NATS servers.
func (c *Config) CheckNATS() error {
	const at = "--nats (config key nats.urls)"
	if len(c.NATS.URLs) == 0 {
		return errors.New(at + ": missing; addresses such as nats://host:4222 are accepted")
	}
	for _, text := range c.NATS.URLs {
		u, err := url.Parse(text)
		if err != nil || !slices.Contains([]string{"nats", "tls", "ws", "wss"}, u.Scheme) || u.Hostname() == "" || u.Path != "" || u.RawQuery != "" {
			return fmt.Errorf("%s %q: addresses such as nats://host:4222 or tls://host:4222 are accepted", at, text)
		}
		if u.User != nil {
			return fmt.Errorf("%s: an address with a user in it; --nats-user and --nats-password (config keys nats.user, nats.password) are accepted", at)
		}
	}
	if (c.NATS.User == "") != (c.NATS.Password == "") {
		return errors.New("--nats-user and --nats-password (config keys nats.user, nats.password): one is missing; both or none are accepted")
	}
	return nil
}

// CheckS3 refuses an address that cannot be one of an S3 server, and missing keys.
func (c *Config) CheckS3() error {
	const at = "--s3 (config key s3.endpoint)"
	if c.S3.Endpoint == "" {
		return errors.New(at + ": missing; an address host:port is accepted")
	}
	host, port, err := net.SplitHostPort(c.S3.Endpoint)
	if n, portErr := strconv.ParseUint(port, 10, 16); err != nil || portErr != nil || n == 0 || host == "" || strings.Contains(host, "/") {
		return fmt.Errorf("%s %q: an address host:port is accepted, with --s3-tls (config key s3.tls) for TLS", at, c.S3.Endpoint)
	}
	if c.S3.Bucket == "" {
		return errors.New("--s3-bucket (config key s3.bucket): missing; the name of a bucket is accepted")
	}
	if c.S3.AccessKey == "" {
		return errors.New("--s3-access-key (config key s3.access_key): missing; an access key of the S3 server is accepted")
	}
	if c.S3.SecretKey == "" {
		return errors.New("--s3-secret-key (config key s3.secret_key): missing; the secret key that belongs to the access key is accepted")
	}
	return nil
}

// names that a process or device may have.
func (c *Config) check() error {
	for _, x := range []struct{ at, name string }{
		{"--name (config key name)", c.Name}, {"--device-class (config key device.class)", c.Device.Class}, {"--device (config key device.name)", c.Device.Name},
	} {
		if x.name == "" {
			continue
		}
		if err := protocol.CheckName(x.name); err != nil {
			return fmt.Errorf("%s: %w; 1 to 32 of a-z, 0-9 and - are accepted", x.at, err)
		}
	}
	for _, name := range c.Devices {
		if err := protocol.CheckName(name); err != nil {
			return fmt.Errorf("--devices (config key devices): %w; names of 1 to 32 of a-z, 0-9 and - are accepted", err)
		}
	}
	if c.Slots < 0 || c.Slots > 1024 {
		return fmt.Errorf("--slots %d (config key slots): 1 to 1024 are accepted, 0 for one for each core", c.Slots)
	}
	if c.NATS.Replicas != 1 && c.NATS.Replicas != 3 {
		return fmt.Errorf("--replicas %d (config key nats.replicas): 1 is accepted for one server, 3 for a cluster of three", c.NATS.Replicas)
	}
	if c.Tool != "" {
		if err := protocol.CheckDigest(c.Tool); err != nil {
			return fmt.Errorf("--tool (config key tool): %w; the SHA-256 of the workers' executable is accepted", err)
		}
	}
	_, err := c.FarmTimers()
	return err
}

// FarmTimers are the defaults with what the file says of them.
func (c *Config) FarmTimers() (protocol.Timers, error) {
	t := protocol.DefaultTimers()
	fields := timers(&t)
	for _, key := range slices.Sorted(maps.Keys(c.Timers)) {
		to := fields[key]
		if to == nil {
			return t, fmt.Errorf("config key timers.%s: unknown; accepted are %v", key, keys["timers"])
		}
		d, err := time.ParseDuration(c.Timers[key])
		if err != nil || d <= 0 {
			return t, fmt.Errorf("config key timers.%s %q: durations such as 500ms, 10s and 2m are accepted", key, c.Timers[key])
		}
		*to = d
	}
	if err := t.Check(); err != nil {
		return t, fmt.Errorf("config key timers: %w", err)
	}
	return t, nil
}
