package runcmd

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"ipufarm/protocol/ipucfg"
	"ipufarm/runner"
	"ipufarm/runner/loader"
)

// What --device accepts: the simulated device, or a prefix and a command.
const (
	simulator  = "simulator"
	execPrefix = "exec:"
)

// oneFile accepts the path of a device configuration file, and refuses what is
// neither that nor a flag.
func oneFile(c *cobra.Command, args []string) error {
	if len(args) > 1 {
		return fmt.Errorf("argument %q: one device configuration file and flags are accepted; %s --help lists them", args[1], c.CommandPath())
	}
	return nil
}

// cardName is the name of a real card in the run record.
const cardName = "card0"

// chooseDevice makes the device that a flag and the argument ask for; nil is the
// simulated one.
func chooseDevice(flag string, args []string) (runner.Device, error) {
	command, external := strings.CutPrefix(flag, execPrefix)
	switch {
	case !external && flag != simulator:
		return nil, fmt.Errorf("--device %q: %s and %sCOMMAND are accepted", flag, simulator, execPrefix)
	case !external && len(args) > 0:
		return nil, fmt.Errorf("argument %q: only flags are accepted with the simulated device; a device configuration file goes with --device %sCOMMAND", args[0], execPrefix)
	case !external:
		return nil, nil
	}
	words := strings.Fields(command)
	if len(words) == 0 {
		return nil, fmt.Errorf("--device %q: a command behind %q is accepted, its arguments separated by spaces", flag, execPrefix)
	}
	path, err := exec.LookPath(words[0])
	if err == nil {
		path, err = filepath.Abs(path) // the working directory changes
	}
	if err != nil {
		var inside *exec.Error
		if errors.As(err, &inside) {
			err = inside.Err // the command is named once
		}
		return nil, fmt.Errorf("--device %q: %s: %w; the path or name of a program is accepted", flag, words[0], err)
	}
	words[0] = path
	var config []byte
	if len(args) > 0 {
		if config, err = ipucfg.ReadFile(args[0]); err != nil {
			return nil, err
		}
	}
	device, err := loader.New(loader.Options{Command: words, Config: config})
	if err != nil {
		return nil, fmt.Errorf("--device %q: %w", flag, err)
	}
	return device, nil
}

// origin says where cycles come from.
func origin(measured bool) string {
	if measured {
		return "measured"
	}
	return "modelled"
}
