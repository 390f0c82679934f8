// SPDX-License-Identifier: BSD-2-Clause

package uverbs

import (
	"encoding/binary"
	"sync"

	"golang.org/x/sys/unix"

	"devxlab.example/devx/abi"
	"devxlab.example/emu/fw"
	"devxlab.example/mlx5"
)

type channelKind uint8

const (
	queryChannel channelKind = iota
	eventChannel
)

// maxQueryBytes is MAX_ASYNC_BYTES_IN_USE of devx.c; maxEvents bounds what
// waits for a reader who does not come.
const (
	maxQueryBytes = 1 << 20
	maxEvents     = 1 << 16
)

// channel is a file descriptor that messages to user space come from. User
// space gets one end of a socket pair that keeps message boundaries, so that it
// reads and polls a real descriptor; a goroutine feeds the other end.
type channel struct {
	kind channelKind
	fd   int // ours

	mu      sync.Mutex
	more    *sync.Cond
	queue   [][]byte
	bytes   int // of queries under way and of answers that wait
	ended   bool
	subs    []subscription
	pending sync.WaitGroup // queries under way
}

type subscription struct {
	cookie uint64
	typ    mlx5.EventType
	about  uint32
	of     mlx5.Op // that made the object; 0: the device
}

// newChannel makes a channel and returns its descriptor in the attribute.
func (f *File) newChannel(v *value, kind channelKind) unix.Errno {
	if f.uid.Load() == 0 {
		return unix.EINVAL
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		if errno, ok := err.(unix.Errno); ok {
			return errno
		}
		return unix.EMFILE
	}
	c := &channel{kind: kind, fd: fds[1]}
	c.more = sync.NewCond(&c.mu)
	f.mu.Lock()
	f.channels[fds[0]] = c
	f.mu.Unlock()
	v.attr.SetData(uint64(fds[0]))
	go c.pump()
	return 0
}

// pump writes messages until the channel ends. A write blocks while the
// reader's buffer is full, and fails once the reader has closed its end.
func (c *channel) pump() {
	for {
		c.mu.Lock()
		for len(c.queue) == 0 && !c.ended {
			c.more.Wait()
		}
		if len(c.queue) == 0 || c.ended {
			c.mu.Unlock()
			break
		}
		m := c.queue[0]
		c.queue = c.queue[1:]
		c.mu.Unlock()
		err := unix.EINTR
		for err == unix.EINTR {
			_, err = errnoOf(unix.SendmsgN(c.fd, m, nil, nil, unix.MSG_NOSIGNAL))
		}
		c.mu.Lock()
		if c.kind == queryChannel {
			c.bytes -= len(m) - abi.AsyncCmdHdrSize
		}
		if err != 0 {
			c.ended = true
		}
		c.mu.Unlock()
	}
	c.pending.Wait()
	unix.Close(c.fd)
}

func errnoOf(n int, err error) (int, unix.Errno) {
	if e, ok := err.(unix.Errno); ok {
		return n, e
	}
	return n, 0
}

// end makes the pump stop. What waits is lost, as on a closed file.
func (c *channel) end() {
	c.mu.Lock()
	c.ended = true
	c.more.Broadcast()
	c.mu.Unlock()
	// A write that is blocked returns.
	_ = unix.Shutdown(c.fd, unix.SHUT_RDWR)
}

func (f *File) endChannels() {
	f.mu.Lock()
	channels := f.channels
	f.channels = map[int]*channel{}
	f.mu.Unlock()
	for _, c := range channels {
		c.end()
	}
}

func (f *File) channel(v *value, kind channelKind) *channel {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.channels[int(int32(v.attr.Data()))]; c != nil && c.kind == kind {
		return c
	}
	return nil
}

func (c *channel) post(m []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended || c.kind == eventChannel && len(c.queue) >= maxEvents {
		return
	}
	c.queue = append(c.queue, m)
	c.more.Signal()
}

// asyncQuery starts a query whose answer comes through a channel.
func (f *File) asyncQuery(b *bundle) unix.Errno {
	in := b.get(abi.MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_CMD_IN)
	n := int(b.get(abi.MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_OUT_LEN).u64() & 0xffff)
	id := b.get(abi.MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_WR_ID).u64()
	o, errno := f.handles.lookup(b.vals[0].attr.Data(), 0, true)
	if errno != 0 {
		return errno
	}
	op := mlx5.OpOf(in.bytes())
	errno = validate(o, op, in.bytes(), queries)
	o.unuse()
	if errno != 0 {
		return errno
	}
	if n < 8 {
		return unix.EINVAL
	}
	c := f.channel(b.get(abi.MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_FD), queryChannel)
	if c == nil {
		return unix.EBADF
	}
	c.mu.Lock()
	full := c.bytes+n > maxQueryBytes
	if !full && !c.ended {
		c.bytes += n
		c.pending.Add(1)
	}
	ended := c.ended
	c.mu.Unlock()
	switch {
	case ended:
		return unix.EIO
	case full:
		return unix.EAGAIN
	}
	cmd := append([]byte(nil), in.bytes()...)
	mlx5.RST2INITQPIn(cmd).SetUID(uint16(f.uid.Load()))
	go func() {
		defer c.pending.Done()
		m := make([]byte, abi.AsyncCmdHdrSize+n)
		binary.LittleEndian.PutUint64(m, id)
		f.d.hca.Exec(cmd, m[abi.AsyncCmdHdrSize:])
		c.post(m)
	}()
	return 0
}

// legacyEvents are those that a program may subscribe to where the device has
// no event_cap (is_legacy_obj_event_num, is_legacy_unaffiliated_event_num).
var legacyEvents = map[mlx5.EventType]bool{
	mlx5.EventComp: true, mlx5.EventPathMig: true, mlx5.EventCommEst: true, mlx5.EventSQDrained: true,
	mlx5.EventSRQLastWQE: true, mlx5.EventSRQRQLimit: true, mlx5.EventCQError: true, mlx5.EventWQCatasError: true,
	mlx5.EventPathMigFailed: true, mlx5.EventWQInvalReqError: true, mlx5.EventWQAccessError: true,
	mlx5.EventSRQCatasError: true, mlx5.EventDCTDrained: true, mlx5.EventDCTKeyViolation: true, mlx5.EventXRQError: true,
}

func (f *File) subscribe(b *bundle) unix.Errno {
	if f.uid.Load() == 0 {
		return unix.EINVAL
	}
	sub := subscription{cookie: b.get(abi.MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_COOKIE).cookie()}
	if b.get(abi.MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_FD_NUM).present {
		return unix.EOPNOTSUPP // redirection to an eventfd: not modelled
	}
	about := b.get(abi.MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_OBJ_HANDLE)
	if about.present {
		o, errno := f.handles.lookup(about.attr.Data(), abi.MLX5_IB_OBJECT_DEVX_OBJ, false)
		if errno != 0 {
			return errno
		}
		sub.about, sub.of = o.id, o.op
		o.unuse()
	}
	c := f.channel(b.get(abi.MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_FD_HANDLE), eventChannel)
	if c == nil {
		return unix.EBADF
	}
	list := b.get(abi.MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_TYPE_NUM_LIST).bytes()
	if len(list)%2 != 0 || len(list)/2 > 64 {
		return unix.EINVAL
	}
	var subs []subscription
	for ; len(list) > 0; list = list[2:] {
		sub.typ = mlx5.EventType(binary.LittleEndian.Uint16(list))
		if about.present && !legacyEvents[sub.typ] || !about.present && sub.typ != mlx5.EventPortChange {
			return unix.EINVAL
		}
		subs = append(subs, sub)
	}
	c.mu.Lock()
	c.subs = append(c.subs, subs...)
	c.mu.Unlock()
	return 0
}

// cookie returns a 64-bit integer, or 0 if the attribute is absent.
func (v *value) cookie() uint64 {
	if !v.present {
		return 0
	}
	return v.u64()
}

// eqeNumber is where an event queue entry names its object: in the last dword
// of the seven at 32 (struct mlx5_eqe_qp_srq and mlx5_eqe_comp in
// linux/mlx5/device.h), but for a CQ error in the first.
func eqeNumber(t mlx5.EventType) int {
	if t == mlx5.EventCQError {
		return 32
	}
	return 56
}

// deliver posts an event to the channels that are subscribed to it.
func (f *File) deliver(e fw.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.channels {
		if c.kind != eventChannel {
			continue
		}
		c.mu.Lock()
		subs := c.subs
		c.mu.Unlock()
		for _, s := range subs {
			if s.typ != e.Type || s.about != e.Object || s.of != 0 && s.of != madeBy(e.Type) {
				continue
			}
			m := make([]byte, abi.AsyncEventHdrSize+64)
			binary.LittleEndian.PutUint64(m, s.cookie)
			eqe := m[abi.AsyncEventHdrSize:]
			eqe[1] = byte(e.Type)
			binary.BigEndian.PutUint32(eqe[eqeNumber(e.Type):], e.Object)
			c.post(m)
		}
	}
}

// madeBy returns the command whose objects an event is about.
func madeBy(t mlx5.EventType) mlx5.Op {
	if t == mlx5.EventComp || t == mlx5.EventCQError {
		return mlx5.OpCreateCQ
	}
	return mlx5.OpCreateQP
}
