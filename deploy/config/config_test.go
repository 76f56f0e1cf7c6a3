package config

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

// full has every key.
const full = `{
  "nats": {"urls": ["nats://a:4222", "nats://b:4222"], "user": "u", "password": "p", "replicas": 3},
  "s3": {"endpoint": "s:9000", "bucket": "b", "access_key": "a", "secret_key": "k", "tls": true},
  "state": "/var/lib/farm", "name": "w-1", "slots": 4,
  "device": {"class": "ipu21", "name": "card0"}, "devices": ["card0", "card1"],
  "tool": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
  "timers": {"lease_ttl": "40s"}, "embedded": true
}`

func TestEveryKeyIsRead(t *testing.T) {
	c, err := Parse([]byte(full))
	if err != nil {
		t.Fatal(err)
	}
	var zero func(at string, v reflect.Value)
	zero = func(at string, v reflect.Value) {
		if v.IsZero() {
			t.Errorf("%s is not set", at)
		}
		for i := 0; v.Kind() == reflect.Struct && i < v.NumField(); i++ {
			zero(at+"."+v.Type().Field(i).Name, v.Field(i))
		}
	}
	zero("config", reflect.ValueOf(c))
	if err := c.check(); err != nil {
		t.Error(err)
	}
	if timers, err := c.FarmTimers(); err != nil || timers.LeaseTTL != 40*time.Second || timers.Renew != 5*time.Second {
		t.Errorf("timers %+v, %v", timers, err)
	}
	// And none is unknown that Write writes.
	path := filepath.Join(t.TempDir(), "x.json")
	if err := Write(path, c); err != nil {
		t.Fatal(err)
	}
	again, err := Read(path)
	if err != nil || !reflect.DeepEqual(again, c) {
		t.Errorf("read back %+v, %v; want %+v", again, err, c)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v; want 0600", info.Mode(), err)
	}
}

func TestParseRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"":                             "unexpected EOF",
		"[]":                           "a JSON object is accepted",
		"null":                         "a JSON object is accepted",
		`{"natz":{}}`:                  `key "natz" is unknown; accepted are nats, s3`,
		`{"NATS":{}}`:                  `key "NATS" is unknown`,
		`{"s3":{"Bucket":"b"}}`:        `key "s3.Bucket" is unknown; accepted are s3.endpoint, s3.bucket`,
		`{"timers":{"reaper":"1s"}}`:   `key "timers.reaper" is unknown; accepted are timers.ack_wait`,
		`{"slots":"4"}`:                `key "slots": a string is not accepted`,
		`{"slots":1.5}`:                `key "slots": a number 1.5 is not accepted`,
		`{"nats":{"urls":"nats://a"}}`: `key "nats.urls": a string is not accepted`,
		`{"nats":[]}`:                  `key "nats": a array is not accepted`,
		`{"name":"a","name":"b"}`:      `key "name" occurs twice`,
		`{} {}`:                        "bytes after the value",
	} {
		if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{full, `{}`, `{"nats":null,"timers":{"poll":"1ms"}}`, `{"device":{"name":1}}`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse(data)
		if err != nil {
			return
		}
		for _, err := range []error{c.check(), c.CheckNATS(), c.CheckS3()} {
			if err != nil && strings.Contains(err.Error(), "\n") {
				t.Errorf("more than one line: %v", err)
			}
		}
		text, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Parse(text); err != nil {
			t.Errorf("%s cannot be read back: %v", text, err)
		}
	})
}

// Flags override the file, which overrides the defaults; a file in the working
// directory is taken when none is named.
func TestLoad(t *testing.T) {
	t.Chdir(t.TempDir())
	load := func(args ...string) Config {
		t.Helper()
		var x Flags
		f := pflag.NewFlagSet("x", pflag.ContinueOnError)
		x.Bind(f, WithNATS, WithS3, WithState, WithName, WithSlots, WithDevice, WithTool)
		if err := f.Parse(args); err != nil {
			t.Fatal(err)
		}
		c, err := x.Load(f)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	if c := load(); c.S3.Bucket != "farm" || c.Device.Class != "ipu21" || c.NATS.Replicas != 1 {
		t.Errorf("defaults %+v", c)
	}
	if err := os.WriteFile(DefaultFile, []byte(full), 0o600); err != nil {
		t.Fatal(err)
	}
	c := load("--nats", "nats://c:1,nats://d:2", "--s3-tls=false", "--slots", "7", "--device", "card9", "--state", "here")
	if strings.Join(c.NATS.URLs, " ") != "nats://c:1 nats://d:2" || c.S3.TLS || c.Slots != 7 || c.Device.Name != "card9" || !filepath.IsAbs(c.State) {
		t.Errorf("flags are not taken: %+v", c)
	}
	if c.NATS.User != "u" || c.S3.Endpoint != "s:9000" || c.Device.Class != "ipu21" || c.Name != "w-1" {
		t.Errorf("the file is not taken: %+v", c)
	}
	if err := os.WriteFile("other.json", []byte(`{"name":"other"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if c := load("--config", "other.json"); c.Name != "other" || c.NATS.User != "" {
		t.Errorf("the named file is not taken: %+v", c)
	}
}
