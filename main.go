// Command ipufarm compiles models for the Graphcore IPU21 and farms the work out:
// see README.md. This file assembles the verbs that the folders export and does
// nothing else.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"ipufarm/compiler"
	"ipufarm/compiler/capturecmd"
	"ipufarm/compiler/exchange/exchangecmd"
	"ipufarm/compiler/kernel/kernelcmd"
	"ipufarm/compiler/place/placecmd"
	"ipufarm/deploy/farmcmd"
	"ipufarm/deploy/local/runcmd"
	"ipufarm/protocol/numeric/numericcmd"
	"ipufarm/protocol/profile/profilecmd"
	"ipufarm/protocol/profile/sdk/sdkcmd"
	"ipufarm/protocol/program/programcmd"
	"ipufarm/worker"
)

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second interrupt ends the process at once
	root := &cobra.Command{
		Use:           "ipufarm",
		Short:         "a compiler and compile farm for the Graphcore IPU21",
		Version:       compiler.Version,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	status := 0
	stage := &cobra.Command{
		Use: "stage", Hidden: true, Args: cobra.NoArgs, Short: "serve stage requests of a worker on standard input",
		Run: func(*cobra.Command, []string) { status = worker.ChildMain((&compiler.Stages{}).Run) },
	}
	exchange, place := exchangecmd.Command(), placecmd.Command()
	exchange.AddCommand(capturecmd.Exchange())
	place.AddCommand(capturecmd.Place())
	root.AddCommand(runcmd.Command(), programcmd.Command(), profilecmd.Command(), exchange, place, kernelcmd.Command(),
		numericcmd.Command(), sdkcmd.Command(), stage)
	root.AddCommand(farmcmd.Commands()...)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	var exit *runcmd.ExitError
	switch {
	case err == nil:
		return status
	case ctx.Err() != nil:
		status = 130
	case errors.As(err, &exit):
		status = exit.Status
	default:
		status = 1
	}
	fmt.Fprintln(os.Stderr, "ipufarm:", err)
	return status
}
