package config

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/pflag"
)

// Part is a group of flags that a verb may have.
type Part int

const (
	WithNATS   Part = iota // addresses and credentials of the message bus
	WithS3                 // of the store
	WithState              // a folder
	WithName               // of a worker or runner
	WithSlots              // of a worker
	WithDevice             // class and name
	WithClass              // of the farm's devices
	WithQueues             // of the coordinator: device class, devices, replicas
	WithTool
)

// Flags are the flags of a verb and what they were set to.
type Flags struct {
	file string
	set  Config
	copy []func(f *pflag.FlagSet, to *Config)
}

// Bind adds --config and the flags of some parts to a set.
func (x *Flags) Bind(f *pflag.FlagSet, parts ...Part) {
	f.StringVar(&x.file, "config", "", "JSON file with addresses and credentials (default "+DefaultFile+" if it exists); flags override it")
	for _, p := range parts {
		switch p {
		case WithNATS:
			list(x, f, "nats", "address of a NATS server with JetStream, or several with commas", func(c *Config) *[]string { return &c.NATS.URLs })
			text(x, f, "nats-user", "user of the NATS server", func(c *Config) *string { return &c.NATS.User })
			text(x, f, "nats-password", "its password; others on this host can read flags, so better say it in the file", func(c *Config) *string { return &c.NATS.Password })
		case WithS3:
			text(x, f, "s3", "address host:port of an S3 server", func(c *Config) *string { return &c.S3.Endpoint })
			text(x, f, "s3-bucket", "bucket, made if absent (default farm)", func(c *Config) *string { return &c.S3.Bucket })
			text(x, f, "s3-access-key", "access key of the S3 server", func(c *Config) *string { return &c.S3.AccessKey })
			text(x, f, "s3-secret-key", "its secret key; others on this host can read flags, so better say it in the file", func(c *Config) *string { return &c.S3.SecretKey })
			f.BoolVar(&x.set.S3.TLS, "s3-tls", false, "speak TLS to the S3 server")
			override(x, "s3-tls", func(c *Config) *bool { return &c.S3.TLS })
		case WithState:
			text(x, f, "state", "folder for what this process keeps; one process for each", func(c *Config) *string { return &c.State })
		case WithName:
			text(x, f, "name", "name of this process, which no other of the farm has (default: from the host's name)", func(c *Config) *string { return &c.Name })
		case WithSlots:
			number(x, f, "slots", "tasks at a time; 0 is one for each core", func(c *Config) *int { return &c.Slots })
		case WithDevice:
			text(x, f, "device-class", "class of the device (default ipu21)", func(c *Config) *string { return &c.Device.Class })
			text(x, f, "device", "name of the device", func(c *Config) *string { return &c.Device.Name })
		case WithClass, WithQueues:
			text(x, f, "device-class", "class of the farm's devices (default ipu21)", func(c *Config) *string { return &c.Device.Class })
			if p == WithClass {
				break
			}
			list(x, f, "devices", "names of the farm's devices, with commas (default sim0)", func(c *Config) *[]string { return &c.Devices })
			number(x, f, "replicas", "copies of every stream and bucket: 1 (default), or 3 in a cluster", func(c *Config) *int { return &c.NATS.Replicas })
		case WithTool:
			text(x, f, "tool", "SHA-256 of the workers' executable (default: of this one)", func(c *Config) *string { return &c.Tool })
		}
	}
}

func text(x *Flags, f *pflag.FlagSet, flag, usage string, at func(*Config) *string) {
	f.StringVar(at(&x.set), flag, "", usage)
	override(x, flag, at)
}

func number(x *Flags, f *pflag.FlagSet, flag, usage string, at func(*Config) *int) {
	f.IntVar(at(&x.set), flag, 0, usage)
	override(x, flag, at)
}

func list(x *Flags, f *pflag.FlagSet, flag, usage string, at func(*Config) *[]string) {
	f.StringSliceVar(at(&x.set), flag, nil, usage)
	override(x, flag, at)
}

func override[T any](x *Flags, flag string, at func(*Config) *T) {
	x.copy = append(x.copy, func(f *pflag.FlagSet, to *Config) {
		if f.Changed(flag) {
			*at(to) = *at(&x.set)
		}
	})
}

// Load reads the file, puts what flags say over it, makes the state folder absolute
// and refuses names and numbers out of range.
func (x *Flags) Load(f *pflag.FlagSet) (Config, error) {
	c := defaults()
	path := x.file
	switch {
	case path == "" && f.Changed("config"):
		return c, fmt.Errorf("--config: the path is empty; leave the flag out for its default")
	case path == "":
		if _, err := os.Stat(DefaultFile); err == nil {
			path = DefaultFile
		}
	}
	if path != "" {
		var err error
		if c, err = Read(path); err != nil {
			return c, fmt.Errorf("--config %s: %w", path, err)
		}
	}
	for _, put := range x.copy {
		put(f, &c)
	}
	if c.State != "" {
		abs, err := filepath.Abs(c.State)
		if err != nil {
			return c, fmt.Errorf("--state %s: %w", c.State, err)
		}
		c.State = abs
	}
	return c, c.check()
}
