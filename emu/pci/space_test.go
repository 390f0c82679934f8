// SPDX-License-Identifier: BSD-2-Clause

package pci

import (
	"bytes"
	"encoding/binary"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"devxlab.example/internal/require"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// dump is configuration space as lspci -xxxx writes it, and -F reads it.
func dump(f *Function) string {
	var b strings.Builder
	b.WriteString("01:00.0 0200: 15b3:101d\n")
	space := make([]byte, 4096)
	f.ReadConfig(0, space)
	for at := 0; at < len(space); at += 16 {
		fmt.Fprintf(&b, "%02x: % x\n", at, space[at:at+16])
	}
	return b.String()
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs (go test ./emu/pci -update writes it):\n%s", file, got)
	}
}

// lspciVersion is Debian 12's.
const lspciVersion = "lspci version 3.9.0\n"

// Configuration space of a function as it is after a reset, byte for byte and as
// lspci reads it.
func TestConfigSpace(t *testing.T) {
	f, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	text := dump(f)
	golden(t, "config.txt", text)
	lspci, err := exec.LookPath("lspci")
	if err != nil {
		err = fmt.Errorf("%w (apt-get install pciutils)", err)
	}
	require.Have(t, "lspci", err)
	if version, _ := exec.Command(lspci, "--version").Output(); string(version) != lspciVersion {
		require.Have(t, "lspci", fmt.Errorf("the golden text is of %s, not %s", lspciVersion, version))
	}
	file := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(lspci, "-nvvv", "-F", file).Output()
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "lspci.txt", string(out))
}

// The extended capabilities are a chain, and none reaches into the next.
func TestExtended(t *testing.T) {
	f, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	space := make([]byte, 4096)
	f.ReadConfig(0, space)
	at := capAER
	for i, c := range extended {
		head := le.Uint32(space[at:])
		if at != c.at || int(head&0xffff) != c.id {
			t.Fatalf("capability %d is %#x at %#x", i, head, at)
		}
		at = int(head >> 20)
		if end := c.at + c.size; at != 0 && end > at {
			t.Errorf("capability %#x ends at %#x, behind the next at %#x", c.id, end, at)
		}
	}
	if at != 0 {
		t.Errorf("a further one at %#x", at)
	}
}

// A write changes what can be written and nothing else.
func TestConfigWrite(t *testing.T) {
	f, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	read32 := func(off int) uint32 {
		var b [4]byte
		f.ReadConfig(off, b[:])
		return le.Uint32(b[:])
	}
	write32 := func(off int, v uint32) { f.WriteConfig(off, binary.LittleEndian.AppendUint32(nil, v)) }
	before := make([]byte, 4096)
	f.ReadConfig(0, before)
	for at := 0; at < 4096; at++ {
		if at == devCtl+1 || at >= capVendor && at < capVendor+gatewayBytes || at >= capVPD && at < capPCIe {
			continue
		}
		f.WriteConfig(at, []byte{^before[at]})
		var b [1]byte
		f.ReadConfig(at, b[:])
		if changed := b[0] ^ before[at]; changed&^f.space.mask[at] != 0 {
			t.Errorf("byte %#x: bits %#x changed", at, changed)
		}
	}
	f.WriteConfig(-2, bytes.Repeat([]byte{0xff}, 8))
	f.WriteConfig(4094, bytes.Repeat([]byte{0xff}, 8))
	if got := read32(4094); got>>16 != 0xffff {
		t.Errorf("beyond the end: %#x", got)
	}
	write32(0x10, 1<<32-1)
	if got := read32(0x10); got != uint32(1<<32-barSize)|0xc {
		t.Errorf("BAR 0 sizes as %#x", got)
	}
	f.Reset()
	after := make([]byte, 4096)
	f.ReadConfig(0, after)
	if !bytes.Equal(after, before) {
		t.Error("a reset leaves something behind")
	}
}

// Vital product data reads through its window, is well-formed and sums up.
func TestVPD(t *testing.T) {
	f, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	var vpd []byte
	for at := uint16(0); at < 256; at += 4 {
		f.WriteConfig(capVPD+2, binary.LittleEndian.AppendUint16(nil, at))
		var b [8]byte
		f.ReadConfig(capVPD, b[:])
		if le.Uint16(b[2:]) != at|vpdDone {
			t.Fatalf("address %#x", le.Uint16(b[2:]))
		}
		vpd = append(vpd, b[4:]...)
	}
	n := 3 + int(vpd[1])
	if vpd[0] != 0x82 || vpd[n] != 0x90 {
		t.Fatalf("%x", vpd)
	}
	end := n + 3 + int(vpd[n+1])
	var sum byte
	for _, x := range vpd[:end] {
		sum += x
	}
	if sum != 0 || vpd[end] != 0x78 || !bytes.Contains(vpd, []byte("PN\x10MCX623106AN-CDAT")) {
		t.Errorf("sum %#x, end %#x: %q", sum, vpd[end], vpd)
	}
}

// The vendor's gateway as the driver's pci_vsc.c uses it: lock, choose a space,
// take a semaphore and give it back.
func TestGateway(t *testing.T) {
	f, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	read := func(at int) uint32 {
		var b [4]byte
		f.ReadConfig(capVendor+at, b[:])
		return le.Uint32(b[:])
	}
	write := func(at int, v uint32) { f.WriteConfig(capVendor+at, binary.LittleEndian.AppendUint32(nil, v)) }
	if read(gatewayOwner) != 0 {
		t.Fatal("locked")
	}
	a, b := read(gatewayCounter), read(gatewayCounter)
	if a == b || a == 0 {
		t.Errorf("counter %d, %d", a, b)
	}
	write(gatewayOwner, a)
	write(gatewayOwner, b) // too late
	if read(gatewayOwner) != a {
		t.Errorf("owner %d, not %d", read(gatewayOwner), a)
	}
	write(gatewayControl, 7) // the space of a dump: there is none
	if read(gatewayControl)>>29 != 0 {
		t.Error("the device has a space that it has not")
	}
	write(gatewayControl, spaceSemaphore)
	if read(gatewayControl)>>29 == 0 {
		t.Error("no semaphores")
	}
	set := func(v uint32) {
		write(gatewayData, v)
		write(gatewayAddr, 0x20|gatewayFlag)
		if read(gatewayAddr)&gatewayFlag != 0 {
			t.Fatal("a write does not end")
		}
	}
	get := func() uint32 {
		write(gatewayAddr, 0x20)
		if read(gatewayAddr)&gatewayFlag == 0 {
			t.Fatal("a read does not end")
		}
		return read(gatewayData)
	}
	for _, step := range []struct{ set, want uint32 }{{a, a}, {b, a}, {0, 0}, {b, b}} {
		set(step.set)
		if got := get(); got != step.want {
			t.Errorf("semaphore %d after writing %d, want %d", got, step.set, step.want)
		}
	}
	write(gatewayAddr, 1<<29|gatewayFlag) // far outside
	write(gatewayOwner, 0)
	if read(gatewayOwner) != 0 {
		t.Error("still locked")
	}
}
