// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"devxlab.example/internal/leaktest"
	"devxlab.example/lab/guest"
)

// fakeQEMUVar makes the test binary a QEMU, whose guest does what it says.
const fakeQEMUVar = "DEVXLAB_TEST_FAKE_QEMU"

func TestMain(m *testing.M) {
	if what := os.Getenv(fakeQEMUVar); what != "" {
		if err := fakeQEMU(what, os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, "fake QEMU:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	leaktest.Main(m)
}

// fakeQEMU stands where QEMU and its guest do, at the wire: the command line and
// the two sockets.
func fakeQEMU(what string, args []string) error {
	if slices.Contains(args, "--version") {
		fmt.Println("QEMU emulator version 11.1.3 (fake)")
		return nil
	}
	if what == "die" {
		return errors.New("could not start")
	}
	var conns []net.Conn
	for _, a := range args {
		if _, path, ok := strings.Cut(a, ",path="); ok {
			c, err := net.Dial("unix", path)
			if err != nil {
				return err
			}
			conns = append(conns, c)
		}
	}
	initrd := args[slices.Index(args, "-initrd")+1]
	job, err := jobOf(initrd)
	if err != nil {
		return err
	}
	fmt.Printf("[    0.0] Linux version fake\n[    0.1] command line %s\n", args[slices.Index(args, "-append")+1])
	c := conns[len(conns)-1] // the virtio-serial port
	w := guest.NewWriter(c)
	if what == "serial" {
		w = guest.NewWriter(conns[0])
		c = conns[0]
	}
	switch what {
	case "early":
		return nil
	case "hang":
		time.Sleep(time.Hour)
	case "garbage":
		_, err := c.Write(bytes.Repeat([]byte("garbage "), 100))
		return err
	}
	hello, err := json.Marshal(guest.Greeting{Release: "6.1.0-fake", Uptime: 1.5, Ready: 2.5})
	if err != nil {
		return err
	}
	if err := w.Frame(guest.Hello, hello); err != nil {
		return err
	}
	if what == "noexit" {
		return nil
	}
	if what == "fault" {
		if err := w.Frame(guest.Fault, []byte("module mlx5_core.ko: no such device")); err != nil {
			return err
		}
	}
	if what == "trouble" {
		fmt.Println("[    3.0] ------------[ cut here ]------------\n[    3.0] WARNING: CPU: 0 PID: 9 at x.c:1")
	}
	for {
		kind, b, err := guest.ReadFrame(c)
		if err != nil {
			return err
		}
		if kind == guest.Stdin && len(b) == 0 {
			break
		}
		if err := w.Frame(guest.Stdout, bytes.ToUpper(b)); err != nil {
			return err
		}
	}
	if err := w.Frame(guest.Stderr, []byte(strings.Join(job.Args, " "))); err != nil {
		return err
	}
	for i, g := range job.Get {
		h := guest.FileHeader{Index: i, Perm: 0o640}
		switch {
		case what == "escape":
			h.Path = "../../escaped"
		case strings.HasSuffix(g.Path, "dir"):
			h.Path = "a/b"
		}
		b, err := json.Marshal(h)
		if err == nil {
			err = errors.Join(w.Frame(guest.File, b), w.Frame(guest.Data, []byte("contents of ")), w.Frame(guest.Data, []byte(g.Path)))
		}
		if err != nil {
			return err
		}
	}
	if err := w.Frame(guest.Exit, []byte{3}); err != nil {
		return err
	}
	for {
		kind, _, err := guest.ReadFrame(c)
		if kind == guest.Bye || errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
