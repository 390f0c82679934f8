// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"devxlab.example/emu/fw"
	"devxlab.example/emu/pci"
	"devxlab.example/emu/vfiouser"
	"devxlab.example/emu/wire"
	"devxlab.example/mlx5"
)

type emuCmd struct {
	Socket         []string       `required:"" sep:"none" placeholder:"PATH" help:"Unix socket to make; QEMU connects to it. May be repeated: each is a card of its own, and all are on one wire."`
	Profile        string         `default:"zero" placeholder:"NAME|FILE" help:"What commands cost: a built-in profile or a JSON file."`
	Latency        *time.Duration `placeholder:"DURATION" help:"Each command takes this long, in the place of the profile's figures."`
	CommandTimeout time.Duration  `placeholder:"DURATION" help:"How long drivers are told to wait for a command (Linux 5.16 and later); 0: their own 60 s."`
	HealthPoll     time.Duration  `placeholder:"DURATION" help:"How often drivers are told to look at the health buffer (Linux 5.16 and later); 0: their own 2 s."`
	Fault          []string       `sep:"none" placeholder:"FAULT" help:"Something that goes wrong, such as silent:op=RTR2RTS_QP,nth=3; may be repeated. See docs/faults.md."`
	Control        string         `placeholder:"PATH" help:"Unix socket to make; faults that are written to it, one a line, are armed at once, and \"wire PARAMS\" changes the wire."`
	MAC            string         `placeholder:"ADDRESS" help:"MAC address of the port; that of each further card is one more."`
	Wire           wire.Params    `placeholder:"PARAMS" help:"What the wire does to frames, each way: rate=100G,delay=5us,loss=1%. See docs/wire.md."`
	Seed           uint64         `help:"Of what the wire leaves to chance."`
	Tap            string         `placeholder:"FILE" help:"Write what is on the wire, and what cards send to themselves, to a pcapng file."`
	Log            string         `placeholder:"FILE" help:"Write each command that the driver issues, and what it does wrong, to a file."`
	Once           bool           `help:"End when each card has had a client, and none is left."`
}

const emuHelp = `Serve an emulated ConnectX-6 Dx to QEMU as a PCI function (vfio-user).

It runs until it is interrupted. QEMU 10.1 or newer takes the function as
  -object memory-backend-memfd,id=m,size=512M,share=on -machine q35,memory-backend=m
  -device '{"driver":"vfio-user-pci","socket":{"type":"unix","path":"PATH"}}'`

// Help is what the command's --help adds.
func (emuCmd) Help() string { return emuHelp }

func (c emuCmd) Run(e *env) (err error) {
	config, err := c.config()
	if err != nil {
		return usageError{err}
	}
	logTo := io.Discard
	if c.Log != "" {
		f, err := os.Create(c.Log)
		if err != nil {
			return err
		}
		defer f.Close()
		logTo = f
	}
	l := log.New(logTo, "", log.Lmicroseconds)
	config.Log = l.Printf
	config.Kill = func() { os.Exit(exitOK) } // as abruptly as a signal; what was asked for is no failure
	if c.Log != "" {
		config.Trace = func(in, out []byte, took time.Duration) { l.Print(commandLine(in, out, took)) }
	}
	cable, err := c.network()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cable.close()) }()
	ctx, stop := context.WithCancel(e.ctx)
	defer stop()
	var cards []*pci.Function
	busy := clients{stop: stop, never: len(c.Socket)}
	addresses, err := cardAddresses(config.MAC, len(c.Socket))
	if err != nil {
		return usageError{err}
	}
	for i, mac := range addresses {
		config.MAC = mac
		f, err := pci.New(config)
		if err != nil {
			return err
		}
		if cable != nil {
			cable.connect(i, f)
		}
		cards = append(cards, f)
	}
	var listeners []*net.UnixListener
	defer func() {
		for _, l := range listeners {
			_ = l.Close()
		}
	}()
	for i, path := range c.Socket {
		if slices.Contains(c.Socket[:i], path) {
			return usageError{fmt.Errorf("--socket %s stands there twice: each card has one of its own", path)}
		}
		listener, err := listen(path)
		if err != nil {
			return err
		}
		listeners = append(listeners, listener)
	}
	if c.Control != "" {
		control, err := listen(c.Control)
		if err != nil {
			return err
		}
		defer control.Close()
		go serveControl(control, cards, cable)
	}
	fmt.Fprintf(e.out, "serving on %s: %d commands in flight, profile %s\n", strings.Join(c.Socket, " and "), config.Profile.Slots, config.Profile.Name)
	ended := make(chan error, len(cards))
	for i, f := range cards {
		var function vfiouser.Function = f
		if c.Once {
			function = &onceFunction{Function: f, all: &busy}
		}
		server := vfiouser.Server{Function: function, Log: func(err error) {
			l.Print(err)
			fmt.Fprintln(e.err, "devxlab emu:", err)
		}}
		go func() { ended <- server.Serve(ctx, listeners[i]) }()
	}
	for range cards {
		serr := <-ended
		stop()
		if !errors.Is(serr, context.Canceled) {
			err = errors.Join(err, serr)
		}
	}
	return err
}

// clients counts those of all cards, and ends the program when the last one is
// gone and each card has had one.
type clients struct {
	mu    sync.Mutex
	now   int // that are there
	never int // cards that have had none
	stop  func()
}

// onceFunction counts its clients.
type onceFunction struct {
	*pci.Function
	all *clients
	had bool
}

func (f *onceFunction) Attach(h vfiouser.Host) {
	f.all.mu.Lock()
	f.all.now++
	if !f.had {
		f.had = true
		f.all.never--
	}
	f.all.mu.Unlock()
	f.Function.Attach(h)
}

func (f *onceFunction) Detach() {
	f.Function.Detach()
	f.all.mu.Lock()
	defer f.all.mu.Unlock()
	if f.all.now--; f.all.now == 0 && f.all.never == 0 {
		f.all.stop()
	}
}

func (c emuCmd) config() (pci.Config, error) {
	p, err := fw.ProfileByName(c.Profile)
	if err != nil {
		return pci.Config{}, err
	}
	if c.Latency != nil {
		// A copy: built-in profiles may be shared.
		copied := *p
		copied.Name = fmt.Sprintf("%s+latency=%v", p.Name, *c.Latency)
		copied.Default, copied.Ops, copied.Per1000QPs, copied.ContextCache = fw.Dist{Fixed: *c.Latency}, nil, 0, nil
		if err := copied.Compile(); err != nil {
			return pci.Config{}, err
		}
		p = &copied
	}
	config := pci.Config{Profile: p, MAC: pci.DefaultMAC, CommandTimeout: c.CommandTimeout, HealthPoll: c.HealthPoll}
	for _, text := range c.Fault {
		x, err := pci.ParseFault(text)
		if err != nil {
			return config, fmt.Errorf("--fault: %w", err)
		}
		config.Faults = append(config.Faults, x)
	}
	if c.MAC != "" {
		mac, err := net.ParseMAC(c.MAC)
		if err != nil || len(mac) != len(config.MAC) || mac[0]&1 != 0 {
			return config, fmt.Errorf("--mac %s: a unicast address such as 0c:42:a1:00:00:01", c.MAC)
		}
		copy(config.MAC[:], mac)
	}
	return config, nil
}

// cardAddresses returns the addresses of n cards, which count up from the first.
func cardAddresses(first [6]byte, n int) (all [][6]byte, err error) {
	at := binary.BigEndian.Uint64(append([]byte{0, 0}, first[:]...))
	for i := range uint64(n) {
		mac := [6]byte(binary.BigEndian.AppendUint64(nil, at+i)[2:])
		if mac[0]&1 != 0 || at+i >= 1<<48 {
			return nil, fmt.Errorf("--mac %s: of %d cards, the address of card %d would not be a unicast address: begin lower", net.HardwareAddr(first[:]), n, i+1)
		}
		all = append(all, mac)
	}
	return all, nil
}

// serveControl does what clients of the control socket write. Each line is
// answered with "ok", or "error: " and what is wrong with it.
func serveControl(l *net.UnixListener, cards []*pci.Function, w *network) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			lines := bufio.NewScanner(c)
			for lines.Scan() {
				err := control(lines.Text(), cards, w)
				answer := "ok\n"
				if err != nil {
					answer = fmt.Sprintf("error: %v\n", err)
				}
				if _, err := io.WriteString(c, answer); err != nil {
					return
				}
			}
		}()
	}
}

// control does what one line says: a fault for every card, or for the one whose
// number stands before it, from 1 on; or new parameters for the wire; or which
// messages of connection managers it loses.
func control(line string, cards []*pci.Function, w *network) error {
	if params, ok := strings.CutPrefix(line, "wire "); ok {
		return w.change(params)
	}
	if message, ok := strings.CutPrefix(line, "lose "); ok {
		return w.lose(message)
	}
	if number, rest, ok := strings.Cut(line, " "); ok {
		n, err := strconv.Atoi(number)
		if err != nil || n < 1 || n > len(cards) {
			return fmt.Errorf("card %q: 1 to %d", number, len(cards))
		}
		line, cards = rest, cards[n-1:n]
	}
	x, err := pci.ParseFault(line)
	for _, f := range cards {
		if err == nil {
			err = f.Inject(x)
		}
	}
	return err
}

// listen makes the socket. One that nobody serves any more makes room for it.
func listen(path string) (*net.UnixListener, error) {
	addr := &net.UnixAddr{Name: path, Net: "unix"}
	l, err := net.ListenUnix("unix", addr)
	if err == nil {
		return l, nil
	}
	if info, serr := os.Lstat(path); serr != nil || info.Mode()&os.ModeSocket == 0 {
		return nil, err
	}
	if c, derr := net.DialUnix("unix", nil, addr); derr == nil {
		_ = c.Close()
		return nil, fmt.Errorf("%s: another process serves there", path)
	}
	if err := os.Remove(path); err != nil {
		return nil, err
	}
	return net.ListenUnix("unix", addr)
}

// commandLine is a command as a line of the log.
func commandLine(in, out []byte, took time.Duration) string {
	status, syndrome := mlx5.StatusOf(out)
	uid, mod := uint16(0), uint16(0)
	if len(in) >= 8 {
		uid, mod = uint16(in[2])<<8|uint16(in[3]), uint16(in[6])<<8|uint16(in[7])
	}
	line := fmt.Sprintf("%v op_mod=%#x uid=%d in=%d out=%d %v: %v", mlx5.OpOf(in), mod, uid, len(in), len(out), took, status)
	if c := fw.CheckOf(syndrome); c != nil {
		line += fmt.Sprintf(" (%#x: %s) %s", syndrome, c.Refuses, hex.EncodeToString(in[:min(len(in), 512)]))
	}
	return line
}
