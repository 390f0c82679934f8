// SPDX-License-Identifier: BSD-2-Clause

package pci

import (
	"encoding/binary"
	"time"

	"devxlab.example/mlx5"
)

// Delivery is the status of a command's delivery: whether its descriptor and
// mailboxes made sense. It says nothing about the command.
type Delivery uint8

// MLX5_CMD_DELIVERY_STAT_* of the driver's cmd.c.
const (
	DeliveryOK          Delivery = 0x0
	DeliverySignature   Delivery = 0x1
	DeliveryToken       Delivery = 0x2
	DeliveryBlockNumber Delivery = 0x3
	DeliveryOutAlign    Delivery = 0x4
	DeliveryInAlign     Delivery = 0x5
	DeliveryFirmware    Delivery = 0x6
	DeliveryInLength    Delivery = 0x7
	DeliveryOutLength   Delivery = 0x8
	DeliveryReserved    Delivery = 0x9
	DeliveryDescriptor  Delivery = 0x10
)

// The command queue entry (struct mlx5_cmd_layout in linux/mlx5/device.h).
const (
	logEntry   = 6
	entryBytes = 1 << logEntry

	atType     = 0x00
	atInLen    = 0x04
	atInPtr    = 0x08
	atIn       = 0x10
	atOut      = 0x20
	atOutPtr   = 0x30
	atOutLen   = 0x38
	atToken    = 0x3c
	atSig      = 0x3d
	atReserved = 0x3e
	atOwner    = 0x3f

	inline   = 16 // bytes of input and output in the entry itself
	typePCI  = 7
	ownedHW  = 1
	goodSum  = 0xff // of all bytes of something signed, exclusive or
	maxInput = 2 << 20
	maxOut   = 1 << 20
)

// A mailbox (struct mlx5_cmd_prot_block).
const (
	blockData   = 512
	blockNext   = 0x30 // behind the data
	blockNumber = 0x38
	blockToken  = 0x3d
	blockTail   = 0x40
	blockAlign  = 512
)

func sum(b []byte) (x byte) {
	for _, v := range b {
		x ^= v
	}
	return x
}

// maxRunning bounds the goroutines of commands, those of devices that were
// reset included: a driver that resets for ever gets no more.
const maxRunning = 1024

// enter counts a command; leave is its end.
func (f *Function) enter() bool {
	if f.running.Add(1) > maxRunning {
		f.running.Add(-1)
		f.config.Log("more than %d commands of devices that were reset: a doorbell is ignored", maxRunning)
		return false
	}
	return true
}

func (f *Function) leave() { f.running.Add(-1) }

// maxBuffers bounds what the inputs and outputs of commands take: as much as all
// slots need with the longest ones. Where devices were reset under commands that
// still run, less may be left.
const maxBuffers = 32 * (maxInput + maxOut)

// reserve makes room for the input and output of a command.
func (f *Function) reserve(n int64) bool {
	if f.buffers.Add(n) > maxBuffers {
		f.buffers.Add(-n)
		f.config.Log("commands of devices that were reset hold more than %d MiB: a command fails", maxBuffers>>20)
		return false
	}
	return true
}

// command executes the command in a slot.
func (d *device) command(queue uint64, slot int) {
	defer d.f.leave()
	at := queue + uint64(slot)<<logEntry
	// A command that was issued while no event queue heard of it is polled for.
	heard := d.hca.HearsCommands()
	var e [entryBytes]byte
	if err := d.host.ReadDMA(at, e[:]); err != nil {
		d.f.config.Log("slot %d: command queue at %#x: %v", slot, queue, err)
		d.release(slot)
		return
	}
	if e[atOwner]&ownedHW == 0 {
		d.f.config.Log("slot %d: doorbell for an entry that is the driver's", slot)
		d.release(slot)
		return
	}
	status, answered := d.execute(&e)
	if !answered { // the slot stays in use
		return
	}
	if status != DeliveryOK {
		d.f.config.Log("slot %d: delivery status %#x", slot, uint8(status))
		clear(e[atOut : atOut+inline])
	}
	e[atOwner] = byte(status) << 1
	e[atSig] = 0
	e[atSig] = ^sum(e[:])
	d.release(slot) // before the driver can see that it may ring again
	// The ownership bit last: who polls for it must find the rest.
	if d.host.WriteDMA(at+atOut, e[atOut:atOut+inline]) != nil ||
		d.host.WriteDMA(at+atToken, e[atToken:atOwner]) != nil ||
		d.host.WriteDMA(at+atOwner, e[atOwner:]) != nil {
		return
	}
	if heard {
		d.hca.CommandsDone(1 << slot)
	}
}

func (d *device) release(slot int) { d.busy.And(^uint32(1 << slot)) }

// execute takes the command that an entry describes, and writes its answer into
// the entry and its mailboxes. A fault may leave it without an answer.
func (d *device) execute(e *[entryBytes]byte) (status Delivery, answered bool) {
	size := int64(min(binary.BigEndian.Uint32(e[atInLen:]), maxInput)) + int64(min(binary.BigEndian.Uint32(e[atOutLen:]), maxOut))
	if !d.f.reserve(size) {
		return DeliveryFirmware, true
	}
	defer d.f.buffers.Add(-size)
	in, way, status := d.take(e)
	if status != DeliveryOK {
		return status, true
	}
	w := d.f.fate(in)
	if w.delivery != DeliveryOK {
		return w.delivery, true
	}
	out := make([]byte, max(binary.BigEndian.Uint32(e[atOutLen:]), inline))
	switch {
	case d.failed() || d.gone(): // by a fault whose turn was this command
		return DeliveryOK, false
	case w.silent && w.late == 0 && !w.done:
		return DeliveryOK, false
	case w.late > 0 && !d.hold(w.late):
		return DeliveryOK, false
	}
	if w.status != mlx5.StatusOK {
		out[0] = byte(w.status)
		binary.BigEndian.PutUint32(out[4:], w.syndrome)
	} else {
		d.hca.Exec(in, out)
	}
	if w.silent && w.done {
		return DeliveryOK, false
	}
	copy(e[atOut:atOut+inline], out)
	for i, addr := range way {
		from := inline + i*blockData
		if d.host.WriteDMA(addr, out[from:min(from+blockData, len(out))]) != nil {
			return DeliveryFirmware, true
		}
	}
	return DeliveryOK, true
}

// gone reports whether the host was taken away.
func (d *device) gone() bool {
	select {
	case <-d.ended:
		return true
	default:
		return false
	}
}

// hold waits, and reports whether the device is still there then.
func (d *device) hold(t time.Duration) bool {
	timer := time.NewTimer(t)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-d.ended:
		return false
	}
}

// take reads the command that an entry describes and looks at the way of its
// answer, before anything happens.
func (d *device) take(e *[entryBytes]byte) (in []byte, way []uint64, status Delivery) {
	inLen, outLen := binary.BigEndian.Uint32(e[atInLen:]), binary.BigEndian.Uint32(e[atOutLen:])
	inPtr, outPtr := binary.BigEndian.Uint64(e[atInPtr:]), binary.BigEndian.Uint64(e[atOutPtr:])
	switch {
	case e[atType] != typePCI:
		return nil, nil, DeliveryDescriptor
	case sum(e[:]) != goodSum:
		return nil, nil, DeliverySignature
	case e[1]|e[2]|e[3]|e[atReserved] != 0:
		return nil, nil, DeliveryReserved
	case inLen > maxInput:
		return nil, nil, DeliveryInLength
	case outLen > maxOut:
		return nil, nil, DeliveryOutLength
	case inLen > inline && inPtr%blockAlign != 0:
		return nil, nil, DeliveryInAlign
	case outLen > inline && outPtr%blockAlign != 0:
		return nil, nil, DeliveryOutAlign
	}
	in = append(make([]byte, 0, min(inLen, 1<<12)), e[atIn:atIn+min(inLen, inline)]...)
	var block [blockData + blockTail]byte
	status = d.chain(inPtr, int(inLen)-inline, e[atToken], DeliveryInAlign, block[:], func(_ uint64, data []byte) {
		in = append(in, data...)
	})
	if status != DeliveryOK {
		return nil, nil, status
	}
	status = d.chain(outPtr, int(outLen)-inline, e[atToken], DeliveryOutAlign, block[blockData:], func(addr uint64, _ []byte) {
		way = append(way, addr)
	})
	return in, way, status
}

// chain walks the n bytes in the mailboxes from next on, and calls f with the
// address of each and the data that it holds. Their number follows from n, and
// each has to have its own: a chain that loops ends at its first repetition.
// buf is for a whole mailbox, or for what is behind its data if that does not
// matter.
func (d *device) chain(next uint64, n int, token byte, misaligned Delivery, buf []byte, f func(addr uint64, data []byte)) Delivery {
	skip := blockData + blockTail - len(buf)
	tail := buf[len(buf)-blockTail:]
	for i := uint32(0); n > 0; i++ {
		switch {
		case next%blockAlign != 0:
			return misaligned
		case d.host.ReadDMA(next+uint64(skip), buf) != nil:
			return DeliveryFirmware
		case binary.BigEndian.Uint32(tail[blockNumber:]) != i:
			return DeliveryBlockNumber
		case tail[blockToken] != token:
			return DeliveryToken
		}
		k := min(n, blockData)
		f(next, buf[:min(k, len(buf)-blockTail)])
		n -= k
		next = binary.BigEndian.Uint64(tail[blockNext:])
	}
	return DeliveryOK
}
