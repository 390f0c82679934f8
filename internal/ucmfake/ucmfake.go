// SPDX-License-Identifier: BSD-2-Clause

// Package ucmfake plays the kernel behind /dev/infiniband/rdma_cm for tests of what
// stands on it: it reads the commands that write(2) would carry, keeps IDs, brings
// clients and listeners together and queues events, in the states of the kernel's
// drivers/infiniband/core: ucma.c (commands, errnos), cma.c (states of an ID), cm.c
// (states of a connection). There is one device, which every address belongs to.
//
// A Fault puts a command's outcome in the place of success; Latency lets events
// come late, by the clock of testing/synctest.
package ucmfake

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"devxlab.example/cm"
	"devxlab.example/cm/abi"
	"devxlab.example/internal/usermem"
)

// NodeGUID is that of the device.
const NodeGUID = 0x0200_c0ff_ee00_0001

// maxBacklog is net.rdma_ucm.max_backlog.
const maxBacklog = 1024

// Call is a command that was written.
type Call struct {
	Cmd   uint32
	ID    uint32 // the kernel's number; 0: it has none
	Bytes []byte // all that write(2) got
}

// Event is what an ID is told. Private is padded as the kernel pads it.
type Event struct {
	Type    cm.EventType
	Status  int32
	Private []byte
}

// Fault is what becomes of a command.
type Fault struct {
	Errno unix.Errno // it is refused
	Event *Event     // the ID is told this, and nothing else happens
	Lost  bool       // nothing happens, and nobody is told
}

// Kernel is one machine. Its exported members are set before it is used.
type Kernel struct {
	Fault   func(Call) Fault                      // of each command but GET_EVENT, DESTROY_ID; may be nil
	Latency func(t cm.EventType) time.Duration    // until an event comes; nil: at once
	Raw     func(e *abi.EventResp) (whole []byte) // changes what GET_EVENT answers with, or replaces it; may be nil

	mu    sync.Mutex
	ids   map[uint32]*id
	port  uint16
	calls []Call
	seen  int // most IDs there were at a time
}

// New makes a kernel without IDs.
func New() *Kernel { return &Kernel{ids: map[uint32]*id{}, port: 40000} }

// File is an open file: a cm.Node.
type File struct {
	k       *Kernel
	events  []*event
	changed chan struct{} // closed, and made anew, when there is an event
	closed  bool
	Fail    func(cmd uint32) error // of each write, before all else; may be nil
}

type event struct {
	of      *id // nil: of none
	request *id // that a CONNECT_REQUEST brings
	resp    abi.EventResp
}

// Open opens the node.
func (k *Kernel) Open() *File { return &File{k: k, changed: make(chan struct{})} }

// IDs returns the numbers of all IDs.
func (k *Kernel) IDs() []uint32 {
	k.mu.Lock()
	defer k.mu.Unlock()
	var all []uint32
	for n := range k.ids {
		all = append(all, n)
	}
	slices.Sort(all)
	return all
}

// Most is how many IDs there were at a time, at most.
func (k *Kernel) Most() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.seen
}

// Calls returns the commands that were written, without GET_EVENT.
func (k *Kernel) Calls() []Call {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.calls)
}

// Tell queues an event for an ID, whatever it is doing. A DeviceRemoval takes its
// device away: it can only be destroyed then.
func (k *Kernel) Tell(n uint32, e Event) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if i := k.ids[n]; i != nil {
		i.told(e)
		i.removed = i.removed || e.Type == cm.DeviceRemoval
	}
}

// Queue queues bytes as the next event of a file, of no ID that there is.
func (f *File) Queue(e abi.EventResp) {
	f.k.mu.Lock()
	defer f.k.mu.Unlock()
	f.queue(&event{resp: e})
}

func (f *File) queue(e *event) {
	f.events = append(f.events, e)
	close(f.changed)
	f.changed = make(chan struct{})
}

// Await is cm.Node's.
func (f *File) Await(read func() bool) error {
	for {
		f.k.mu.Lock()
		changed, closed := f.changed, f.closed
		f.k.mu.Unlock()
		if closed {
			return cm.ErrClosed
		}
		if read() {
			return nil
		}
		<-changed
	}
}

// Close destroys the file's IDs (ucma_close).
func (f *File) Close() error {
	f.k.mu.Lock()
	defer f.k.mu.Unlock()
	if f.closed {
		return cm.ErrClosed
	}
	f.closed = true
	for n := range f.k.ids {
		if i := f.k.ids[n]; i != nil && i.file == f {
			i.destroy()
		}
	}
	close(f.changed)
	f.changed = make(chan struct{})
	return nil
}

// Write carries a command out (ucma_write).
func (f *File) Write(b []byte) error {
	if f.Fail != nil && len(b) >= 4 {
		if err := f.Fail(binary.NativeEndian.Uint32(b)); err != nil {
			return err
		}
	}
	f.k.mu.Lock()
	defer f.k.mu.Unlock()
	if f.closed {
		return cm.ErrClosed
	}
	var h abi.Hdr
	n, err := binary.Decode(b, binary.NativeEndian, &h)
	if err != nil || int(h.In)+n > len(b) {
		return unix.EINVAL
	}
	run := commands[h.Cmd]
	if run == nil {
		return unix.ENOSYS
	}
	return run(f, &request{Call: Call{Cmd: h.Cmd, Bytes: slices.Clone(b)}, in: b[n : n+int(h.In)], out: int(h.Out)})
}

// request is a command that is being carried out.
type request struct {
	Call
	in   []byte
	out  int
	lost bool
	id   *id
}

var commands map[uint32]func(*File, *request) error

func init() {
	commands = map[uint32]func(*File, *request) error{
		abi.RDMA_USER_CM_CMD_CREATE_ID: with(create), abi.RDMA_USER_CM_CMD_DESTROY_ID: with(destroy), abi.RDMA_USER_CM_CMD_GET_EVENT: with(getEvent),
		abi.RDMA_USER_CM_CMD_BIND:          on(func(r *abi.Bind) uint32 { return r.ID }, bind),
		abi.RDMA_USER_CM_CMD_RESOLVE_ADDR:  on(func(r *abi.ResolveAddr) uint32 { return r.ID }, resolveAddr),
		abi.RDMA_USER_CM_CMD_RESOLVE_ROUTE: on(func(r *abi.ResolveRoute) uint32 { return r.ID }, resolveRoute),
		abi.RDMA_USER_CM_CMD_QUERY:         on(func(r *abi.Query) uint32 { return r.ID }, query),
		abi.RDMA_USER_CM_CMD_CONNECT:       on(func(r *abi.Connect) uint32 { return r.ID }, connect),
		abi.RDMA_USER_CM_CMD_LISTEN:        on(func(r *abi.Listen) uint32 { return r.ID }, listen),
		abi.RDMA_USER_CM_CMD_ACCEPT:        on(func(r *abi.Accept) uint32 { return r.ID }, accept),
		abi.RDMA_USER_CM_CMD_REJECT:        on(func(r *abi.Reject) uint32 { return r.ID }, reject),
		abi.RDMA_USER_CM_CMD_DISCONNECT:    on(func(r *abi.Disconnect) uint32 { return r.ID }, disconnect),
		abi.RDMA_USER_CM_CMD_INIT_QP_ATTR:  on(func(r *abi.InitQPAttr) uint32 { return r.ID }, initQPAttr),
		abi.RDMA_USER_CM_CMD_SET_OPTION:    on(func(r *abi.SetOption) uint32 { return r.ID }, setOption),
	}
}

// with reads a request.
func with[T any](run func(*File, *request, *T) error) func(*File, *request) error {
	return func(f *File, r *request) error {
		in := new(T)
		if _, err := binary.Decode(r.in, binary.NativeEndian, in); err != nil {
			return unix.EFAULT
		}
		return run(f, r, in)
	}
}

// on reads a request that is about an ID, notes it, and lets it fail if a test
// wants that (ucma_get_ctx).
func on[T any](of func(*T) uint32, run func(*request, *T) error) func(*File, *request) error {
	return with(func(f *File, r *request, in *T) error {
		r.ID = of(in)
		i := f.k.ids[r.ID]
		switch f.k.calls = append(f.k.calls, r.Call); {
		case i == nil:
			return unix.ENOENT
		case i.file != f:
			return unix.EINVAL
		case i.removed:
			return unix.ENXIO
		}
		fault := f.k.fault(r.Call)
		switch r.id, r.lost = i, fault.Lost; {
		case fault.Errno != 0:
			return fault.Errno
		case fault.Event != nil:
			i.told(*fault.Event)
			return nil
		}
		return run(r, in)
	})
}

func (k *Kernel) fault(c Call) Fault {
	if k.Fault == nil {
		return Fault{}
	}
	return k.Fault(c)
}

// answer is copy_to_user.
func answer(addr uint64, room int, v any) error {
	b, err := binary.Append(nil, binary.NativeEndian, v)
	if err != nil {
		return err
	}
	b = b[:min(len(b), room)]
	to, ok := usermem.Resolve(addr, len(b))
	if !ok {
		return unix.EFAULT
	}
	copy(to, b)
	return nil
}

func (k *Kernel) newID(f *File) *id {
	i := &id{k: k, num: 1, file: f}
	for k.ids[i.num] != nil { // the lowest free one, as xa_alloc gives out
		i.num++
	}
	k.ids[i.num] = i
	k.seen = max(k.seen, len(k.ids))
	return i
}

func create(f *File, r *request, in *abi.CreateID) error {
	f.k.calls = append(f.k.calls, r.Call)
	if e := f.k.fault(r.Call).Errno; e != 0 {
		return e
	}
	if r.out < binary.Size(abi.CreateIDResp{}) {
		return unix.ENOSPC
	}
	if in.PS != abi.RDMA_PS_TCP && in.PS != abi.RDMA_PS_UDP {
		return unix.EINVAL
	}
	i := f.k.newID(f)
	i.uid, i.space = in.UID, in.PS
	return answer(in.Response, r.out, abi.CreateIDResp{ID: i.num})
}

func destroy(f *File, r *request, in *abi.DestroyID) error {
	r.ID = in.ID
	f.k.calls = append(f.k.calls, r.Call)
	if r.out < binary.Size(abi.DestroyIDResp{}) {
		return unix.ENOSPC
	}
	i := f.k.ids[in.ID]
	if i == nil {
		return unix.ENOENT
	}
	if i.file != f {
		return unix.EINVAL
	}
	i.destroy()
	return answer(in.Response, r.out, abi.DestroyIDResp{EventsReported: i.reported})
}

func getEvent(f *File, r *request, in *abi.GetEvent) error {
	if r.out < binary.Size(abi.EventResp{}) {
		return unix.ENOSPC
	}
	if len(f.events) == 0 {
		return unix.EAGAIN
	}
	e := f.events[0]
	var what any = e.resp
	if f.k.Raw != nil {
		if whole := f.k.Raw(&e.resp); whole != nil {
			what = whole
		}
	}
	if err := answer(in.Response, r.out, what); err != nil {
		return err
	}
	f.events = f.events[1:]
	if e.of != nil {
		e.of.reported++
	}
	if e.request != nil {
		e.of.backlog++
	}
	return nil
}

// sockaddr reads an address whose size the caller has given (rdma_addr_size_kss).
func sockaddr(s *abi.Sockaddr, size uint16) (netip.AddrPort, error) {
	var want uint16
	var ip netip.Addr
	switch binary.NativeEndian.Uint16(s[:2]) {
	case unix.AF_INET:
		want, ip = unix.SizeofSockaddrInet4, netip.AddrFrom4([4]byte(s[4:8]))
	case unix.AF_INET6:
		want, ip = unix.SizeofSockaddrInet6, netip.AddrFrom16([16]byte(s[8:24]))
		if ip.IsLinkLocalUnicast() && binary.NativeEndian.Uint32(s[24:28]) == 0 { // cma_check_linklocal
			return netip.AddrPort{}, unix.EINVAL
		}
	}
	if size == 0 || size != want {
		return netip.AddrPort{}, unix.EINVAL
	}
	return netip.AddrPortFrom(ip, binary.BigEndian.Uint16(s[2:4])), nil
}

// claim gives an address to an ID, with a port (cma_get_port).
func (i *id) claim(s abi.Sockaddr, at netip.AddrPort) error {
	if at.Port() == 0 {
		i.k.port++
		at = netip.AddrPortFrom(at.Addr(), i.k.port)
		binary.BigEndian.PutUint16(s[2:4], i.k.port)
	}
	for _, other := range i.k.ids {
		if other.space == i.space && other.at == at && !(other.reuse && i.reuse) {
			return unix.EADDRINUSE
		}
	}
	i.src, i.at = s, at
	i.device = !at.Addr().IsUnspecified()
	return nil
}

func bind(r *request, in *abi.Bind) error {
	i := r.id
	at, err := sockaddr(&in.Addr, in.AddrSize)
	if err != nil || in.Reserved != 0 || i.state != idle {
		return errors.Join(err, unix.EINVAL)
	}
	if err := i.claim(in.Addr, at); err != nil {
		return err
	}
	copy(i.dst[:2], i.src[:2])
	i.state = addrBound
	return nil
}

func listen(r *request, in *abi.Listen) error {
	i := r.id
	if i.state != addrBound {
		return unix.EINVAL
	}
	if i.backlog = in.Backlog; i.backlog == 0 || i.backlog > maxBacklog {
		i.backlog = maxBacklog
	}
	i.state = listening
	return nil
}

func query(r *request, in *abi.Query) error {
	if in.Option != abi.RDMA_USER_CM_QUERY_ADDR {
		return unix.ENOSYS
	}
	a := abi.QueryAddrResp{SrcAddr: r.id.src, DstAddr: r.id.dst}
	if r.id.device {
		a.NodeGUID, a.PortNum = binary.NativeEndian.Uint64(binary.BigEndian.AppendUint64(nil, NodeGUID)), 1
	}
	return answer(in.Response, r.out, a)
}

func setOption(r *request, in *abi.SetOption) error {
	size, known := map[uint32]uint32{abi.RDMA_OPTION_ID_TOS: 1, abi.RDMA_OPTION_ID_ACK_TIMEOUT: 1, abi.RDMA_OPTION_ID_REUSEADDR: 4, abi.RDMA_OPTION_ID_AFONLY: 4}[in.OptName]
	if in.Level != abi.RDMA_OPTION_ID || !known {
		return unix.ENOSYS
	}
	v, ok := usermem.Resolve(in.OptVal, int(in.OptLen))
	switch {
	case !ok:
		return unix.EFAULT
	case in.OptLen != size:
		return unix.EINVAL
	}
	i := r.id
	switch in.OptName {
	case abi.RDMA_OPTION_ID_REUSEADDR:
		i.reuse = v[0] != 0
	case abi.RDMA_OPTION_ID_AFONLY:
		i.afOnly = v[0] != 0
	case abi.RDMA_OPTION_ID_TOS:
		i.tos = v[0]
	case abi.RDMA_OPTION_ID_ACK_TIMEOUT:
		if i.space != abi.RDMA_PS_TCP {
			return unix.EINVAL
		}
		i.ackTimeout = new(v[0])
	}
	return nil
}
