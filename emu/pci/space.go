// SPDX-License-Identifier: BSD-2-Clause

package pci

import (
	"encoding/binary"
	"fmt"
)

// Places in configuration space, as the reference card has them
// (15b3:101d, lspci).
const (
	capPM     = 0x40
	capVPD    = 0x48
	capPCIe   = 0x60
	capMSIX   = 0x9c
	capVendor = 0xc0
	capAER    = 0x100

	capARI       = 0x150
	capSecondary = 0x1c0 // PCI Express
	capMargining = 0x320
	cap16GT      = 0x370
	capDataLink  = 0x420
)

// extended is the chain of extended capabilities: place, id and size (PCI_EXT_CAP_ID_*
// in linux/pci_regs.h). The card has SR-IOV in it too, at 0x180.
var extended = []struct{ at, id, size int }{
	{capAER, 0x01, 0x48},
	{capARI, 0x0e, 0x08},
	{capSecondary, 0x19, 0x0c + 2*lanes},
	{capMargining, 0x27, 0x08 + 4*lanes},
	{cap16GT, 0x26, 0x20 + lanes},
	{capDataLink, 0x25, 0x0c},
}

const lanes = 16

// Registers of the PCI Express capability.
const (
	devCap  = capPCIe + 0x04
	devCtl  = capPCIe + 0x08
	lnkCap  = capPCIe + 0x0c
	lnkCtl  = capPCIe + 0x10
	lnkSta  = capPCIe + 0x12
	devCap2 = capPCIe + 0x24
	devCtl2 = capPCIe + 0x28
	lnkCap2 = capPCIe + 0x2c
	lnkCtl2 = capPCIe + 0x30
	lnkSta2 = capPCIe + 0x32

	initiateFLR = 0x80 // of the second byte of devCtl
)

// The MSI-X table and its pending bits in BAR 0.
const (
	tableAt  = 0x2000
	tableEnd = tableAt + vectors*16
	pbaAt    = 0x3000
)

// space is configuration space, and the MSI-X table, which lives as long.
// Nothing here reads that table: who delivers interrupts (QEMU) keeps its own.
type space struct {
	b     [4096]byte
	mask  [4096]byte // bits that can be written
	table [vectors * 16]byte
	vpd   []byte
	vsc   gateway
}

var le = binary.LittleEndian

func (s *space) init(mac [6]byte) {
	vpd := s.vpd
	*s = space{vpd: vpd}
	if vpd == nil {
		s.vpd = makeVPD(mac)
	}
	b, w := s.b[:], s.mask[:]
	le.PutUint16(b[0x00:], 0x15b3)
	le.PutUint16(b[0x02:], 0x101d)
	le.PutUint16(w[0x04:], 0x0546) // memory, master, parity, SERR, INTx off
	le.PutUint16(b[0x06:], 0x0010) // has capabilities
	b[0x0b] = 0x02                 // class 0x020000, Ethernet
	b[0x0c], w[0x0c] = 0x08, 0xff  // cache line: 32 bytes
	le.PutUint32(b[0x10:], 0xc)    // BAR 0: 64 bits, prefetchable
	le.PutUint32(w[0x10:], 1<<32-barSize)
	le.PutUint32(w[0x14:], 1<<32-1)
	le.PutUint16(b[0x2c:], 0x15b3)
	le.PutUint16(b[0x2e:], 0x0047)
	b[0x34] = capPCIe
	w[0x3c] = 0xff
	// No interrupt pin, other than the card: QEMU would want INTx delivered.

	b[capPCIe], b[capPCIe+1] = 0x10, capVPD
	le.PutUint16(b[capPCIe+2:], 0x0002) // version 2, endpoint
	// 512 bytes of payload, extended tags, no limit to L0s and L1, role-based
	// errors, 75 W, FLR.
	le.PutUint32(b[devCap:], 2|1<<5|7<<6|7<<9|1<<15|75<<18|1<<28)
	le.PutUint16(b[devCtl:], 0x2810) // relaxed order, no snoop, reads of 512 bytes
	le.PutUint16(w[devCtl:], 0x7fff)
	le.PutUint32(b[lnkCap:], 4|16<<4|1<<22) // 16 GT/s, x16
	le.PutUint16(w[lnkCtl:], 0x01cb)
	le.PutUint16(b[lnkSta:], 4|16<<4|1<<12)
	le.PutUint32(b[devCap2:], 7|1<<4|1<<16)
	le.PutUint16(w[devCtl2:], 0x105f)
	le.PutUint32(b[lnkCap2:], 0x1e|3<<23)
	le.PutUint16(b[lnkCtl2:], 4)
	le.PutUint16(w[lnkCtl2:], 0x000f)
	le.PutUint16(b[lnkSta2:], 0x1e)

	b[capVPD], b[capVPD+1] = 0x03, capMSIX

	b[capMSIX], b[capMSIX+1] = 0x11, capVendor
	le.PutUint16(b[capMSIX+2:], vectors-1)
	w[capMSIX+3] = 0xc0 // enable, mask all
	le.PutUint32(b[capMSIX+4:], tableAt)
	le.PutUint32(b[capMSIX+8:], pbaAt)
	for i := range vectors {
		s.table[i*16+12] = 1 // masked
	}

	b[capVendor], b[capVendor+1], b[capVendor+2] = 0x09, capPM, gatewayBytes

	b[capPM] = 0x01
	le.PutUint16(b[capPM+2:], 3|7<<6|1<<15) // version 3, 375 mA, PME from D3cold
	le.PutUint16(b[capPM+4:], 0x0008)       // no soft reset
	le.PutUint16(w[capPM+4:], 0x0103)

	for i, c := range extended {
		next := 0
		if i+1 < len(extended) {
			next = extended[i+1].at
		}
		le.PutUint32(b[c.at:], uint32(next)<<20|1<<16|uint32(c.id)) // version 1
	}
	b[cap16GT+0x0c] = 0x0f               // its status: equalised, in all phases
	le.PutUint32(b[capAER+0x08:], 1<<20) // masked: unsupported request
	le.PutUint32(w[capAER+0x08:], 0x0477f030)
	le.PutUint32(b[capAER+0x0c:], 1<<4|1<<13|1<<17|1<<18)
	le.PutUint32(w[capAER+0x0c:], 0x0477f030)
	le.PutUint32(b[capAER+0x14:], 1<<13)
	le.PutUint32(w[capAER+0x14:], 0x0000f1c1)
	le.PutUint32(b[capAER+0x18:], 8|1<<5|1<<7)
	le.PutUint32(w[capAER+0x18:], 1<<6|1<<8)
}

func (s *space) read(off int, b []byte) {
	for i := range b {
		b[i] = 0xff
		if at := off + i; at >= 0 && at < len(s.b) {
			b[i] = s.byteAt(at)
		}
	}
}

func (s *space) byteAt(at int) byte {
	if at >= capVendor+4 && at < capVendor+gatewayBytes {
		return s.vsc.read(at - capVendor)
	}
	return s.b[at]
}

// write reports whether it is a function level reset.
func (s *space) write(off int, b []byte) (flr bool) {
	for i, v := range b {
		at := off + i
		if at < 0 || at >= len(s.b) {
			continue
		}
		if at == devCtl+1 && v&initiateFLR != 0 {
			flr = true
		}
		s.b[at] = s.b[at]&^s.mask[at] | v&s.mask[at]
	}
	if off == capVPD+2 && len(b) >= 2 {
		s.readVPD(le.Uint16(b))
	}
	if off >= capVendor+4 && off+4 <= capVendor+gatewayBytes && len(b) == 4 && off%4 == 0 {
		s.vsc.write(off-capVendor, le.Uint32(b))
	}
	return flr
}

func (s *space) readTable(off int64, b []byte) {
	for i := range b {
		b[i] = 0
		if at := off + int64(i) - tableAt; at >= 0 && at < int64(len(s.table)) {
			b[i] = s.table[at]
		}
	}
}

func (s *space) writeTable(off int64, b []byte) {
	for i, v := range b {
		if at := off + int64(i) - tableAt; at >= 0 && at < int64(len(s.table)) {
			s.table[at] = v
		}
	}
}

// vpdDone is the flag of the VPD address register: data is there.
const vpdDone = 0x8000

// readVPD answers a read of vital product data; writes are not taken.
func (s *space) readVPD(addr uint16) {
	if addr&vpdDone != 0 {
		return
	}
	var data [4]byte
	if int(addr) < len(s.vpd) {
		copy(data[:], s.vpd[addr:])
	}
	copy(s.b[capVPD+4:], data[:])
	le.PutUint16(s.b[capVPD+2:], addr|vpdDone)
}

// makeVPD returns vital product data: the product's name, part and serial
// numbers.
func makeVPD(mac [6]byte) []byte {
	const name = "devxlab emulated ConnectX-6 Dx"
	field := func(b []byte, key, value string) []byte {
		return append(append(append(b, key...), byte(len(value))), value...)
	}
	b := append([]byte{0x82, byte(len(name)), 0}, name...)
	ro := field(nil, "PN", "MCX623106AN-CDAT")
	ro = field(ro, "EC", "A1")
	ro = field(ro, "SN", fmt.Sprintf("EMU%x", mac))
	ro = field(ro, "V0", "PCIeGen4 x16")
	b = append(b, 0x90, byte(len(ro)+4), 0)
	b = append(append(b, ro...), "RV\x01"...)
	sum := byte(0)
	for _, x := range b {
		sum += x
	}
	return append(b, -sum, 0x78)
}

// gateway is the vendor specific capability, through which tools and the
// driver's dump reach inside the device (driver, lib/pci_vsc.c). This device
// has one space there: semaphores. Others read as not supported.
type gateway struct {
	space     uint16
	addr      uint32
	data      uint32
	counter   uint32
	owner     uint32
	semaphore [gatewaySemaphores]uint32
}

const (
	gatewayBytes      = 0x18
	gatewayControl    = 0x04
	gatewayCounter    = 0x08
	gatewayOwner      = 0x0c
	gatewayAddr       = 0x10
	gatewayData       = 0x14
	gatewaySemaphores = 1024 // the driver's for resets is 0x20

	spaceSemaphore = 0xa
	spaceThere     = 1 << 29 // status of the control register
	gatewayFlag    = 1 << 31
)

func (g *gateway) read(at int) byte {
	var v uint32
	switch at &^ 3 {
	case gatewayControl:
		v = uint32(g.space)
		if g.space == spaceSemaphore {
			v |= spaceThere
		}
	case gatewayCounter:
		v = g.counter
		if at&3 == 3 { // the last byte of a read: the next one gets another number
			g.counter++
		}
		v++
	case gatewayOwner:
		v = g.owner
	case gatewayAddr:
		v = g.addr
	case gatewayData:
		v = g.data
	}
	return byte(v >> (at & 3 * 8))
}

func (g *gateway) write(at int, v uint32) {
	switch at {
	case gatewayControl:
		g.space = uint16(v)
	case gatewayOwner:
		if g.owner == 0 || v == 0 {
			g.owner = v
		}
	case gatewayData:
		g.data = v
	case gatewayAddr:
		i := v &^ gatewayFlag
		g.addr = v
		if g.space != spaceSemaphore || i >= gatewaySemaphores {
			return
		}
		// A write has the flag set and is done when the device clears it; a read the
		// reverse.
		if v&gatewayFlag != 0 {
			if g.semaphore[i] == 0 || g.data == 0 {
				g.semaphore[i] = g.data
			}
		} else {
			g.data = g.semaphore[i]
		}
		g.addr ^= gatewayFlag
	}
}
