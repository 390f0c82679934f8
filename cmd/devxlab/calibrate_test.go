// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"devxlab.example/bench/calibrate"
	"devxlab.example/emu/fw"
)

// runCalibrate runs the command as main would after parsing.
func runCalibrate(c calibrateCmd, asJSON bool) (code int, out, errOut string, err error) {
	var o, e bytes.Buffer
	err = c.Run(&env{ctx: context.Background(), out: &o, err: &e, asJSON: asJSON})
	return exitCode(context.Background(), err), o.String(), e.String(), err
}

const hiddenDevice = "emu:profile=published,slots=7,threads=4,submit=2us,clock=virtual"

// The profile that was written is one that an emulated device runs.
func TestCalibrate(t *testing.T) {
	file := filepath.Join(t.TempDir(), "profile.json")
	code, out, errOut, err := runCalibrate(calibrateCmd{Device: hiddenDevice, Samples: 100, Write: file}, false)
	if code != 0 || errOut != "" {
		t.Fatalf("exit code %d, %v, %s", code, err, errOut)
	}
	for _, w := range []string{"place: emu, clock: virtual", "threads", "QUERY_HCA_CAP", "profile: " + file + "; run it as emu:profile=" + file} {
		if !strings.Contains(out, w) {
			t.Errorf("no %q in\n%s", w, out)
		}
	}
	p, err := fw.ProfileByName(file)
	if err != nil || p.Threads != 4 || p.Slots != 7 {
		t.Errorf("%v, %+v", err, p)
	}
	code, out, errOut, err = runCalibrate(calibrateCmd{Device: "emu:clock=virtual,profile=" + file, Samples: 100, Write: file, Force: true}, true)
	var r calibrate.Result
	if jsonErr := json.Unmarshal([]byte(out), &r); code != 0 || jsonErr != nil || errOut != "" {
		t.Fatalf("exit code %d, %v, %v, %s", code, err, jsonErr, errOut)
	}
	if r.Figure("slots").Value != 7 || r.Profile.Threads != 4 || len(r.Ops) == 0 {
		t.Errorf("%+v", r)
	}
}

// What is wrong is said before anything is measured.
func TestCalibrateRefuses(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "profile.json")
	if err := os.WriteFile(file, []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		c    calibrateCmd
		code int
		want string
	}{
		{calibrateCmd{Device: "emu:", Samples: 0}, exitUsage, "--samples 0: 100 to 1000000"},
		{calibrateCmd{Device: "emu:", Samples: 1000, QPs: 5}, exitUsage, "5 queue pairs are out of range"},
		{calibrateCmd{Device: "emu:log_max_qp=3", Samples: 1000}, exitUsage, "log_max_qp 3"},
		{calibrateCmd{Device: "emu:colour=blue", Samples: 1000}, exitUsage, `no option "colour"`},
		{calibrateCmd{Device: "mlx5_not_there", Samples: 1000}, exitNoDevice, "no RDMA device"},
		{calibrateCmd{Device: "emu:devx=off", Samples: 1000}, exitNoDevice, "no DevX"},
		{calibrateCmd{Device: hiddenDevice, Samples: 1000, Write: file}, exitUsage, file + " exists already: --force replaces it"},
		{calibrateCmd{Device: hiddenDevice, Samples: 1000, Write: filepath.Join(dir, "no", "p")}, exitFailed, "the profile cannot be written"},
		{calibrateCmd{Device: hiddenDevice, Samples: 1000, Write: dir, Force: true}, exitFailed, "is a directory"},
	} {
		code, out, _, err := runCalibrate(x.c, false)
		if code != x.code || err == nil || !strings.Contains(err.Error(), x.want) || out != "" {
			t.Errorf("%+v: exit code %d, %v\n%s", x.c, code, err, out)
		}
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "mine" {
		t.Errorf("%v: the file is %q", err, b)
	}
}

// A result that cannot be shown is an error, and the profile is there.
func TestCalibrateShown(t *testing.T) {
	file := filepath.Join(t.TempDir(), "profile.json")
	full := errors.New("full")
	err := calibrateCmd{Device: hiddenDevice, Samples: 100, Write: file}.Run(&env{ctx: context.Background(), out: failing{full}, err: failing{full}})
	if !errors.Is(err, full) {
		t.Error(err)
	}
	if _, err := fw.ProfileByName(file); err != nil {
		t.Error(err)
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }
