package farmcmd

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"ipufarm/deploy/config"
	"ipufarm/deploy/local"
	"ipufarm/deploy/local/runcmd"
)

// Up returns the verb.
func Up() *cobra.Command {
	var o local.Options
	var file string
	var asJSON bool
	c := &cobra.Command{
		Use:   "up",
		Short: "start an embedded farm that stays until told to end",
		Long: `Start a farm in this process (NATS, S3, coordinator, workers, a runner with the
simulated device) and keep it until SIGTERM or an interrupt, which end it with
status 0. Its addresses are printed, and a file that submit, watch, explain, cancel
and fetch take with --config is written for its owner alone. The credentials in it
hold until the farm ends; the file is removed then.`,
		Args: runcmd.NoArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := checkUp(&o, &file); err != nil {
				return err
			}
			o.Log = slog.New(slog.NewTextHandler(c.ErrOrStderr(), nil))
			return up(c, o, file, asJSON)
		},
	}
	f := c.Flags()
	f.IntVar(&o.Workers, "workers", 0, "workers; 0 is one for each core")
	f.StringVar(&o.State, "state", "", "folder that keeps the farm's state and cache (default: a temporary one)")
	f.IntVar(&o.NATSPort, "nats-port", 0, "port of the NATS server on the loopback interface; 0 is a free one")
	f.IntVar(&o.S3Port, "s3-port", 0, "port of the S3 server on the loopback interface; 0 is a free one")
	f.StringVar(&file, "client-config", config.DefaultFile, "where to write addresses and credentials")
	f.BoolVar(&asJSON, "json", false, "print the addresses as one JSON object")
	return c
}

// checkUp refuses flags out of range, and a file that is not the farm's own.
func checkUp(o *local.Options, file *string) error {
	if o.Workers < 0 || o.Workers > local.MaxWorkers {
		return fmt.Errorf("--workers %d: 1 to %d are accepted, 0 for one for each core", o.Workers, local.MaxWorkers)
	}
	for flag, port := range map[string]int{"nats-port": o.NATSPort, "s3-port": o.S3Port} {
		if port < 0 || port > 65535 {
			return fmt.Errorf("--%s %d: 1 to 65535 are accepted, 0 for a free one", flag, port)
		}
	}
	if o.NATSPort != 0 && o.NATSPort == o.S3Port {
		return fmt.Errorf("--nats-port and --s3-port %d: two different ports are accepted, 0 for free ones", o.S3Port)
	}
	if *file == "" {
		return errors.New("--client-config: the path is empty; leave the flag out for its default")
	}
	abs, err := filepath.Abs(*file) // the S3 server changes the working directory
	if err != nil {
		return fmt.Errorf("--client-config %s: %w", *file, err)
	}
	*file = abs
	if info, err := os.Stat(filepath.Dir(abs)); err != nil || !info.IsDir() {
		return fmt.Errorf("--client-config %s: a file in a folder that exists is accepted", abs)
	}
	old, err := config.Read(abs)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil || !old.Embedded {
		return fmt.Errorf("--client-config %s: it exists and was not written by an embedded farm; a new file is accepted", abs)
	}
	return nil
}

// addresses are what up prints with --json.
type addresses struct {
	NATS   string `json:"nats"`
	S3     string `json:"s3"`
	Config string `json:"config"`
	Tool   string `json:"tool"`
}

func up(c *cobra.Command, o local.Options, file string, asJSON bool) (err error) {
	ctx := c.Context()
	farm, err := local.Start(ctx, o)
	if err != nil {
		if ctx.Err() != nil {
			return errors.New("interrupted")
		}
		return err
	}
	defer func() { err = errors.Join(err, farm.Close()) }()
	if err := config.Write(file, farm.Config()); err != nil {
		return fmt.Errorf("--client-config %s: %w; a file in a folder that can be written is accepted", file, err)
	}
	defer os.Remove(file)
	if asJSON {
		err = printJSON(c, addresses{farm.NATS, farm.S3, file, farm.Tool})
	} else {
		_, err = fmt.Fprintf(c.OutOrStdout(), "NATS    %s\nS3      %s\nconfig  %s\nfarm is ready\n", farm.NATS, farm.S3, file)
	}
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-farm.Failed():
		return fmt.Errorf("a part of the farm ended: %w", err)
	}
}

func printJSON(c *cobra.Command, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(c.OutOrStdout(), "%s\n", data)
	return err
}
