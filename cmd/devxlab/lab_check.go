// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"devxlab.example/devx"
	"devxlab.example/internal/qpparams"
	"devxlab.example/lab"
	"devxlab.example/lab/guest"
	"devxlab.example/mlx5"
)

// labCheckCmd is what lab.TryKernel runs in its guest. It unloads drivers, so it
// refuses to run elsewhere.
type labCheckCmd struct{}

func (labCheckCmd) Run(e *env) error {
	if os.Getenv("DEVXLAB_PLACE") != "lab" {
		return usageError{errors.New("lab check unloads the mlx5 driver: it is for the lab's own virtual machine (devxlab lab matrix)")}
	}
	var c lab.DriverCheck
	steps := map[string]func() error{
		"uverbs":     checkUverbs,
		"devx":       func() error { return checkQP(&c) },
		"unload":     unloadDriver,
		"reload":     reloadDriver,
		"devx again": func() error { return checkQP(&c) },
	}
	failed := false
	for _, name := range lab.DriverSteps {
		began := time.Now()
		var err error
		switch do := steps[name]; {
		case do == nil: // the kernel's log, whatever happened
			err = checkLog(&c)
		case failed:
			continue
		default:
			err = do()
		}
		s := lab.DriverStep{Name: name, Took: time.Since(began).Seconds()}
		if err != nil {
			s.Error, failed = err.Error(), true
		}
		c.Steps = append(c.Steps, s)
	}
	if err := e.json(c); err != nil {
		return err
	}
	if failed {
		return statusError(exitFailed)
	}
	return nil
}

// theDevice is how the guest's one device is called.
const theDevice = "mlx5_0"

func checkUverbs() error {
	found, err := devx.Devices()
	if err != nil {
		return err
	}
	for _, d := range found {
		if d.Name == theDevice && d.Uverbs != "" {
			return nil
		}
	}
	return fmt.Errorf("%s has no uverbs file: %d devices", theDevice, len(found))
}

// checkQP takes a queue pair through its life with firmware commands, which
// DevX passes on: every state has to read back.
func checkQP(c *lab.DriverCheck) (err error) {
	d, err := open(theDevice)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	caps, err := d.Caps()
	if err != nil {
		return err
	}
	c.Limits = map[string]uint64{}
	for name, v := range nonZero("cmd_hca_cap", caps) {
		if strings.HasPrefix(name, "log_max_") {
			c.Limits[name] = v
		}
	}
	w, err := qpRTSCmd{Transport: "rc", MTU: 1024, GID: -1}.way(qpparams.Default())
	if err != nil {
		return err
	}
	if w.rtr.Path, err = d.OwnPath(-1); err != nil {
		return err
	}
	q, err := d.NewQP(devx.QPConfig{Transport: w.st})
	if err != nil {
		return err
	}
	w.rtr.RemoteQPN = mlx5.Set(q.Number())
	for _, s := range []struct {
		modify func() error
		want   mlx5.State
	}{
		{func() error { return nil }, mlx5.StateRST},
		{func() error { return devx.Modify(q, w.init) }, mlx5.StateInit},
		{func() error { return devx.Modify(q, w.rtr) }, mlx5.StateRTR},
		{func() error { return devx.Modify(q, w.rts) }, mlx5.StateRTS},
		{func() error { return devx.Modify(q, mlx5.ToERR{}) }, mlx5.StateErr},
		{func() error { return devx.Modify(q, mlx5.ToRST{}) }, mlx5.StateRST},
	} {
		if err := s.modify(); err != nil {
			return err
		}
		got, err := q.State()
		if err != nil {
			return err
		}
		if got != s.want {
			return fmt.Errorf("QP %#x is in %v, not in %v", q.Number(), got, s.want)
		}
	}
	return q.Close()
}

// unloadDriver takes the modules out, one after the other, and looks whether
// all of the device is gone with them.
func unloadDriver() error {
	for _, m := range []string{"mlx5_ib", "mlx5_core"} {
		if err := unix.DeleteModule(m, unix.O_NONBLOCK); err != nil {
			return fmt.Errorf("rmmod %s: %w", m, err)
		}
	}
	for _, p := range []string{"/sys/class/infiniband/*", "/sys/bus/pci/drivers/mlx5_core", "/dev/infiniband/uverbs*"} {
		if left, _ := filepath.Glob(p); len(left) > 0 {
			return fmt.Errorf("without its driver there still is %s", strings.Join(left, ", "))
		}
	}
	return nil
}

func reloadDriver() error {
	for _, m := range []string{"mlx5_core", "mlx5_ib"} {
		if out, err := exec.Command("modprobe", m).CombinedOutput(); err != nil {
			return fmt.Errorf("modprobe %s: %w: %s", m, err, out)
		}
	}
	return errors.Join(guest.DevicesUp(1), checkUverbs())
}

// logWarning is KERN_WARNING: what is worse has a lower number.
const logWarning = 4

// expected is what the driver of 5.10 says of every device with fewer than 2^18
// queue pairs, which the reference card is (handle_hca_cap).
var expected = regexp.MustCompile(`log_max_qp value in current profile is \d+, changing it to HCA capability limit`)

// checkLog reads the kernel's log: when the driver began, and whether it, or
// what is around it, complains.
func checkLog(c *lab.DriverCheck) error {
	f, err := os.OpenFile("/dev/kmsg", os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	var complaints []string
	b := make([]byte, 8192) // a record for each read
	for {
		n, err := unix.Read(int(f.Fd()), b)
		if errors.Is(err, unix.EPIPE) {
			continue // records that are no longer there
		}
		if errors.Is(err, unix.EAGAIN) {
			break // that is all
		}
		if err != nil {
			return fmt.Errorf("the kernel's log: %w", err)
		}
		m, ok := parseRecord(string(b[:n]))
		if !ok || !m.driver() {
			continue
		}
		if c.Probe == 0 && strings.HasPrefix(m.text, "mlx5_core") {
			c.Probe = m.at.Seconds()
		}
		if m.level <= logWarning && !expected.MatchString(m.text) {
			complaints = append(complaints, m.text)
		}
	}
	if len(complaints) > 0 {
		return errors.New(strings.Join(complaints, "; "))
	}
	return nil
}

// record is one of the kernel's log (Documentation/ABI/testing/dev-kmsg).
type record struct {
	level int
	at    time.Duration // since the kernel's start
	text  string
}

func parseRecord(s string) (r record, ok bool) {
	head, text, ok := strings.Cut(s, ";")
	fields := strings.Split(head, ",")
	if !ok || len(fields) < 3 {
		return r, false
	}
	prio, err1 := strconv.Atoi(fields[0])
	us, err2 := strconv.ParseInt(fields[2], 10, 64)
	r.level, r.at = prio&7, time.Duration(us)*time.Microsecond
	r.text, _, _ = strings.Cut(text, "\n") // what follows are key=value pairs
	return r, err1 == nil && err2 == nil
}

// driver says whether the driver or the RDMA subsystem says so.
func (r record) driver() bool {
	for _, w := range []string{"mlx5", "infiniband", "ib_", "rdma"} {
		if strings.Contains(r.text, w) {
			return true
		}
	}
	return false
}
