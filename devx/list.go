// SPDX-License-Identifier: BSD-2-Clause

package devx

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

var (
	// ErrNoDevice: no mlx5 device has the name that was asked for.
	ErrNoDevice = errors.New("no RDMA device")
	// ErrNoUverbs: the device is there, but ib_uverbs made no character device for it.
	ErrNoUverbs = errors.New("no uverbs node")
)

// Info says what sysfs tells about one RDMA device. A field whose file is missing, unreadable or not one line of
// printable text is empty (NUMANode: -1).
//
// The files are those of Documentation/ABI/stable/sysfs-class-infiniband, except where a field names another source.
type Info struct {
	Name   string `json:"name"`   // "mlx5_0", or what udev renamed it to ("rocep129s0f0"); "emu:…" if emulated
	Uverbs string `json:"uverbs"` // "/dev/infiniband/uverbs0" (infiniband_verbs/uverbsN/ibdev); "" without ib_uverbs
	Driver string `json:"driver"` // "mlx5_core"; "mlx5_core.sf" for a subfunction (link device/driver)

	// The PCI function, from Documentation/ABI/testing/sysfs-bus-pci. A subfunction has that of its parent.
	PCI      string `json:"pci"`       // "0000:81:00.0"
	VendorID uint32 `json:"vendor_id"` // 0x15b3
	PartID   uint32 `json:"part_id"`   // PCI device id: 0x101d is a ConnectX-6 Dx
	NUMANode int    `json:"numa_node"` // -1: unknown, or the machine has no NUMA

	Firmware string `json:"firmware"`  // fw_ver: "22.36.1010"
	BoardID  string `json:"board_id"`  // PSID: "MT_0000000359" (mlx5_ib main.c, board_id_show)
	HCAType  string `json:"hca_type"`  // "MT" and the part id in decimal: "MT4125" (mlx5_ib main.c, hca_type_show)
	NodeGUID string `json:"node_guid"` // "b83f:d203:00d5:2a9e"

	Stack    Stack  `json:"stack"`
	Ports    []Port `json:"ports,omitempty"` // by number
	Emulated bool   `json:"emulated"`
}

// Port is one port of a device, from class/infiniband/<name>/ports/<number>.
type Port struct {
	Number    int    `json:"number"`     // from 1
	State     string `json:"state"`      // "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"
	PhysState string `json:"phys_state"` // "LinkUp", "Polling", "Disabled", …
	LinkLayer string `json:"link_layer"` // "Ethernet" or "InfiniBand"
	Rate      string `json:"rate"`       // "100 Gb/sec (4X EDR)"
	Netdev    string `json:"netdev"`     // gid_attrs/ndevs/0; "" on InfiniBand, where the kernel answers EINVAL
}

// Kinds of [Stack].
const (
	StackInbox   = "inbox"   // the kernel's own mlx5_core
	StackOFED    = "ofed"    // that of MLNX_OFED or DOCA-OFED
	StackUnknown = "unknown" // the evidence does not tell
)

// Stack says where the loaded mlx5_core comes from, and why we think so.
//
// MLNX_OFED and DOCA-OFED give their mlx5_core a MODULE_VERSION such as "5.8-6.0.4" or "24.10-1.1.4"
// (mlnx-ofa_kernel, mlx5_core.h, DRIVER_VERSION). The in-tree one said "5.0-0" up to Linux 5.10 and says nothing from
// 5.11 on (commit 17a7612b99e6 "net/mlx5_core: Clean driver version and name", also in 5.10.202 and 5.4.262), so 5.15
// and 6.1 have no version file. The taint file tells an out-of-tree module by the letter O
// (Documentation/ABI/testing/sysfs-module). A patched in-tree module built with its kernel cannot be told from the
// original: it is "inbox".
type Stack struct {
	Kind     string `json:"kind"`              // StackInbox, StackOFED or StackUnknown
	Version  string `json:"version,omitempty"` // /sys/module/mlx5_core/version
	Evidence string `json:"evidence"`          // what was seen, for people
}

// String returns "ofed 24.10-1.1.4", "inbox" or "unknown".
func (s Stack) String() string { return strings.TrimSpace(s.Kind + " " + s.Version) }

// Devices returns all RDMA devices of this machine that mlx5 drives, by name (mlx5_2 before mlx5_10). A machine
// without any gives an empty list and no error. Devices of other drivers are left out, software ones (rxe, siw) on top
// of an mlx5 network interface too.
//
// It is not free of side effects: state, phys_state and rate of a port make the driver query that port, which are
// firmware commands (mlx5_query_port_roce, mlx5_query_hca_port). Do not call it while counting commands.
func Devices() ([]Info, error) {
	sys := os.DirFS("/sys")
	found, _, err := devicesIn(sys)
	for i := range found {
		found[i].Ports = sysfs{sys}.ports(found[i].Name)
	}
	return found, err
}

// lookup returns the mlx5 device of that name; no port of another device is queried. Its errors are ErrNoDevice,
// ErrNoUverbs, or that of reading /sys.
func lookup(name string) (Info, error) { return lookupIn(os.DirFS("/sys"), name) }

func lookupIn(sys fs.FS, name string) (Info, error) {
	found, others, err := devicesIn(sys)
	if err != nil {
		return Info{}, err
	}
	named := func(in Info) bool { return in.Name == name }
	if i := slices.IndexFunc(found, named); i >= 0 {
		if in := found[i]; in.Uverbs != "" {
			in.Ports = sysfs{sys}.ports(name)
			return in, nil
		}
		remedy := "load the module with 'modprobe ib_uverbs'"
		if _, err := fs.Stat(sys, "class/infiniband_verbs"); err == nil {
			remedy = "ib_uverbs is loaded but made none for it; 'dmesg | grep uverbs' may say why"
		}
		return Info{}, fmt.Errorf("%s: %w: %s", name, ErrNoUverbs, remedy)
	}

	const remedy = "'lspci -d 15b3:' shows whether there is a ConnectX, 'modprobe mlx5_ib' loads its driver; " +
		"'emu:' is the emulated device"
	switch {
	case len(found) == 0 && len(others) == 0:
		return Info{}, fmt.Errorf("%w %q: this machine has none; %s", ErrNoDevice, name, remedy)
	case len(found) == 0:
		return Info{}, fmt.Errorf("%w %q that mlx5 drives: this machine has only %s; %s",
			ErrNoDevice, name, deviceNames(others), remedy)
	case slices.ContainsFunc(others, named):
		return Info{}, fmt.Errorf("%w %q that mlx5 drives; found: %s; others: %s",
			ErrNoDevice, name, deviceNames(found), deviceNames(others))
	}
	return Info{}, fmt.Errorf("%w %q; found: %s", ErrNoDevice, name, deviceNames(found))
}

// deviceNames lists devices for an error message, with the driver where it is not mlx5's.
func deviceNames(devs []Info) string {
	names := make([]string, len(devs))
	for i, d := range devs {
		names[i] = d.Name
		if d.Driver != "" && !drivenByMlx5(d.Driver) {
			names[i] += " (" + d.Driver + ")"
		}
	}
	return strings.Join(names, ", ")
}

// devicesIn reads the devices below sys, the root of a sysfs: those of mlx5 in full but for the ports (reading these
// costs firmware commands), of the others name and driver.
func devicesIn(sys fs.FS) (found, others []Info, err error) {
	entries, err := fs.ReadDir(sys, "class/infiniband")
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) { // ib_core is not loaded
			return nil, nil, nil
		}
		return nil, nil, fmt.Errorf("RDMA devices: %w", err)
	}
	s := sysfs{sys}
	uverbs := s.uverbs()
	stack := s.stack()
	for _, e := range entries {
		in, ok := s.device(e.Name())
		if !ok {
			others = append(others, in)
			continue
		}
		in.Uverbs = uverbs[in.Name]
		in.Stack = stack
		found = append(found, in)
	}
	byName := func(a, b Info) int { return compareNames(a.Name, b.Name) }
	slices.SortFunc(found, byName)
	slices.SortFunc(others, byName)
	return found, others, nil
}

// drivenByMlx5: mlx5_core drives PCI functions, mlx5_core.sf (an auxiliary driver) subfunctions.
func drivenByMlx5(driver string) bool {
	return driver == "mlx5_core" || strings.HasPrefix(driver, "mlx5_core.")
}

// sysfs reads a sysfs tree that may be incomplete, or not one at all.
type sysfs struct{ root fs.FS }

// sysfsLimit bounds what is read of one file: an attribute is at most a page (Documentation/filesystems/sysfs.rst).
const sysfsLimit = 4 << 10

var errNotText = errors.New("not one line of printable text")

// read returns the content of one attribute, which may be empty.
func (s sysfs) read(name string) (string, error) {
	f, err := s.root.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, sysfsLimit))
	if err != nil {
		return "", err
	}
	text := strings.TrimSpace(string(b))
	if !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return "", errNotText
	}
	return text, nil
}

// text is read for those to whom a missing attribute is an empty one.
func (s sysfs) text(name string) string {
	text, _ := s.read(name)
	return text
}

// id reads a PCI id: "0x15b3".
func (s sysfs) id(name string) uint32 {
	n, err := strconv.ParseUint(s.text(name), 0, 32)
	if err != nil {
		return 0
	}
	return uint32(n)
}

// label reads "4: ACTIVE" and returns "ACTIVE".
func (s sysfs) label(name string) string {
	_, label, _ := strings.Cut(s.text(name), ": ")
	return label
}

// link returns the path from the root that a link leads to, "" if there is none. The links of sysfs are relative; the
// directory of name must itself be reached without links, or ".." means something else than to the kernel.
func (s sysfs) link(name string) string {
	to, err := fs.ReadLink(s.root, name)
	if err != nil || path.IsAbs(to) {
		return ""
	}
	p := path.Join(path.Dir(name), to)
	if !fs.ValidPath(p) {
		return ""
	}
	return p
}

var (
	pciAddress = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)
	uverbsName = regexp.MustCompile(`^uverbs[0-9]+$`)
	// ofedVersion matches "4.9-3.1.5" and "24.10-1.1.4", and none of the in-tree driver's ("2.2-1", "3.0-1", "5.0-0").
	ofedVersion = regexp.MustCompile(`^[0-9]+\.[0-9]+-[0-9]+\.[0-9]+\.[0-9]+$`)
)

// dir returns the directory of an RDMA device: class/infiniband/mlx5_0 leads to
// devices/pci0000:80/…/0000:81:00.0/infiniband/mlx5_0, where the link "device" leads to ../../../0000:81:00.0.
func (s sysfs) dir(name string) string {
	dir := path.Join("class/infiniband", name)
	if target := s.link(dir); target != "" {
		return target
	}
	return dir
}

// device reads one entry of class/infiniband. Where mlx5 does not drive it, it is name and driver and false.
func (s sysfs) device(name string) (Info, bool) {
	dir := s.dir(name)
	in := Info{Name: name, NUMANode: -1}
	parent := s.link(dir + "/device")
	if parent != "" {
		if driver := s.link(parent + "/driver"); driver != "" {
			in.Driver = path.Base(driver)
		}
	}
	if !drivenByMlx5(in.Driver) {
		return in, false
	}
	// Before 5.11 (commit a9d2e9ae953f) rxe and siw had the PCI function of their network interface as parent, which
	// may be one of ours. hca_type is mlx5_ib's own attribute; they have none.
	if _, err := fs.Stat(s.root, dir+"/hca_type"); err != nil {
		in.Driver = ""
		return in, false
	}

	pci := parent
	for pci != "." && !pciAddress.MatchString(path.Base(pci)) {
		pci = path.Dir(pci)
	}
	if pci != "." {
		in.PCI = path.Base(pci)
		in.VendorID = s.id(pci + "/vendor")
		in.PartID = s.id(pci + "/device")
		if node, err := strconv.ParseUint(s.text(pci+"/numa_node"), 10, 31); err == nil {
			in.NUMANode = int(node)
		}
	}
	in.Firmware = s.text(dir + "/fw_ver")
	in.BoardID = s.text(dir + "/board_id")
	in.HCAType = s.text(dir + "/hca_type")
	in.NodeGUID = s.text(dir + "/node_guid")
	return in, true
}

// ports reads the ports of one device.
func (s sysfs) ports(name string) []Port {
	dir := s.dir(name) + "/ports"
	entries, _ := fs.ReadDir(s.root, dir)
	var ports []Port
	for _, e := range entries {
		n, err := strconv.ParseUint(e.Name(), 10, 31)
		if err != nil || n == 0 {
			continue
		}
		p := path.Join(dir, e.Name())
		ports = append(ports, Port{
			Number:    int(n),
			State:     s.label(p + "/state"),
			PhysState: s.label(p + "/phys_state"),
			LinkLayer: s.text(p + "/link_layer"),
			Rate:      s.text(p + "/rate"),
			Netdev:    s.text(p + "/gid_attrs/ndevs/0"),
		})
	}
	slices.SortFunc(ports, func(a, b Port) int { return cmp.Compare(a.Number, b.Number) })
	return ports
}

// uverbs returns the character device of each RDMA device (uverbs_main.c, ibdev_show and uverbs_devnode). The node of
// a device that is gone answers ENODEV and is left out.
func (s sysfs) uverbs() map[string]string {
	const class = "class/infiniband_verbs"
	entries, _ := fs.ReadDir(s.root, class)
	nodes := make(map[string]string)
	for _, e := range entries {
		if !uverbsName.MatchString(e.Name()) { // abi_version is here too
			continue
		}
		if dev := s.text(path.Join(class, e.Name(), "ibdev")); dev != "" {
			nodes[dev] = "/dev/infiniband/" + e.Name()
		}
	}
	return nodes
}

// stack judges the loaded mlx5_core; [Stack] has the rules' sources.
func (s sysfs) stack() Stack {
	const dir = "module/mlx5_core"
	judge := func(kind, version, format string, args ...any) Stack {
		return Stack{kind, version, "/sys/" + dir + ": " + fmt.Sprintf(format, args...)}
	}
	if _, err := fs.Stat(s.root, dir); err != nil {
		return judge(StackUnknown, "", "not there")
	}
	version, err := s.read(dir + "/version")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return judge(StackUnknown, "", "version cannot be read")
	}
	if ofedVersion.MatchString(version) {
		return judge(StackOFED, version, "version has the form of MLNX_OFED's")
	}
	seen := "no version"
	if version != "" {
		seen = "version " + version
		if version != "5.0-0" {
			return judge(StackUnknown, version, "%s is neither the in-tree driver's nor of MLNX_OFED's form", seen)
		}
	}
	// Only a loadable module has initstate, and MLNX_OFED builds no other.
	if _, err := fs.Stat(s.root, dir+"/initstate"); errors.Is(err, fs.ErrNotExist) {
		return judge(StackInbox, version, "%s, built into the kernel", seen)
	}
	taint, err := s.read(dir + "/taint")
	switch {
	case err != nil:
		return judge(StackUnknown, version, "%s, taint cannot be read", seen)
	case strings.Contains(taint, "O"):
		return judge(StackUnknown, version, "%s, but built out of tree (taint %s)", seen, taint)
	}
	return judge(StackInbox, version, "%s, built in tree (taint %q)", seen, taint)
}

// compareNames orders names as people do: the numbers in them count as numbers.
func compareNames(a, b string) int {
	digits := func(s string) int { return len(s) - len(strings.TrimLeft(s, "0123456789")) }
	for a != "" && b != "" {
		na, nb := digits(a), digits(b)
		if na == 0 || nb == 0 {
			if c := cmp.Compare(a[0], b[0]); c != 0 {
				return c
			}
			a, b = a[1:], b[1:]
			continue
		}
		x, y := strings.TrimLeft(a[:na], "0"), strings.TrimLeft(b[:nb], "0")
		if c := cmp.Or(cmp.Compare(len(x), len(y)), strings.Compare(x, y)); c != 0 {
			return c
		}
		a, b = a[na:], b[nb:]
	}
	return cmp.Compare(len(a), len(b))
}
