// SPDX-License-Identifier: BSD-2-Clause

package devx

import (
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// tree is a made-up sysfs: path to content; "-> x" is a link to x.
type tree map[string]string

func (tr tree) build(t *testing.T) fs.FS {
	t.Helper()
	root := t.TempDir()
	for name, content := range tr {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if target, ok := strings.CutPrefix(content, "-> "); ok {
			err = os.Symlink(target, file)
		} else {
			err = os.WriteFile(file, []byte(content), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return os.DirFS(root)
}

// add puts a directory of files into the tree.
func (tr tree) add(dir string, files tree) {
	for name, content := range files {
		tr[dir+"/"+name] = content
	}
}

// rdma adds an RDMA device below the directory of its parent, with the links that the kernel makes.
func (tr tree) rdma(name, parent string, files tree) {
	dir := parent + "/infiniband/" + name
	tr["class/infiniband/"+name] = "-> ../../" + dir
	tr[dir+"/device"] = "-> ../../../" + filepath.Base(parent)
	tr.add(dir, files)
}

// uverbs adds the uverbs device of an RDMA device.
func (tr tree) uverbs(node, dev string) {
	tr["class/infiniband_verbs/"+node+"/ibdev"] = dev + "\n"
	tr["class/infiniband_verbs/abi_version"] = "6\n"
}

const (
	root80 = "devices/pci0000:80/0000:80:01.1/"
	cx6dx0 = root80 + "0000:81:00.0"
	cx6dx1 = root80 + "0000:81:00.1"
	cx6ib  = "devices/pci0000:00/0000:00:03.0/0000:05:00.0"

	mlx5Driver = "-> ../../../../bus/pci/drivers/mlx5_core"
)

// machine: two functions of a ConnectX-6 Dx, a subfunction of the first, an InfiniBand ConnectX-6, and devices that are
// not ours: rxe0 as kernels from 5.11 place it, rxe1 as those before (on an mlx5 interface), and an Intel one.
func machine() tree {
	tr := tree{}
	for addr, guid := range map[string]string{cx6dx0: "9e", cx6dx1: "9f"} {
		tr.add(addr, tree{"vendor": "0x15b3\n", "device": "0x101d\n", "numa_node": "1\n", "driver": mlx5Driver})
		name, netdev := "mlx5_0", "ens1f0np0"
		if addr == cx6dx1 {
			name, netdev = "mlx5_1", "ens1f1np1"
		}
		tr.rdma(name, addr, tree{
			"fw_ver": "22.36.1010\n", "board_id": "MT_0000000359\n", "hca_type": "MT4125\n",
			"node_guid":     "b83f:d203:00d5:2a" + guid + "\n",
			"ports/1/state": "4: ACTIVE\n", "ports/1/phys_state": "5: LinkUp\n", "ports/1/link_layer": "Ethernet\n",
			"ports/1/rate": "100 Gb/sec (4X EDR)\n", "ports/1/gid_attrs/ndevs/0": netdev + "\n",
		})
	}
	tr.uverbs("uverbs0", "mlx5_0")
	tr.uverbs("uverbs1", "mlx5_1")

	tr.add(cx6ib, tree{"vendor": "0x15b3\n", "device": "0x101b\n", "numa_node": "-1\n", "driver": mlx5Driver})
	tr.rdma("mlx5_10", cx6ib, tree{
		"fw_ver": "20.35.2000\n", "board_id": "MT_0000000223\n", "hca_type": "MT4123\n",
		"node_guid":     "1070:fd03:0012:3456\n",
		"ports/1/state": "1: DOWN\n", "ports/1/phys_state": "2: Polling\n", "ports/1/link_layer": "InfiniBand\n",
		"ports/1/rate": "10 Gb/sec (4X SDR)\n",
	})
	tr.uverbs("uverbs3", "mlx5_10")

	sf := cx6dx0 + "/mlx5_core.sf.4"
	tr[sf+"/driver"] = "-> ../../../../../bus/auxiliary/drivers/mlx5_core.sf"
	tr.rdma("mlx5_2", sf, tree{"fw_ver": "22.36.1010\n", "hca_type": "MT4125\n"})
	tr.uverbs("uverbs2", "mlx5_2")

	tr["devices/virtual/infiniband/rxe0/fw_ver"] = "\n"
	tr["class/infiniband/rxe0"] = "-> ../../devices/virtual/infiniband/rxe0"
	tr.uverbs("uverbs4", "rxe0")
	tr.rdma("rxe1", cx6dx0, tree{"parent": "ens1f0np0\n"})
	tr.uverbs("uverbs5", "rxe1")
	e810 := "devices/pci0000:00/0000:00:04.0/0000:06:00.0"
	tr.add(e810, tree{"vendor": "0x8086\n", "device": "0x159b\n", "driver": "-> ../../../../bus/pci/drivers/ice"})
	tr.rdma("irdma0", e810, tree{"fw_ver": "1.63\n"})

	tr.add("module/mlx5_core", tree{"initstate": "live\n", "taint": "\n", "parameters/debug_mask": "0\n"})
	return tr
}

func TestDevices(t *testing.T) {
	sys := machine().build(t)
	found, others, err := devicesIn(sys)
	if err != nil {
		t.Fatal(err)
	}
	for i := range found {
		if found[i].Ports != nil {
			t.Errorf("%s: ports were read before they were asked for", found[i].Name)
		}
		found[i].Ports = sysfs{sys}.ports(found[i].Name)
	}
	inbox := Stack{Kind: StackInbox, Evidence: `/sys/module/mlx5_core: no version, built in tree (taint "")`}
	dx := Info{
		Name: "mlx5_0", Uverbs: "/dev/infiniband/uverbs0", Driver: "mlx5_core",
		PCI: "0000:81:00.0", VendorID: 0x15b3, PartID: 4125, NUMANode: 1,
		Firmware: "22.36.1010", BoardID: "MT_0000000359", HCAType: "MT4125",
		NodeGUID: "b83f:d203:00d5:2a9e", Stack: inbox,
		Ports: []Port{{1, "ACTIVE", "LinkUp", "Ethernet", "100 Gb/sec (4X EDR)", "ens1f0np0"}},
	}
	dx1 := dx
	dx1.Name, dx1.Uverbs, dx1.PCI, dx1.NodeGUID = "mlx5_1", "/dev/infiniband/uverbs1", "0000:81:00.1", "b83f:d203:00d5:2a9f"
	dx1.Ports = []Port{{1, "ACTIVE", "LinkUp", "Ethernet", "100 Gb/sec (4X EDR)", "ens1f1np1"}}
	want := []Info{dx, dx1,
		{
			Name: "mlx5_2", Uverbs: "/dev/infiniband/uverbs2", Driver: "mlx5_core.sf",
			PCI: "0000:81:00.0", VendorID: 0x15b3, PartID: 4125, NUMANode: 1,
			Firmware: "22.36.1010", HCAType: "MT4125", Stack: inbox,
		},
		{
			Name: "mlx5_10", Uverbs: "/dev/infiniband/uverbs3", Driver: "mlx5_core",
			PCI: "0000:05:00.0", VendorID: 0x15b3, PartID: 4123, NUMANode: -1,
			Firmware: "20.35.2000", BoardID: "MT_0000000223", HCAType: "MT4123", NodeGUID: "1070:fd03:0012:3456",
			Stack: inbox,
			Ports: []Port{{1, "DOWN", "Polling", "InfiniBand", "10 Gb/sec (4X SDR)", ""}},
		},
	}
	if len(found) != len(want) {
		t.Fatalf("found %s, want 4 devices", deviceNames(found))
	}
	for i := range want {
		if !reflect.DeepEqual(found[i], want[i]) {
			t.Errorf("device %d:\n got %+v\nwant %+v", i, found[i], want[i])
		}
	}
	if got := deviceNames(others); got != "irdma0 (ice), rxe0, rxe1" {
		t.Errorf("others: %s", got)
	}

	out, err := json.Marshal(found[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{
		`"part_id":4125`, `"pci":"0000:81:00.0"`, `"numa_node":1`, `"phys_state":"LinkUp"`, `"kind":"inbox"`, `"emulated":false`,
	} {
		if !strings.Contains(string(out), s) {
			t.Errorf("JSON lacks %s: %s", s, out)
		}
	}
}

// The machine that runs the test may have any devices or none.
func TestDevicesHere(t *testing.T) {
	if _, err := Devices(); err != nil {
		t.Error(err)
	}
	if _, err := lookup("no such device"); !errors.Is(err, ErrNoDevice) {
		t.Errorf("got %v, want ErrNoDevice", err)
	}
}

func TestLookup(t *testing.T) {
	// without returns the machine without the files that match.
	without := func(match func(name string) bool) tree {
		tr := machine()
		maps.DeleteFunc(tr, func(name, _ string) bool { return match(name) })
		return tr
	}
	noModule := without(func(name string) bool { return strings.HasPrefix(name, "class/infiniband_verbs/") })
	noNode := without(func(name string) bool { return strings.Contains(name, "/uverbs1/") })
	noMlx5 := without(func(name string) bool { return strings.HasPrefix(name, "class/infiniband/mlx5_") })
	for _, tt := range []struct {
		what, name string
		tree       tree
		err        error
		says       []string
	}{
		{"there", "mlx5_1", machine(), nil, nil},
		{"other name", "mlx5_7", machine(), ErrNoDevice,
			[]string{`no RDMA device "mlx5_7"; found: mlx5_0, mlx5_1, mlx5_2, mlx5_10`}},
		{"other driver", "irdma0", machine(), ErrNoDevice,
			[]string{`"irdma0" that mlx5 drives; found: mlx5_0`, "others: irdma0 (ice), rxe0, rxe1"}},
		{"only others", "mlx5_0", noMlx5, ErrNoDevice,
			[]string{"this machine has only irdma0 (ice), rxe0, rxe1", "lspci -d 15b3:"}},
		{"nothing", "mlx5_0", tree{"class/net/lo/mtu": "65536\n"}, ErrNoDevice,
			[]string{"has none", "lspci -d 15b3:", "modprobe mlx5_ib", "emu:"}},
		{"no ib_uverbs", "mlx5_1", noModule, ErrNoUverbs, []string{"mlx5_1: no uverbs node", "modprobe ib_uverbs"}},
		{"no node", "mlx5_1", noNode, ErrNoUverbs, []string{"mlx5_1: no uverbs node", "ib_uverbs is loaded", "dmesg"}},
	} {
		t.Run(tt.what, func(t *testing.T) {
			in, err := lookupIn(tt.tree.build(t), tt.name)
			if tt.err == nil {
				if err != nil || in.Name != tt.name || in.Uverbs == "" || len(in.Ports) != 1 {
					t.Fatalf("got %+v, %v", in, err)
				}
				return
			}
			if !errors.Is(err, tt.err) {
				t.Fatalf("got %v, want %v", err, tt.err)
			}
			for _, s := range tt.says {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("%q does not say %q", err, s)
				}
			}
		})
	}
}

// A sysfs that cannot be listed is not a machine without devices.
func TestUnreadable(t *testing.T) {
	for what, sys := range map[string]fs.FS{
		"file for directory": tree{"class/infiniband": "?"}.build(t),
		"permission":         denied{},
	} {
		_, _, err := devicesIn(sys)
		if _, lookupErr := lookupIn(sys, "mlx5_0"); err == nil || lookupErr == nil || errors.Is(lookupErr, ErrNoDevice) {
			t.Errorf("%s: got %v and %v", what, err, lookupErr)
		}
	}
}

type denied struct{}

func (denied) Open(name string) (fs.File, error) {
	return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrPermission}
}

func TestStack(t *testing.T) {
	const dir = "module/mlx5_core/"
	live := func(version, taint string) tree {
		tr := tree{dir + "initstate": "live\n", dir + "taint": taint + "\n"}
		if version != "" {
			tr[dir+"version"] = version + "\n"
		}
		return tr
	}
	noTaint := live("", "")
	delete(noTaint, dir+"taint")
	for _, tt := range []struct {
		what string
		tree tree
		want string
	}{
		{"MLNX_OFED 5.8", live("5.8-6.0.4", "OE"), "ofed 5.8-6.0.4"},
		{"DOCA 24.10", live("24.10-1.1.4", "OE"), "ofed 24.10-1.1.4"},
		{"OFED in a vendor's kernel", live("4.9-3.1.5", ""), "ofed 4.9-3.1.5"},
		{"5.10", live("5.0-0", ""), "inbox 5.0-0"},
		{"5.15, unsigned", live("", "E"), "inbox"},
		{"6.1", live("", ""), "inbox"},
		{"built in", tree{dir + "parameters/prof_sel": "2\n"}, "inbox"},
		{"built out of tree", live("", "OE"), "unknown"},
		{"old sources built out of tree", live("5.0-0", "O"), "unknown 5.0-0"},
		{"some other version", live("1.2.3-vendor", ""), "unknown 1.2.3-vendor"},
		{"binary version", live("\x00\xff", ""), "unknown"},
		{"no taint file", noTaint, "unknown"},
		{"no module", tree{"module/ib_core/taint": "\n"}, "unknown"},
	} {
		t.Run(tt.what, func(t *testing.T) {
			got := sysfs{tt.tree.build(t)}.stack()
			if got.String() != tt.want || got.Evidence == "" {
				t.Errorf("got %s (%s), want %s", got, got.Evidence, tt.want)
			}
		})
	}
}

// Every file in turn is truncated, binary, endless, an escape sequence, gone, or a link to nowhere: no crash, and
// nothing but printable text in the answer.
func TestGarbage(t *testing.T) {
	garbage := []string{
		"", "\n", "4", "4:", ": ", "0x", "-7\n", "99999999999999999999\n", "\x00\x01\xff\xfe", "\x1b[2J", "a\nb\n",
		strings.Repeat("9", 1<<20), "-> nowhere", "-> /etc/passwd", "-> ../../../../../../../../..", "-> .", "gone",
	}
	for name := range machine() {
		for _, g := range garbage {
			tr := machine()
			tr[name] = g
			if g == "gone" {
				delete(tr, name)
			}
			sys := mapFS(tr)
			found, _, err := devicesIn(sys)
			if err != nil {
				t.Fatalf("%s = %.20q: %v", name, g, err)
			}
			check(t, sys, found)
		}
	}
}

// check looks for what no answer may contain.
func check(t *testing.T, sys fs.FS, found []Info) {
	t.Helper()
	for _, in := range found {
		texts := []string{in.Uverbs, in.PCI, in.Firmware, in.BoardID, in.HCAType, in.NodeGUID, in.Stack.Version}
		for _, p := range (sysfs{sys}).ports(in.Name) {
			texts = append(texts, p.State, p.PhysState, p.LinkLayer, p.Rate, p.Netdev)
		}
		for _, s := range texts {
			if len(s) > sysfsLimit || strings.ContainsAny(s, "\x00\x1b\n") {
				t.Fatalf("%s: %.40q", in.Name, s)
			}
		}
		if in.NUMANode < -1 {
			t.Fatalf("%s: NUMA node %d", in.Name, in.NUMANode)
		}
	}
}

func mapFS(tr tree) fs.FS {
	m := fstest.MapFS{}
	for name, content := range tr {
		f := &fstest.MapFile{Data: []byte(content), Mode: 0o444}
		if target, ok := strings.CutPrefix(content, "-> "); ok {
			f = &fstest.MapFile{Data: []byte(target), Mode: fs.ModeSymlink | 0o777}
		}
		m[name] = f
	}
	return m
}

func FuzzDevices(f *testing.F) {
	f.Add("4: ACTIVE\n", "../../../0000:81:00.0")
	f.Add("\x00", "..")
	f.Fuzz(func(t *testing.T, content, link string) {
		tr := machine()
		for name, c := range tr {
			if !strings.HasPrefix(c, "-> ") {
				tr[name] = content
			}
		}
		tr["class/infiniband/mlx5_1"] = "-> " + link
		tr[cx6ib+"/infiniband/mlx5_10/device"] = "-> " + link
		sys := mapFS(tr)
		found, _, err := devicesIn(sys)
		if err != nil {
			t.Fatal(err)
		}
		check(t, sys, found)
	})
}

func TestCompareNames(t *testing.T) {
	want := []string{
		"ibp5s0", "mlx5_0", "mlx5_2", "mlx5_10", "mlx5_bond_0", "mlx6_1", "rocep9s0", "rocep129s0f0", "rocep129s0f1", "rocep129s0f1v2",
	}
	got := slices.Clone(want)
	slices.Reverse(got)
	slices.SortFunc(got, compareNames)
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}
