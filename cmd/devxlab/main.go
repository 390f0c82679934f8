// SPDX-License-Identifier: BSD-2-Clause

// Command devxlab looks at mlx5 devices through DevX, explains their failures,
// and runs the experiments. See README.md.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"

	"github.com/alecthomas/kong"
	"golang.org/x/sys/unix"

	"devxlab.example/cm"
	"devxlab.example/devx"
	"devxlab.example/ebpf"
	"devxlab.example/emu/uverbs"
	"devxlab.example/mlx5"
)

// Exit codes.
const (
	exitOK          = 0
	exitFailed      = 1   // anything else
	exitUsage       = 2   // the command line
	exitNoDevice    = 3   // no such device, no permission, no DevX, no connection manager
	exitRefused     = 4   // the firmware or the kernel refused a command
	exitLost        = 5   // a command was sent and its answer lost: whether it was carried out is unknown
	exitInterrupted = 130 // SIGINT or SIGTERM; what was measured is kept
)

const description = `Experiments with the queue-pair control path of mlx5 (ConnectX) NICs through DevX.

DEVICE is a name that "devxlab list" shows (mlx5_0), or "emu:" for the emulated device inside the process; its options
stand behind the colon: emu:profile=published,clock=virtual (see package emu/uverbs).

Exit codes: 0 done; 1 failed; 2 wrong command line, also a value that no queue pair can have, an option that no emulated
device has, or a text in which nothing is recognised; 3 no device, no permission, no DevX or no connection manager; 4 firmware or kernel refused
a command; 5 there was no answer to a command in time; 130 interrupted (Ctrl-C, SIGTERM): bench keeps what it has measured. A second Ctrl-C ends the program at once.`

// cli is the command line.
type cli struct {
	Output string `short:"o" enum:"text,json" default:"text" help:"Output format: text or json."`

	List      listCmd      `cmd:"" help:"List the mlx5 devices of this machine. None is opened."`
	Info      infoCmd      `cmd:"" help:"Show what a device is and can do."`
	QP        qpCmd        `cmd:"" name:"qp" help:"Work with queue pairs."`
	Explain   explainCmd   `cmd:"" help:"Say what an error means: a dmesg line, an errno, a status and syndrome, a completion."`
	Bench     benchCmd     `cmd:"" help:"Run experiments: on the emulated device, or on hardware that is named."`
	Verify    verifyCmd    `cmd:"" help:"Ask a device questions, right and wrong ones, and compare its answers with the emulated one's."`
	Calibrate calibrateCmd `cmd:"" help:"Measure what a device's commands cost, and write a profile for the emulated one."`
	Report    reportCmd    `cmd:"" help:"Show what a run of bench found, as text or HTML, or compare two runs."`
	CM        cmCmd        `cmd:"" name:"cm" help:"Make connections through the kernel's connection manager (rdma_cm), and measure them."`
	Capture   captureCmd   `cmd:"" help:"Capture RoCE from a network interface, and follow its connections or write a file."`
	Pcap      pcapCmd      `cmd:"" help:"Follow the connections of rdma_cm in a packet capture: set-up time by step, repetitions, rejects."`
	Trace     traceCmd     `cmd:"" help:"Count and time firmware commands in the kernel, stage by stage (eBPF)."`
	Emu       emuCmd       `cmd:"" help:"Serve an emulated device to QEMU as a PCI function (vfio-user)."`
	Patches   patchesCmd   `cmd:"" help:"Check and build the kernel patches of patches/ against a kernel's source."`
	Lab       labCmd       `cmd:"" help:"Run programs in a virtual machine whose own mlx5 driver drives the emulated HCA."`
}

// env is what every command gets.
type env struct {
	ctx    context.Context
	out    io.Writer
	err    io.Writer
	in     io.Reader
	asJSON bool
}

func (e *env) json(v any) error {
	enc := json.NewEncoder(e.out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

func main() {
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

func run(args []string, in io.Reader, out, errOut io.Writer) int {
	var c cli
	exited := -1
	parser, err := kong.New(&c, kong.Name("devxlab"), kong.Description(description), kong.Writers(out, errOut),
		kong.Exit(func(code int) { exited = code }))
	if err != nil {
		fmt.Fprintln(errOut, "devxlab:", err)
		return exitFailed
	}
	k, err := parser.Parse(args)
	if exited >= 0 { // --help
		return exited
	}
	if err != nil {
		fmt.Fprintf(errOut, "devxlab: %v; see devxlab --help\n", err)
		return exitUsage
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the program
	err = k.Run(&env{ctx: ctx, out: out, err: errOut, in: in, asJSON: c.Output == "json"})
	var status statusError
	if err != nil && !errors.As(err, &status) {
		fmt.Fprintln(errOut, "devxlab:", err)
	}
	return exitCode(ctx, err)
}

func exitCode(ctx context.Context, err error) int {
	var refused *mlx5.CommandError
	var attr *mlx5.AttrError
	var call *cm.CallError
	var event *cm.EventError
	var usage usageError
	var status statusError
	switch {
	case ctx.Err() != nil:
		return exitInterrupted
	case err == nil:
		return exitOK
	case errors.As(err, &status):
		return int(status)
	case errors.As(err, &usage), errors.As(err, &attr):
		return exitUsage
	case errors.Is(err, ebpf.ErrNoPermission), errors.Is(err, ebpf.ErrNoModule), errors.Is(err, devx.ErrNoDevice), errors.Is(err, devx.ErrNoUverbs), errors.Is(err, devx.ErrNoPermission),
		errors.Is(err, devx.ErrNoDevX), errors.Is(err, devx.ErrDeviceGone), errors.Is(err, cm.ErrNoCM), errors.Is(err, cm.ErrNoPermission),
		errors.As(err, &event) && event.Event == cm.DeviceRemoval,
		errors.As(err, &call) && (call.Errno == unix.ENODEV || call.Errno == unix.ENXIO):
		return exitNoDevice
	case devx.Unknown(err):
		return exitLost
	case errors.As(err, &refused), errors.As(err, &call):
		return exitRefused
	}
	return exitFailed
}

// usageError is a mistake in the arguments that the parser cannot see.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// open opens a device.
func open(name string, opts ...devx.Option) (*devx.Device, error) {
	d, err := devx.Open(name, opts...)
	return d, openError(name, err)
}

// openError tells apart a device that is not there and an emulated one whose
// options are wrong: those stand on the command line.
func openError(name string, err error) error {
	if err != nil && strings.HasPrefix(name, uverbs.Scheme+":") && exitCode(context.Background(), err) == exitFailed {
		return usageError{err}
	}
	return err
}
