// SPDX-License-Identifier: BSD-2-Clause

package capture

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/google/gopacket/layers"
	"golang.org/x/sys/unix"
)

// Live captures RoCE from a network interface (packet(7)).
type Live struct {
	file *os.File
	conn interface { // syscall.RawConn
		Read(f func(fd uintptr) (done bool)) error
		Control(f func(fd uintptr)) error
	}
	buf []byte
	oob []byte
}

// snapLength is how much of a packet is kept, in bytes: all of it, since the
// checksum is at the end.
const snapLength = 1 << 16

// timespecBytes is the size of a struct timespec on 64-bit machines.
const timespecBytes = 16

// NewLive opens an interface. It needs CAP_NET_RAW; without it the error is
// os.ErrPermission. What a card does in hardware does not pass here.
func NewLive(name string) (*Live, error) {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return nil, fmt.Errorf("capture: interface %s: %w", name, err)
	}
	filter, err := Filter()
	if err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0) // nothing comes until it is bound
	if err != nil {
		return nil, fmt.Errorf("capture: packet socket: %w", err)
	}
	program := make([]unix.SockFilter, len(filter))
	for n, f := range filter {
		program[n] = unix.SockFilter{Code: f.Op, Jt: f.Jt, Jf: f.Jf, K: f.K}
	}
	all := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.ETH_P_ALL)) // in network order
	err = errors.Join(
		unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: i.Index}))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("capture: %s: %w", name, err), unix.Close(fd))
	}
	l := &Live{file: os.NewFile(uintptr(fd), name), buf: make([]byte, snapLength), oob: make([]byte, unix.CmsgSpace(timespecBytes))}
	if l.conn, err = l.file.SyscallConn(); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// Next waits for a packet. After Close it returns os.ErrClosed.
func (l *Live) Next() (f Frame, err error) {
	var n, oobn int
	var rerr error
	if err := l.conn.Read(func(fd uintptr) bool {
		n, oobn, _, _, rerr = unix.Recvmsg(int(fd), l.buf, l.oob, unix.MSG_TRUNC)
		return !errors.Is(rerr, unix.EAGAIN) && !errors.Is(rerr, unix.EINTR)
	}); err != nil {
		return f, os.ErrClosed // the only error of a file without a deadline
	}
	if rerr != nil {
		return f, fmt.Errorf("capture: %s: %w", l.file.Name(), rerr)
	}
	return Frame{Time: stamp(l.oob[:oobn]), Data: l.buf[:min(n, len(l.buf))], Cut: n > len(l.buf), Wire: n, First: layers.LayerTypeEthernet}, nil
}

// stamp returns the time at which the kernel saw a packet.
func stamp(oob []byte) time.Time {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(messages) == 0 || len(messages[0].Data) < timespecBytes {
		return time.Now()
	}
	d := messages[0].Data
	return time.Unix(int64(binary.NativeEndian.Uint64(d)), int64(binary.NativeEndian.Uint64(d[8:])))
}

// Dropped returns how many packets the kernel dropped since it was last asked,
// because they were not read in time.
func (l *Live) Dropped() (n int, err error) {
	cerr := l.conn.Control(func(fd uintptr) {
		var s *unix.TpacketStats
		if s, err = unix.GetsockoptTpacketStats(int(fd), unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil {
			n = int(s.Drops)
		}
	})
	return n, errors.Join(cerr, err)
}

// Close ends a Next that waits.
func (l *Live) Close() error { return l.file.Close() }
