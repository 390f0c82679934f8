// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestParseVersion(t *testing.T) {
	for out, want := range map[string]struct {
		version string
		ok      bool
	}{
		"QEMU emulator version 11.1.3 (Debian 1:11.1.3+ds-1~bpo13+1)\nCopyright": {"11.1.3", true},
		"QEMU emulator version 10.1":             {"10.1", true},
		"QEMU emulator version 10.0.13 (Debian)": {"10.0.13", false},
		"QEMU emulator version 7.2.18":           {"7.2.18", false},
	} {
		if v, ok, err := parseVersion(out); err != nil || v != want.version || ok != want.ok {
			t.Errorf("%q: %s, %v, %v", out, v, ok, err)
		}
	}
	for _, out := range []string{"", "GNU bash", "QEMU emulator version 99999999999999999999.1"} {
		if _, _, err := parseVersion(out); !errors.Is(err, ErrQEMU) {
			t.Errorf("%q: %v", out, err)
		}
	}
}

func TestArgs(t *testing.T) {
	m := machine{qemu: &QEMU{Args: []string{"loader", "qemu"}}, smp: 1, memMB: 512, kernel: "/k/vmlinux", initrd: "/t/initrd", channel: "/t/c", serial: "/t/s", devices: []string{"/t/hca-0.sock"}}
	want := strings.Split(`loader qemu -nodefaults -no-user-config -display none -no-reboot -accel tcg,thread=multi -cpu max -smp 1 `+
		`-machine q35,memory-backend=m -object memory-backend-memfd,id=m,size=512M,share=on -serial stdio -kernel /k/vmlinux `+
		`-chardev socket,id=serial,path=/t/s -serial chardev:serial `+
		`-chardev socket,id=channel,path=/t/c -device virtio-serial-pci -device virtserialport,chardev=channel,name=devxlab `+
		`-device pcie-root-port,id=port0,chassis=1,x-speed=16,x-width=16 -device {"driver":"vfio-user-pci","bus":"port0","socket":{"type":"unix","path":"/t/hca-0.sock"}} -initrd /t/initrd -append`, " ")
	if got := m.args(); !slices.Equal(got[:len(got)-1], want) || got[len(got)-1] != "console=ttyS0 panic=-1 no_timer_check -- lab init" {
		t.Errorf("%q\nwant %q", got, want)
	}
	m.smp, m.append = 2, "quiet"
	if got := m.args(); got[len(got)-1] != "console=ttyS0 panic=-1 no_timer_check tsc=reliable quiet -- lab init" {
		t.Errorf("%q", got[len(got)-1])
	}
	m.kvm = true
	if got := strings.Join(m.args(), " "); !strings.Contains(got, "-accel kvm -cpu host -smp 2") || strings.Contains(got, "tsc=") {
		t.Error(got)
	}
	if got := quote([]string{"a", "", "b c", `it's`, `{"x":"y"}`}); got != `a '' 'b c' 'it'\''s' '{"x":"y"}'` {
		t.Error(got)
	}
}

// script makes a program.
func script(t *testing.T, text string) string {
	t.Helper()
	p := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(p, []byte("#!/bin/sh\n"+text), 0o755); err != nil {
		t.Fatal(err)
	}
	return p
}

// A KVM that is there and does not work must not be taken for one that does.
func TestProbeKVM(t *testing.T) {
	for text, want := range map[string]string{
		"echo Linux version 6.1; exec sleep 1000":     "",
		"echo SeaBIOS; exit 0":                        "said nothing",
		"echo cannot set up guest memory >&2; exit 1": "cannot set up guest memory",
	} {
		q := &QEMU{Args: []string{script(t, text)}}
		if got := probeKVM(t.Context(), q, "vmlinux"); (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}
