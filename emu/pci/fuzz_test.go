// SPDX-License-Identifier: BSD-2-Clause

package pci

import (
	"bytes"
	"encoding/binary"
	"testing"

	"devxlab.example/internal/mutate"
	"devxlab.example/mlx5"
)

// small returns a driver whose host has 8 MiB, for many runs.
func small(t testing.TB) *driver {
	d := newDriver(t, Config{})
	d.m.b = d.m.b[: 8<<20 : 8<<20]
	return d
}

// again resets the function and boots it.
func (d *driver) again(t testing.TB) {
	d.t = t
	d.settle() // the last command has answered but not left
	d.m.renew()
	d.f.Reset()
	d.events, d.ci, d.next = false, 0, pagesAt
	clear(d.pages)
	d.boot()
	d.settle() // so has the last one here
}

// known are the delivery statuses that there are.
var known = map[Delivery]bool{DeliveryOK: true, DeliverySignature: true, DeliveryToken: true, DeliveryBlockNumber: true, DeliveryOutAlign: true,
	DeliveryInAlign: true, DeliveryFirmware: true, DeliveryInLength: true, DeliveryOutLength: true, DeliveryReserved: true, DeliveryDescriptor: true}

// FuzzCommand rings for a command queue entry and mailboxes of any bytes, signed
// or not. Whatever they are, the entry comes back signed and with a status that
// the driver knows, or is not touched; and the device goes on.
func FuzzCommand(f *testing.F) {
	seed := newDriver(f, Config{})
	add := func(in []byte, outLen int, change func(e *[entryBytes]byte)) {
		clear(seed.m.b[boxesAt : boxesAt+boxesEach])
		e := seed.entry(0, in, outLen)
		if change != nil {
			change(&e)
		}
		f.Add(e[:], bytes.Clone(seed.m.b[boxesAt:boxesAt+8*boxEach]), true)
		f.Add(e[:], []byte(nil), false)
	}
	for _, op := range []mlx5.Op{mlx5.OpNOP, mlx5.OpQueryHCACap, mlx5.OpCreateEQ, mlx5.OpCreateCQ, mlx5.OpCreateQP, mlx5.OpCreateSQ, mlx5.OpCreateRQ,
		mlx5.OpCreateMKey, mlx5.OpManagePages, mlx5.OpTeardownHCA, mlx5.OpDestroyEQ, mlx5.OpCreateRQT, mlx5.OpCreateFlowGroup, mlx5.OpModifyNICVPortContext} {
		_, out := op.Layouts()
		add(build(op, 0), out.Bytes, nil)
	}
	long := make([]byte, 3000)
	mlx5.PutHeader(long, mlx5.OpManagePages, 1)
	add(long, 2000, nil)
	add(long, 2000, func(e *[entryBytes]byte) { e[atInLen+1] = 0x20 })                                         // 2 MiB
	add(long, 2000, func(*[entryBytes]byte) { copy(seed.m.b[boxesAt+blockData+blockNext:], make([]byte, 8)) }) // ends early
	add(long, 2000, func(*[entryBytes]byte) { binary.BigEndian.PutUint64(seed.m.b[boxesAt+blockData+blockNext:], boxesAt) })
	add(long, 2000, func(e *[entryBytes]byte) { binary.BigEndian.PutUint64(e[atInPtr:], 8<<20-512) })
	add(long, 1<<20, nil)
	d := small(f)
	f.Fuzz(func(t *testing.T, entry, boxes []byte, sign bool) {
		d.again(t)
		d.hostile(entry, boxes, sign)
	})
}

// hostile rings for an entry and mailboxes of any bytes. It reports whether the
// device is as it was: it may have been told to go down.
func (d *driver) hostile(entry, boxes []byte, sign bool) (up bool) {
	d.t.Helper()
	var e [entryBytes]byte
	copy(e[:], entry)
	_ = d.m.WriteDMA(boxesAt, boxes[:min(len(boxes), len(d.m.b)-boxesAt)])
	if sign {
		e[atSig] = 0
		e[atSig] = ^sum(e[:])
	}
	_ = d.m.WriteDMA(queueAt, e[:])
	d.settle()
	dev := d.f.device()
	dev.busy.Store(1)
	d.f.enter()
	over := d.m.over
	dev.command(queueAt, 0)
	if dev.busy.Load() != 0 || d.f.running.Load() != 0 {
		d.t.Fatal("the slot is not free")
	}
	var back [entryBytes]byte
	copy(back[:], d.m.b[queueAt:])
	switch {
	case d.m.over > over: // by a mailbox or another object that lies there
	case e[atOwner]&ownedHW == 0:
		if back != e {
			d.t.Errorf("an entry of the driver's changed: %x", back)
		}
	case back[atOwner]&ownedHW != 0:
		d.t.Errorf("not given back: %x", back)
	case sum(back[:]) != goodSum || !known[Delivery(back[atOwner]>>1)]:
		d.t.Errorf("%x", back)
	}
	if op := mlx5.OpOf(e[atIn:]); op == mlx5.OpTeardownHCA || op == mlx5.OpDestroyEQ {
		return false
	}
	d.events = false // its ring may have been hit
	d.must(build(mlx5.OpNOP, 0))
	return true
}

// A device goes on under hostile commands, one after the other: what FuzzCommand
// does to a new one.
func TestMutatedCommands(t *testing.T) {
	d := small(t)
	left := 0
	mutate.Run(t, "FuzzCommand", func(n int, in []any) {
		if left == 0 {
			d.again(t)
			left = mutationsEach
		}
		left--
		if !d.hostile(in[0].([]byte), in[1].([]byte), in[2].(bool)) {
			left = 0
		}
	})
}

// mutationsEach is how many inputs a device meets.
const mutationsEach = 64

// FuzzAccess runs any accesses to configuration space and BAR 0, at the size and
// place that they say.
func FuzzAccess(f *testing.F) {
	access := func(kind byte, off uint32, data ...byte) []byte {
		return append(binary.BigEndian.AppendUint32([]byte{kind, byte(len(data))}, off), data...)
	}
	f.Add(bytes.Join([][]byte{
		access(0, devCtl, 0x10, 0xa8), access(1, regCmdqLow, 0, 0, 0x10, 0), access(1, regDoorbell, 0xff, 0xff, 0xff, 0xff),
		access(1, regCmdqLow, 0, 0, 0x17, 0), access(2, regHealth, make([]byte, 64)...), access(1, firstUAR*uarPage+bellEQArm, 4, 0, 0, 1),
		access(1, firstUAR*uarPage+0x800, 0, 0, 0, 0, 0, 0, 0x40, 0), access(3, capVendor, make([]byte, 24)...),
	}, nil))
	f.Add(bytes.Join([][]byte{access(0, capVPD+2, 0, 0), access(0, capVendor+gatewayControl, 0xa, 0, 0, 0), access(0, capVendor+gatewayAddr, 0x20, 0, 0, 0x80),
		access(0, 0x10, 0xff, 0xff, 0xff, 0xff), access(1, tableAt, make([]byte, 16)...), access(2, tableEnd-4, make([]byte, 8)...)}, nil))
	f.Add(access(1, barSize-4, 1, 2, 3, 4))
	f.Add(access(2, 1<<32-1, 1, 2, 3, 4))
	d := small(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		d.again(t)
		d.accesses(b)
	})
}

// accesses makes those that b has.
func (d *driver) accesses(b []byte) {
	d.t.Helper()
	for len(b) >= 6 {
		kind, n, off := b[0], int(b[1]), binary.BigEndian.Uint32(b[2:])
		n = min(n, len(b)-6)
		data := bytes.Clone(b[6 : 6+n])
		b = b[6+n:]
		was := bytes.Clone(data)
		switch kind % 4 {
		case 0:
			d.f.WriteConfig(int(off%8192), data)
		case 1:
			d.f.WriteBAR(0, int64(off%(2*barSize)), data)
		case 2:
			d.f.ReadBAR(0, int64(off%(2*barSize)), data)
			continue
		case 3:
			d.f.ReadConfig(int(off%8192), data)
			continue
		}
		if !bytes.Equal(data, was) {
			d.t.Fatal("a write changed its data")
		}
	}
	d.settle()
}

// A device goes on under hostile accesses: what FuzzAccess does to a new one.
func TestMutatedAccesses(t *testing.T) {
	d := small(t)
	mutate.Run(t, "FuzzAccess", func(n int, in []any) {
		if n%mutationsEach == 0 {
			d.again(t)
		}
		d.accesses(in[0].([]byte))
	})
}
