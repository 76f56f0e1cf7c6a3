// Package farmcmd is the farm as verbs: its parts as processes that run until they
// are told to end, an embedded farm that stays, and what a person does with jobs
// from anywhere.
package farmcmd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"ipufarm/coordinator/client"
	"ipufarm/deploy/config"
	"ipufarm/deploy/local/runcmd"
	"ipufarm/protocol"
	"ipufarm/protocol/bus"
	"ipufarm/protocol/store"
)

// Commands returns the verbs.
func Commands() []*cobra.Command {
	all := []*cobra.Command{Up(), Coordinator(), Worker(), Runner(), Submit(), Watch(), Explain(), Cancel(), Retry(), Fetch(), Top()}
	for _, c := range all {
		c.SilenceUsage = true
		c.SetFlagErrorFunc(runcmd.FlagError)
	}
	return all
}

// dial connects to the message bus.
func dial(c *config.Config, bc bus.Config) (*bus.Bus, error) {
	if err := c.CheckNATS(); err != nil {
		return nil, err
	}
	bc.URL, bc.User, bc.Password = strings.Join(c.NATS.URLs, ","), c.NATS.User, c.NATS.Password
	b, err := bus.Connect(bc)
	if err != nil {
		return nil, fmt.Errorf("--nats (config key nats.urls): %w; a NATS server with JetStream that takes --nats-user and --nats-password is accepted", err)
	}
	return b, nil
}

// storeTimeout bounds the first words with the S3 server.
const storeTimeout = 20 * time.Second

// openStore connects to the store. That nobody listens is found out here, because
// the client of the store would go on trying.
func openStore(ctx context.Context, c *config.Config) (*store.Store, error) {
	if err := c.CheckS3(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", c.S3.Endpoint)
	if err != nil {
		return nil, fmt.Errorf("--s3 %s (config key s3.endpoint): %w; the address of an S3 server is accepted", c.S3.Endpoint, err)
	}
	conn.Close()
	s, err := store.Open(ctx, store.Config{Endpoint: c.S3.Endpoint, Bucket: c.S3.Bucket, AccessKey: c.S3.AccessKey, SecretKey: c.S3.SecretKey, Secure: c.S3.TLS})
	if err != nil {
		return nil, fmt.Errorf("--s3 %s (config key s3.endpoint): %w; an S3 server that takes --s3-access-key and --s3-secret-key is accepted", c.S3.Endpoint, err)
	}
	return s, nil
}

// tool is the digest that jobs name and workers announce.
func tool(c *config.Config) (string, error) {
	if c.Tool != "" {
		return c.Tool, nil
	}
	_, digest, err := self()
	return digest, err
}

// session is a verb's connection to a farm.
type session struct {
	client  *client.Client
	cfg     config.Config
	timeout time.Duration
}

// reach are the flags by which a verb of a person reaches the farm.
type reach struct {
	config.Flags
	timeout time.Duration
	json    bool
}

func (r *reach) bind(c *cobra.Command, parts ...config.Part) {
	r.Bind(c.Flags(), append([]config.Part{config.WithNATS}, parts...)...)
	c.Flags().DurationVar(&r.timeout, "timeout", 10*time.Second, "how long the coordinator is waited for")
	c.Flags().BoolVar(&r.json, "json", false, "print JSON on standard output and nothing else")
}

// open connects; withStore says whether the verb needs artifacts, too.
func (r *reach) open(c *cobra.Command, withStore bool) (*session, func(), error) {
	if r.timeout <= 0 {
		return nil, nil, fmt.Errorf("--timeout %v: durations above 0, such as 10s, are accepted", r.timeout)
	}
	cfg, err := r.Load(c.Flags())
	if err != nil {
		return nil, nil, err
	}
	if withStore {
		if err := cfg.CheckS3(); err != nil { // before anybody is called
			return nil, nil, err
		}
	}
	b, err := dial(&cfg, bus.Config{Name: "client"})
	if err != nil {
		return nil, nil, err
	}
	s := &session{&client.Client{Bus: b}, cfg, r.timeout}
	shut := b.Close
	if err := s.within(c.Context(), b.Join); err != nil {
		shut()
		return nil, nil, err
	}
	if withStore {
		if s.client.Store, err = openStore(c.Context(), &cfg); err != nil {
			shut()
			return nil, nil, err
		}
		shut = func() { s.client.Store.Close(); b.Close() }
	}
	return s, shut, nil
}

// within bounds one question to the coordinator.
func (s *session) within(ctx context.Context, f func(context.Context) error) error {
	limited, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	err := f(limited)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return errors.New("interrupted")
	case limited.Err() != nil:
		return fmt.Errorf("no coordinator answers at %s within %v (--timeout); one must run on the farm that --nats or --config names", strings.Join(s.cfg.NATS.URLs, ","), s.timeout)
	}
	return err
}

// report reads about a job.
func (s *session) report(ctx context.Context, job string) (r *protocol.JobReport, err error) {
	err = s.within(ctx, func(ctx context.Context) error {
		r, err = s.client.Report(ctx, job)
		return err
	})
	return r, err
}

// oneJob accepts the id of one job as the only argument.
func oneJob(c *cobra.Command, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("%d arguments: one job's id, as submit prints it, is accepted", len(args))
	}
	if err := protocol.CheckJobID(args[0]); err != nil {
		return fmt.Errorf("job %w; an id as submit prints it is accepted", err)
	}
	return nil
}
