// SPDX-License-Identifier: BSD-2-Clause

// Package uverbs puts the emulated HCA behind a uverbs file inside the process:
// it plays ib_uverbs and mlx5_ib, and decodes the ioctls that package devx
// encodes for the kernel. Importing it registers the scheme "emu":
//
//	import _ "devxlab.example/emu/uverbs"
//	d, err := devx.Open("emu:")
//
// Behind the colon stand options, separated by commas:
//
//	profile=NAME|FILE  what commands cost: zero (default), published, or a JSON file
//	latency=DURATION   each command takes this long, in the place of the profile's figures
//	submit=DURATION    the serial cost of handing a command over, likewise
//	per_1000_qps=DURATION
//	                   what every thousand live queue pairs add to a command on one, likewise
//	cache=N,miss=DURATION
//	                   contexts of queue pairs that the device keeps at hand, 1 to 4194304, and what a
//	                   command on another one takes longer, likewise
//	threads=N          commands that firmware executes at once, 1 to 64
//	slots=N            command slots, 1 to 31
//	clock=real|virtual|virtual:NAME
//	                   what commands and packets take their time on; devices with the same NAME share one
//	addr=N             of the port, 1 to 254; default 1: MAC address 02:00:00:00:00:N, IP address 192.0.2.N
//	log_max_qp=N       log2 of the queue pairs alive at once, 1 to 22; default 17
//	kernel=X.Y         the kernel whose error reporting is followed; default 6.1
//	devx=on|off        a firmware with or without user contexts
//	seed=N             of the latencies that are drawn
//	name=TEXT          tells devices with the same options apart
//
// Files opened by the same name are contexts of one device, which is made at
// the first and gone with the last.
//
// Queue pairs move data, as the device does everywhere: work requests in
// registered memory, a store to the doorbell page, completions. What a queue pair
// sends to another one of the same device stays in it. A wire to other devices is
// whatever HCA().Connect is given:
//
//	a, _ := uverbs.Lookup("emu:name=a,addr=1")
//	b, _ := uverbs.Lookup("emu:name=b,addr=2")
//	link, err := wire.NewLink(wire.NewRealClock(), wire.Params{}, wire.Params{}, 1)
//	a.HCA().Connect(link.A)
//	link.A.Connect(a.HCA().Receive)
//	…
//
// The device reads and writes registered memory by itself, on goroutines of its
// own, as a card on its bus does; package devx has the accesses that keep the
// order (QP.Post, CQ.Entry).
//
// It answers DevX. The verbs commands (create, modify and query of a verbs
// queue pair) get EOPNOTSUPP: they go through the driver's own code, and a
// model of that would prove nothing about it.
package uverbs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"devxlab.example/devx"
	"devxlab.example/emu/fw"
	"devxlab.example/mlx5"
)

// Scheme is what the names of emulated devices begin with, before the colon.
const Scheme = "emu"

func init() { devx.Register(Scheme, driver{}) }

type driver struct{}

func (driver) Open(rest string) (devx.File, devx.Info, error) {
	d, err := acquire(rest)
	if err != nil {
		return nil, devx.Info{}, fmt.Errorf("devx: open %s:%s: %w", Scheme, rest, err)
	}
	return newFile(d), d.info, nil
}

// portMAC is the address of a device's port, locally administered.
func portMAC(addr uint8) [6]byte { return [6]byte{2, 0, 0, 0, 0, addr} }

// Device is an emulated device and the part of the kernel in front of it.
type Device struct {
	name    string
	info    devx.Info
	hca     *fw.HCA
	mem     memory
	shut    sync.Once
	addr    uint8
	clock   string     // that it shares with others of the same; "": none
	kernel  [2]int     // major and minor version
	outbox  bool       // the kernel passes firmware's answer on (Linux 5.18 and later)
	lost    unix.Errno // of a call whose answer was lost with the device
	vectors []uint32
	opens   int // under devicesMu

	logMaxUCTX   uint8  // the driver reads the capabilities once
	whitelistUID uint16 // the driver's own user context; 0: none

	mu    sync.Mutex
	files map[*File]struct{}
	gone  bool
}

var (
	devicesMu sync.Mutex
	devices   = map[string]*Device{}
)

// Lookup returns the emulated device behind a name of the form "emu:…", while
// a file of it is open.
func Lookup(name string) (*Device, bool) {
	devicesMu.Lock()
	defer devicesMu.Unlock()
	d, ok := devices[strings.TrimPrefix(name, Scheme+":")]
	return d, ok
}

func acquire(rest string) (*Device, error) {
	devicesMu.Lock()
	defer devicesMu.Unlock()
	d := devices[rest]
	if d == nil {
		var err error
		if d, err = newDevice(rest); err != nil {
			return nil, err
		}
		devices[rest] = d
	}
	d.opens++
	return d, nil
}

func (d *Device) release() {
	devicesMu.Lock()
	defer devicesMu.Unlock()
	if d.opens--; d.opens > 0 {
		return
	}
	if devices[d.name] == d {
		delete(devices, d.name)
	}
	d.stop()
}

// stop ends what the device does by itself, and takes the memory away.
func (d *Device) stop() {
	d.shut.Do(d.hca.Shut)
	d.mem.end()
}

// config is what the options say.
type config struct {
	fw      fw.Config
	profile string
	latency time.Duration
	submit  time.Duration
	perQPs  time.Duration
	cache   int
	miss    time.Duration
	threads int
	slots   int
	kernel  [2]int
	addr    int
	clock   string
}

func newDevice(rest string) (*Device, error) {
	c, err := parse(rest)
	if err != nil {
		return nil, err
	}
	d := &Device{
		name:   rest,
		kernel: c.kernel,
		addr:   uint8(c.addr),
		clock:  c.clock,
		files:  map[*File]struct{}{},
		info: devx.Info{
			Name: Scheme + ":" + rest, Driver: "none", VendorID: 0x15b3, PartID: 0x101d, NUMANode: -1,
			Firmware: "22.36.1010", BoardID: "MT_0000000359", HCAType: "MT4125", NodeGUID: fmt.Sprintf("0200:00ff:fe00:%04x", c.addr),
			Stack:    devx.Stack{Kind: devx.StackUnknown, Evidence: "no kernel: emulated inside the process"},
			Ports:    []devx.Port{{Number: 1, State: "ACTIVE", PhysState: "LinkUp", LinkLayer: "Ethernet", Rate: "100 Gb/sec (4X EDR)"}},
			Emulated: true,
		},
	}
	// From 5.18 on, mlx5_cmd_do tells firmware's errors from its own.
	if d.outbox = d.since(5, 18); d.outbox {
		d.lost = unix.ENXIO
	} else {
		d.lost = unix.EIO
	}
	c.fw.MAC, c.fw.Memory = portMAC(d.addr), &d.mem
	if c.clock != "" {
		c.fw.Clock = sharedClock(c.clock)
	}
	if d.hca, err = fw.New(c.fw); err != nil {
		return nil, err
	}
	d.hca.Notify(d.event)
	if err := d.probe(); err != nil {
		return nil, err
	}
	return d, nil
}

// sharedClock returns the virtual clock of a name: that of a device that has it, or
// a new one. devicesMu is held.
func sharedClock(name string) fw.Clock {
	for _, d := range devices {
		if d.clock == name {
			return d.hca.Clock()
		}
	}
	return &fw.VirtualClock{}
}

// since reports whether the kernel is of that version or later.
func (d *Device) since(major, minor int) bool {
	return d.kernel[0] > major || d.kernel[0] == major && d.kernel[1] >= minor
}

// uarUID reports whether UARs get the context's uid: 5.15 gives 0.
func (d *Device) uarUID() bool { return d.since(6, 1) }

func parse(rest string) (config, error) {
	c := config{profile: "zero", latency: -1, submit: -1, perQPs: -1, miss: -1, kernel: [2]int{6, 1}, addr: 1}
	seen := map[string]bool{}
	if rest == "" {
		return c, c.finish()
	}
	for _, option := range strings.Split(rest, ",") {
		key, value, _ := strings.Cut(option, "=")
		if seen[key] {
			return c, fmt.Errorf("option %s is given twice", key)
		}
		seen[key] = true
		if err := c.set(key, value); err != nil {
			return c, err
		}
	}
	return c, c.finish()
}

const optionNames = "profile, latency, submit, per_1000_qps, cache, miss, threads, slots, clock, addr, log_max_qp, kernel, devx, seed, name"

func (c *config) set(key, value string) (err error) {
	switch key {
	case "profile":
		c.profile = value
	case "latency":
		c.latency, err = duration(key, value)
	case "submit":
		c.submit, err = duration(key, value)
	case "per_1000_qps":
		c.perQPs, err = duration(key, value)
	case "cache":
		c.cache, err = number(key, value, 1, 1<<22)
	case "miss":
		c.miss, err = duration(key, value)
	case "threads":
		c.threads, err = number(key, value, 1, 64)
	case "slots":
		c.slots, err = number(key, value, 1, 31)
	case "clock":
		kind, name, named := strings.Cut(value, ":")
		switch {
		case value == "real":
			c.fw.Clock = fw.NewRealClock()
		case kind == "virtual" && named == (name != ""):
			c.fw.Clock, c.clock = &fw.VirtualClock{}, name
		default:
			err = fmt.Errorf("option clock=%s: real, virtual, or virtual:NAME", value)
		}
	case "addr":
		c.addr, err = number(key, value, 1, 254)
	case "log_max_qp":
		c.fw.LogMaxQP, err = number(key, value, 1, 22)
	case "kernel":
		major, minor, _ := strings.Cut(value, ".")
		a, errA := strconv.ParseUint(major, 10, 16)
		b, errB := strconv.ParseUint(minor, 10, 16)
		if c.kernel = [2]int{int(a), int(b)}; errA != nil || errB != nil {
			err = fmt.Errorf("option kernel=%s: a version such as 5.15", value)
		}
	case "devx":
		switch value {
		case "on":
		case "off":
			c.fw.LogMaxUC = -1
		default:
			err = fmt.Errorf("option devx=%s: on or off", value)
		}
	case "seed":
		if c.fw.Seed, err = strconv.ParseUint(value, 0, 64); err != nil {
			err = fmt.Errorf("option seed=%s: a number", value)
		}
	case "name":
	default:
		err = fmt.Errorf("no option %q: %s", key, optionNames)
	}
	return err
}

func duration(key, value string) (time.Duration, error) {
	v, err := time.ParseDuration(value)
	if err != nil {
		return 0, fmt.Errorf("option %s=%s: a duration such as 200us", key, value)
	}
	if v < 0 || v > fw.MaxLatency {
		return 0, fmt.Errorf("option %s=%s: 0 to %v", key, value, fw.MaxLatency)
	}
	return v, nil
}

func number(key, value string, least, most int) (int, error) {
	v, err := strconv.Atoi(value)
	if err != nil || v < least || v > most {
		return 0, fmt.Errorf("option %s=%s: a number from %d to %d", key, value, least, most)
	}
	return v, nil
}

// finish makes the profile that the options ask for.
func (c *config) finish() error {
	if (c.cache > 0) != (c.miss >= 0) {
		return errors.New("options cache=N and miss=DURATION belong together: give both")
	}
	base, err := fw.ProfileByName(c.profile)
	if err != nil {
		return err
	}
	p := *base
	if c.latency >= 0 {
		p.Default = fw.Dist{Fixed: c.latency}
		p.Ops = map[mlx5.Op]fw.Dist{}
		p.Name += fmt.Sprintf("+latency=%v", c.latency)
	}
	if c.submit >= 0 {
		p.Submit = fw.Dist{Fixed: c.submit}
		p.Name += fmt.Sprintf("+submit=%v", c.submit)
	}
	if c.perQPs >= 0 {
		p.Per1000QPs, p.Per1000QPsFrom = c.perQPs, fw.Evidence{}
		p.Name += fmt.Sprintf("+per_1000_qps=%v", c.perQPs)
	}
	if c.cache > 0 {
		p.ContextCache = &fw.ContextCache{QueuePairs: c.cache, Miss: fw.Dist{Fixed: c.miss}}
		p.Name += fmt.Sprintf("+cache=%d+miss=%v", c.cache, c.miss)
	}
	if c.threads > 0 {
		p.Threads = c.threads
		p.Name += fmt.Sprintf("+threads=%d", c.threads)
	}
	if c.slots > 0 {
		p.Slots = c.slots
		p.Name += fmt.Sprintf("+slots=%d", c.slots)
	}
	c.fw.Profile = &p
	return p.Compile()
}

// sharedUID is MLX5_SHARED_RESOURCE_UID, which completion event queues get
// (mlx5_core, create_map_eq).
const sharedUID = 0xffff

// probe does what the driver does when it finds the device, as far as a user
// sees it: capabilities, event queues and the GID table.
func (d *Device) probe() error {
	caps, query := make([]byte, mlx5.QueryHCACapOutSize), make([]byte, mlx5.QueryHCACapInSize)
	mlx5.PutHeader(query, mlx5.OpQueryHCACap, mlx5.QueryHCACapOpMod(mlx5.CapGeneral, true))
	if err := d.exec(query, caps); err != nil {
		return err
	}
	d.logMaxUCTX = mlx5.HCACap(mlx5.QueryHCACapOut(caps).Capability()).LogMaxUCTX()
	const vectors = 1
	for range vectors {
		in, out := make([]byte, mlx5.CreateEQInSize), make([]byte, mlx5.CreateEQOutSize)
		mlx5.PutHeader(in, mlx5.OpCreateEQ, 0)
		if d.logMaxUCTX != 0 {
			mlx5.CreateEQIn(in).SetUID(sharedUID)
		}
		mlx5.CreateEQIn(in).EQContextEntry().SetLogEQSize(10)
		if err := d.exec(in, out); err != nil {
			return err
		}
		d.vectors = append(d.vectors, uint32(mlx5.CreateEQOut(out).EQNumber()))
	}
	if d.logMaxUCTX != 0 { // mlx5_ib_devx_init
		in, out := make([]byte, mlx5.CreateUCTXInSize), make([]byte, mlx5.CreateUCTXOutSize)
		mlx5.PutHeader(in, mlx5.OpCreateUCTX, 0)
		if err := d.exec(in, out); err != nil {
			return err
		}
		d.whitelistUID = mlx5.CreateUCTXOut(out).UID()
	}
	// RoCE v1 and v2 of the link-local and of the IPv4 address, in the order of
	// the reference card's table.
	linkLocal := [16]byte{0xfe, 0x80, 8: 0x00, 9: 0x00, 10: 0x00, 11: 0xff, 12: 0xfe, 13: 0x00, 14: 0x00, 15: d.addr}
	ipv4 := [16]byte{10: 0xff, 11: 0xff, 12: 192, 13: 0, 14: 2, 15: d.addr} // TEST-NET-1
	mac := portMAC(d.addr)
	for i, gid := range [][16]byte{linkLocal, linkLocal, ipv4, ipv4} {
		in, out := make([]byte, mlx5.SetRoCEAddressInSize), make([]byte, mlx5.SetRoCEAddressOutSize)
		mlx5.PutHeader(in, mlx5.OpSetRoCEAddress, 0)
		mlx5.SetRoCEAddressIn(in).SetRoCEAddressIndex(uint16(i))
		a := mlx5.SetRoCEAddressIn(in).RoCEAddress()
		copy(a.SourceL3Address(), gid[:])
		a.SetSourceMAC4732(binary.BigEndian.Uint16(mac[:]))
		a.SetSourceMAC310(binary.BigEndian.Uint32(mac[2:]))
		a.SetRoCEVersion(uint8(2 * (i % 2))) // 0 is v1, 2 is v2
		if i == 1 {
			a.SetRoCEL3Type(1) // IPv6; 0 is IPv4, and RoCE v1
		}
		if err := d.exec(in, out); err != nil {
			return err
		}
	}
	return nil
}

func (d *Device) exec(in, out []byte) error {
	d.hca.Exec(in, out)
	if status, syndrome := mlx5.StatusOf(out); status != mlx5.StatusOK {
		return &mlx5.CommandError{Op: mlx5.OpOf(in), Status: status, Syndrome: syndrome, HasOutbox: true}
	}
	return nil
}

// HCA returns the device behind the file, to look at its statistics or to make
// it report an event.
func (d *Device) HCA() *fw.HCA { return d.hca }

// Unplug takes the device away: calls under way lose their answer (ENXIO, before
// Linux 5.18 EIO), later ones fail with EIO, and every channel ends.
func (d *Device) Unplug() {
	devicesMu.Lock()
	if devices[d.name] == d {
		delete(devices, d.name) // the next Open finds a new one
	}
	devicesMu.Unlock()
	d.mu.Lock()
	d.gone = true
	files := d.files
	d.files = map[*File]struct{}{}
	d.mu.Unlock()
	d.stop()
	for f := range files {
		f.gone.Store(true)
		f.endChannels()
	}
}

// event hands an event to every file of the device.
func (d *Device) event(e fw.Event) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for f := range d.files {
		f.deliver(e)
	}
}
