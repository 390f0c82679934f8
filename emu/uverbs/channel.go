// SPDX-License-Identifier: BSD-2-Clause

package uverbs

import (
	"encoding/binary"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"devxlab.example/devx/abi"
	"devxlab.example/emu/fw"
	"devxlab.example/mlx5"
)

// maxQueryBytes is MAX_ASYNC_BYTES_IN_USE, and maxEventTypes MAX_NUM_EVENTS, of
// devx.c. maxWorkers is the number of commands that the device takes at once.
// maxEvents bounds what waits for a reader who does not come; the kernel is
// bounded by its memory only.
const (
	maxQueryBytes = 1 << 20
	maxEventTypes = 16
	maxWorkers    = 31
	maxEvents     = 1 << 16
)

// channel is what messages to user space come from. User space gets one end of
// a socket pair that keeps message boundaries, so that it reads and polls a
// real descriptor. The channel ends when user space has closed its end, or with
// the file.
type channel struct {
	f    *File
	kind uint16   // object id of the ioctl interface
	ino  uint64   // of the end that user space has
	file *os.File // our end

	subjects []subject // that it is subscribed to, under f.mu

	mu      sync.Mutex
	ended   bool
	queue   [][]byte // messages that wait for room in the socket
	sending bool     // a goroutine sends them
	sent    []int    // lengths of the messages that may not be read yet
	unread  int      // their sum
	bytes   int      // of answers that are due or may not be read yet
	work    []query
	workers int
}

type query struct {
	id  uint64
	in  []byte
	out int
}

// newChannel makes a channel and returns its descriptor in the attribute.
func (f *File) newChannel(v *value, kind uint16) unix.Errno {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return errnoOf(err)
	}
	c := &channel{f: f, kind: kind}
	var st unix.Stat_t
	if err = unix.Fstat(fds[0], &st); err == nil {
		if err = unix.SetNonblock(fds[1], true); err == nil {
			c.ino = st.Ino
			c.file = os.NewFile(uintptr(fds[1]), "emulated channel")
		}
	}
	if err != nil {
		_ = unix.Close(fds[0])
		_ = unix.Close(fds[1])
		return errnoOf(err)
	}
	// Room for the longest answer; the usual default has it, too.
	_ = unix.SetsockoptInt(fds[1], unix.SOL_SOCKET, unix.SO_SNDBUF, 1<<17)
	f.mu.Lock()
	gone := f.gone.Load()
	if !gone {
		f.channels[c.ino] = c
		f.running.Add(1)
	}
	f.mu.Unlock()
	if gone {
		_ = unix.Close(fds[0])
		_ = c.file.Close()
		return unix.EIO
	}
	v.attr.SetData(uint64(fds[0]))
	go c.watch()
	return 0
}

func errnoOf(err error) unix.Errno {
	if e, ok := err.(unix.Errno); ok {
		return e
	}
	return unix.EINVAL
}

// watch waits for user space to close its end, and then ends the channel.
func (c *channel) watch() {
	defer c.f.running.Done()
	var b [64]byte
	for {
		if n, err := c.file.Read(b[:]); n == 0 || err != nil { // nothing that is written to it counts
			break
		}
	}
	c.f.mu.Lock()
	if c.f.channels[c.ino] == c {
		delete(c.f.channels, c.ino)
	}
	for _, s := range c.subjects {
		left := slices.DeleteFunc(c.f.subs[s], func(s subscription) bool { return s.c == c })
		if c.f.subs[s] = left; len(left) == 0 {
			delete(c.f.subs, s)
		}
	}
	c.subjects = nil
	c.f.mu.Unlock()
	c.end()
}

// end closes the channel; its goroutines return. What waits is lost, as on a
// closed file.
func (c *channel) end() {
	c.mu.Lock()
	ended := c.ended
	c.ended, c.queue, c.work = true, nil, nil
	c.mu.Unlock()
	if !ended {
		_ = c.file.Close()
	}
}

func (f *File) endChannels() {
	f.mu.Lock()
	channels := f.channels
	f.channels, f.subs = map[uint64]*channel{}, map[subject][]subscription{}
	f.mu.Unlock()
	for _, c := range channels {
		c.end()
	}
}

// channelOf returns the channel of a descriptor of user space, which may be a
// duplicate (lookup_get_fd_uobject).
func (f *File) channelOf(fd uint64, kind uint16) (*channel, unix.Errno) {
	if int64(int32(fd)) != int64(fd) {
		return nil, unix.EINVAL
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(int32(fd)), &st); err != nil {
		return nil, unix.EBADF
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.channels[st.Ino]; c != nil && c.kind == kind && st.Mode&unix.S_IFMT == unix.S_IFSOCK {
		return c, 0
	}
	return nil, unix.EBADF
}

// post sends a message.
func (c *channel) post(m []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended || c.kind == abi.MLX5_IB_OBJECT_DEVX_ASYNC_EVENT_FD && len(c.queue) >= maxEvents {
		return
	}
	c.queue = append(c.queue, m)
	if !c.sending {
		c.sending = true
		c.f.running.Add(1)
		go c.send()
	}
}

// send sends what is queued, and waits for room where there is none.
func (c *channel) send() {
	defer c.f.running.Done()
	conn, _ := c.file.SyscallConn()        // fails of a nil file only
	_ = conn.Write(func(fd uintptr) bool { // fails if the channel has ended
		c.mu.Lock()
		defer c.mu.Unlock()
		for len(c.queue) > 0 {
			n, err := unix.SendmsgN(int(fd), c.queue[0], nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
			switch {
			case err == unix.EINTR:
				continue
			case err == unix.EAGAIN:
				return false
			case err != nil: // the reader is gone: watch sees it, too
				c.queue = nil
				continue
			}
			c.queue = c.queue[1:]
			if c.kind == abi.MLX5_IB_OBJECT_DEVX_ASYNC_CMD_FD {
				c.sent = append(c.sent, n)
				c.unread += n
			}
		}
		c.queue, c.sending = nil, false
		return true
	})
}

// settle takes what the reader has taken out of the socket off the bytes in
// use. fd is the reader's end.
func (c *channel) settle(fd int) {
	waiting, err := unix.IoctlGetInt(fd, unix.SIOCINQ)
	if err != nil {
		return
	}
	read := 0
	for read < len(c.sent) && c.unread > waiting {
		c.unread -= c.sent[read]
		c.bytes -= c.sent[read] - abi.AsyncCmdHdrSize
		read++
	}
	c.sent = c.sent[read:]
}

// asyncQuery starts a query whose answer comes through a channel.
func (f *File) asyncQuery(b *bundle) unix.Errno {
	q := query{
		id: b.get(abi.MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_WR_ID).u64(),
		in: slices.Clone(b.get(abi.MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_CMD_IN).bytes()),
	}
	o := b.get(abi.MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_HANDLE).obj
	uid, errno := f.validate(o, mlx5.OpOf(q.in), q.in, queries)
	if errno != 0 {
		return errno
	}
	n, errno := b.get(abi.MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_OUT_LEN).constant(0)
	if errno != 0 || n > 0xffff {
		return unix.EINVAL
	}
	q.out = int(n)
	mlx5.RST2INITQPIn(q.in).SetUID(uid)
	fd := b.get(abi.MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_FD)
	return fd.ch.start(q, int(int32(fd.word)))
}

func (c *channel) start(q query, fd int) unix.Errno {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return unix.EIO
	}
	if c.bytes+q.out > maxQueryBytes {
		if c.settle(fd); c.bytes+q.out > maxQueryBytes {
			return unix.EAGAIN
		}
	}
	c.bytes += q.out
	c.work = append(c.work, q)
	if c.workers < maxWorkers {
		c.workers++
		c.f.running.Add(1)
		go c.run()
	}
	return 0
}

// run executes queries until there are none.
func (c *channel) run() {
	defer c.f.running.Done()
	for {
		c.mu.Lock()
		if len(c.work) == 0 {
			c.workers--
			c.work = nil
			c.mu.Unlock()
			return
		}
		q := c.work[0]
		c.work = c.work[1:]
		c.mu.Unlock()
		m := make([]byte, abi.AsyncCmdHdrSize+q.out)
		binary.LittleEndian.PutUint64(m, q.id)
		if c.f.run(q.in, m[abi.AsyncCmdHdrSize:]) == 0 {
			c.post(m)
		}
	}
}

// subject is what an event can be about: an object, by the command that made
// it and its number, or the device, the zero subject.
type subject struct {
	maker mlx5.Op
	id    uint32
}

type subscription struct {
	c      *channel
	typ    mlx5.EventType
	cookie uint64
}

// ofObject reports whether a program may subscribe to the event of an object,
// where the device has no event_cap (is_legacy_obj_event_num).
func ofObject(t mlx5.EventType) bool {
	switch t {
	case mlx5.EventComp, mlx5.EventPathMig, mlx5.EventCommEst, mlx5.EventSQDrained,
		mlx5.EventSRQLastWQE, mlx5.EventSRQRQLimit, mlx5.EventCQError, mlx5.EventWQCatasError,
		mlx5.EventPathMigFailed, mlx5.EventWQInvalReqError, mlx5.EventWQAccessError,
		mlx5.EventSRQCatasError, mlx5.EventDCTDrained, mlx5.EventDCTKeyViolation, mlx5.EventXRQError:
		return true
	}
	return false
}

func (f *File) subscribe(b *bundle) unix.Errno {
	if f.uid.Load() == 0 {
		return unix.EINVAL
	}
	cookie := b.get(abi.MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_COOKIE)
	if b.get(abi.MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_FD_NUM).present {
		if cookie.present {
			return unix.EINVAL
		}
		return unix.EOPNOTSUPP // redirection to an eventfd: not modelled
	}
	var s subject
	o := b.get(abi.MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_OBJ_HANDLE).obj
	if o != nil {
		s = subject{o.op, o.id}
	}
	list := b.get(abi.MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_TYPE_NUM_LIST).bytes()
	if len(list)%2 != 0 || len(list)/2 > maxEventTypes {
		return unix.EINVAL
	}
	c := b.get(abi.MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_FD_HANDLE).ch
	var subs []subscription
	for ; len(list) > 0; list = list[2:] {
		t := mlx5.EventType(binary.LittleEndian.Uint16(list))
		if o != nil && !ofObject(t) || o == nil && t != mlx5.EventPortChange {
			return unix.EINVAL
		}
		subs = append(subs, subscription{c, t, cookie.u64()})
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.channels[c.ino] != c {
		return unix.EBADF // closed meanwhile
	}
	f.subs[s] = append(f.subs[s], subs...)
	c.subjects = append(c.subjects, s)
	return 0
}

// subjectOf returns what an event is about.
func subjectOf(e fw.Event) subject {
	switch e.Type {
	case mlx5.EventPortChange:
		return subject{}
	case mlx5.EventComp, mlx5.EventCQError:
		return subject{mlx5.OpCreateCQ, e.Object}
	}
	return subject{mlx5.OpCreateQP, e.Object}
}

// eqe is the event queue entry of an event (struct mlx5_eqe in
// linux/mlx5/device.h, 64 bytes).
func eqe(e fw.Event) (b [64]byte) {
	b[1] = byte(e.Type)
	switch e.Type {
	case mlx5.EventPortChange:
		b[40] = 1 << 4 // mlx5_eqe_port_state: the port
	case mlx5.EventCQError:
		binary.BigEndian.PutUint32(b[32:], e.Object) // mlx5_eqe_cq_err
	default:
		binary.BigEndian.PutUint32(b[56:], e.Object) // mlx5_eqe_qp_srq, mlx5_eqe_comp
	}
	return b
}

// deliver posts an event to the channels that are subscribed to it.
func (f *File) deliver(e fw.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.subs[subjectOf(e)] {
		if s.typ != e.Type {
			continue
		}
		m := make([]byte, abi.AsyncEventHdrSize, abi.AsyncEventHdrSize+64)
		binary.LittleEndian.PutUint64(m, s.cookie)
		entry := eqe(e)
		s.c.post(append(m, entry[:]...))
	}
}
