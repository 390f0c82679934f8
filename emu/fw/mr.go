// SPDX-License-Identifier: BSD-2-Clause

package fw

import (
	"encoding/binary"
	"slices"

	"devxlab.example/mlx5"
)

// access is what somebody may do to memory.
type access uint8

const (
	localRead access = iota // always allowed to who may use the key
	localWrite
	remoteRead
	remoteWrite
	remoteAtomic
)

// user is who uses memory keys: a queue pair or a queue of Ethernet frames.
type user struct {
	pd       uint32
	qpn      uint32
	reserved bool // it may use the reserved key: physical addresses
}

const (
	anyQPN = 0xffffff
	// maxKeyDepth is how deep keys of other keys may lie in each other.
	maxKeyDepth = 3
	klmBytes    = 16
	// minKSMShift is the least size of what a KSM entry refers to, as log2: the
	// driver's smallest (mlx5e's MLX5E_SHAMPO_LOG_HEADER_ENTRY_SIZE).
	minKSMShift = 8
	// maxUMRBytes bounds the memory that UMR work requests make all keys take.
	maxUMRBytes = 256 << 20
	// lkeyEnd ends a list of receive buffers (MLX5_INVALID_LKEY); a reserved
	// key, so never one of an object.
	lkeyEnd = 0x100
)

// translation is what a memory key refers to.
type translation struct {
	buf  buffer // pages, from the start address rounded down to the page size
	list []byte // of keys: KLM or KSM entries

	klms *klmList // of the list; nil: not yet made
}

// keyOf returns the memory key that a 32-bit key names, locked, if the user may
// do what it wants to n bytes at va.
func (h *HCA) keyOf(who *user, key uint32, va, n uint64, need access) *mkey {
	m := h.mkeys.get(key >> 8)
	if m == nil {
		return nil
	}
	m.mu.Lock()
	c := mlx5.MKC(m.ctx[:])
	if m.live.Load() && c.MKey70() == byte(key) && !c.Free() && c.PD() == who.pd && (c.QPN() == anyQPN || c.QPN() == who.qpn) &&
		permits(c, need) && m.spans(va, n) {
		return m
	}
	m.mu.Unlock()
	return nil
}

func permits(c mlx5.MKC, need access) bool {
	switch need {
	case localWrite:
		return c.Lw()
	case remoteRead:
		return c.Rr()
	case remoteWrite:
		return c.Rw()
	case remoteAtomic:
		return c.A()
	}
	return true
}

// spans reports whether the key's range has n bytes at va.
func (m *mkey) spans(va, n uint64) bool {
	c := mlx5.MKC(m.ctx[:])
	if c.Length64() {
		return true
	}
	off := va - c.StartAddr()
	return va >= c.StartAddr() && off <= c.Len() && n <= c.Len()-off
}

// allows reports whether a user may do what it wants to n bytes at va.
func (h *HCA) allows(who *user, key uint32, va, n uint64, need access) bool {
	if key == reservedLkey && who.reserved && need <= localWrite {
		return true
	}
	m := h.keyOf(who, key, va, n, need)
	if m == nil {
		return false
	}
	m.mu.Unlock()
	return true
}

// dma reads b from what a key says is at va, or writes it there.
func (h *HCA) dma(who *user, key uint32, va uint64, b []byte, need access, write bool) bool {
	return h.dmaWithin(who, key, va, b, need, write, maxKeyDepth)
}

func (h *HCA) dmaWithin(who *user, key uint32, va uint64, b []byte, need access, write bool, depth int) bool {
	if len(b) == 0 {
		return true
	}
	do := h.mem.ReadDMA
	if write {
		do = h.mem.WriteDMA
	}
	if key == reservedLkey && who.reserved && need <= localWrite {
		return do(va, b) == nil
	}
	m := h.keyOf(who, key, va, uint64(len(b)), need)
	if m == nil {
		return false
	}
	c := mlx5.MKC(m.ctx[:])
	switch c.AccessMode10() | c.AccessMode42()<<2 {
	case accessPA:
		defer m.mu.Unlock()
		return do(va, b) == nil
	case accessMTT:
		defer m.mu.Unlock()
		off := va - c.StartAddr()
		if m.umem == 0 {
			off = va - c.StartAddr()&^(1<<m.at.buf.shift-1)
		}
		return m.at.buf.each(off, b, do) == nil
	}
	pieces, fits := m.pieces(va-c.StartAddr(), uint64(len(b)))
	m.mu.Unlock()
	if !fits || depth == 0 {
		return false
	}
	for _, p := range pieces {
		// What the key above may do, its parts may; of their own they need the domain.
		inner := localRead
		if write {
			inner = localWrite
		}
		if !h.dmaWithin(who, p.key, p.va, b[:p.n], inner, write, depth-1) {
			return false
		}
		b = b[p.n:]
	}
	return true
}

// piece is a part of what a key of other keys refers to.
type piece struct {
	key uint32
	va  uint64
	n   uint64
}

// A repeated block among KLM entries (struct mlx5_wqe_umr_repeat_block_seg in
// rdma-core's mlx5dv.h): a header of 16 bytes, then entries with strides.
const repeatBlock = 0x400

// klm is an entry of a list of keys that refers to some bytes.
type klm struct {
	end    uint64 // where in the key, or in the round, it ends
	size   uint64
	stride uint64
	key    uint32
	va     uint64
}

// klmList is a list of keys as it is looked up: without entries of no bytes, which
// a program may put there by the thousand.
type klmList struct {
	list  []klm
	times uint64 // rounds of it; 1 unless it is a repeated block
}

// total is how many bytes a round has.
func (p *klmList) total() uint64 {
	if len(p.list) == 0 {
		return 0
	}
	return p.list[len(p.list)-1].end
}

// klmsOf takes a list of KLM entries apart. A repeated block whose entries have
// not the bytes that its header says refers to nothing.
func klmsOf(list []byte) *klmList {
	p := &klmList{times: 1}
	add := func(size, stride uint64, e []byte) {
		if size > 0 {
			p.list = append(p.list, klm{p.total() + size, size, stride, binary.BigEndian.Uint32(e[4:]), binary.BigEndian.Uint64(e[8:])})
		}
	}
	if len(list) < klmBytes || binary.BigEndian.Uint32(list[4:]) != repeatBlock {
		for ; len(list) >= klmBytes; list = list[klmBytes:] {
			add(uint64(binary.BigEndian.Uint32(list)), 0, list)
		}
		return p
	}
	round, entries := uint64(binary.BigEndian.Uint32(list)), int(binary.BigEndian.Uint16(list[14:]))
	p.times = uint64(binary.BigEndian.Uint32(list[8:]))
	list = list[klmBytes:]
	for e := list[:min(entries*klmBytes, len(list))]; len(e) >= klmBytes; e = e[klmBytes:] {
		add(uint64(binary.BigEndian.Uint16(e[2:])), uint64(binary.BigEndian.Uint16(e)), e)
	}
	if p.total() != round || len(list) < entries*klmBytes {
		p.list = nil
	}
	return p
}

// pieces returns where n bytes at an offset lie.
func (p *klmList) pieces(off, n uint64) (out []piece, fits bool) {
	total := p.total()
	if total == 0 || off/total >= p.times {
		return nil, n == 0
	}
	round, off := off/total, off%total
	i, _ := slices.BinarySearchFunc(p.list, off, func(x klm, off uint64) int {
		if x.end <= off {
			return -1
		}
		return 1
	})
	for n > 0 {
		if i == len(p.list) {
			if i, off, round = 0, 0, round+1; round == p.times {
				return nil, false
			}
		}
		x := &p.list[i]
		in := off - (x.end - x.size)
		k := min(n, x.size-in)
		out = append(out, piece{x.key, x.va + round*x.stride + in, k})
		n, off = n-k, off+k
		i++
	}
	return out, true
}

// pieces returns where n bytes at an offset lie. The key is locked.
func (m *mkey) pieces(off, n uint64) ([]piece, bool) {
	c := mlx5.MKC(m.ctx[:])
	if c.AccessMode10()|c.AccessMode42()<<2 == accessKSM {
		return blocks(m.at.list, c.LogPageSize(), off, n)
	}
	if m.at.klms == nil {
		m.at.klms = klmsOf(m.at.list)
	}
	return m.at.klms.pieces(off, n)
}

// blocks is pieces for KSM entries, each of which refers to 2^shift bytes.
func blocks(list []byte, shift uint8, off, n uint64) (out []piece, fits bool) {
	if shift < minKSMShift {
		return nil, n == 0
	}
	size := uint64(1) << shift
	for i := off >> shift; n > 0; i++ {
		if i >= uint64(len(list)/klmBytes) {
			return nil, false
		}
		e := list[i*klmBytes:]
		in := off & (size - 1)
		k := min(n, size-in)
		out = append(out, piece{binary.BigEndian.Uint32(e[4:]), binary.BigEndian.Uint64(e[8:]) + in, k})
		n, off = n-k, off+k
	}
	return out, true
}

// translate takes over the translation that stands in a CREATE_MKEY.
func (m *mkey) translate(c mlx5.MKC, list []byte) {
	m.at = translation{}
	if len(list) == 0 {
		return
	}
	switch c.AccessMode10() | c.AccessMode42()<<2 {
	case accessMTT:
		m.at.setPages(c.LogPageSize(), list)
	case accessKLM, accessKSM:
		m.at.list = append([]byte(nil), list...)
	}
}

func (t *translation) setPages(shift uint8, list []byte) {
	t.buf.shift = shift
	t.buf.page = make([]uint64, len(list)/pasBytes)
	for i := range t.buf.page {
		t.buf.page[i] = binary.BigEndian.Uint64(list[i*pasBytes:]) &^ mttFlags
	}
}

// mttFlags are the low bits of an entry that are no address (MLX5_MTT_PERM_*,
// linux/mlx5: present, read and write).
const mttFlags = 7

// Fields of a key that a UMR work request changes (MLX5_MKEY_MASK_* in
// linux/mlx5/device.h).
const (
	umrLen      = 1 << 0
	umrPageSize = 1 << 1
	umrStart    = 1 << 6
	umrPD       = 1 << 7
	umrRinval   = 1 << 8
	umrSigErr   = 1 << 9
	umrBSF      = 1 << 12
	umrKey      = 1 << 13
	umrQPN      = 1 << 14
	umrLR       = 1 << 17
	umrLW       = 1 << 18
	umrRR       = 1 << 19
	umrRW       = 1 << 20
	umrA        = 1 << 21
	umrFence    = 1 << 23
	umrROWrite  = 1 << 25
	umrFree     = 1 << 29
	umrRORead   = 1 << 47

	umrKnown = umrLen | umrPageSize | umrStart | umrPD | umrRinval | umrKey | umrQPN | umrLR | umrLW | umrRR | umrRW | umrA | umrFence |
		umrROWrite | umrFree | umrRORead | umrSigErr | umrBSF // the last two only to say no
)

// Flags of a UMR control segment (MLX5_UMR_* in linux/mlx5/device.h,
// MLX5_WQE_UMR_CTRL_FLAG_* in rdma-core's mlx5dv.h).
const (
	umrInline     = 1 << 7
	umrMustBeUsed = 1 << 6 // fails if the key is free
	umrMustBeFree = 1 << 5
	umrOffset     = 1 << 4
	umrMustBeMine = 1 << 3 // fails if the key is another queue pair's

	umrCtrlBytes = 48
	umrSegBytes  = 64
)

// updateKey executes a UMR work request: seg is its control segment, context
// and what follows. It changes nothing unless all of it is right.
func (h *HCA) updateKey(who *user, kernel bool, key uint32, seg []byte) bool {
	if len(seg) < umrCtrlBytes {
		return false
	}
	ctrl := seg[:umrCtrlBytes]
	flags, mask := ctrl[0], binary.BigEndian.Uint64(ctrl[8:])
	octowords := uint64(binary.BigEndian.Uint16(ctrl[4:]))
	offset := uint64(0)
	if flags&umrOffset != 0 {
		offset = uint64(binary.BigEndian.Uint32(ctrl[16:]))<<16 | uint64(binary.BigEndian.Uint16(ctrl[6:]))
	}
	var src mlx5.MKC
	rest := seg[umrCtrlBytes:]
	if mask != 0 || len(rest) >= umrSegBytes {
		if len(rest) < umrSegBytes {
			return false
		}
		src, rest = mlx5.MKC(rest[:umrSegBytes:umrSegBytes]), rest[umrSegBytes:]
	}
	list := rest
	if octowords > 0 && flags&umrInline == 0 {
		if len(rest) < 16 || octowords > maxUMRBytes/16 {
			return false
		}
		list = make([]byte, octowords*16)
		if !h.dma(who, binary.BigEndian.Uint32(rest[4:]), binary.BigEndian.Uint64(rest[8:]), list, localRead, false) {
			return false
		}
	}
	// A list counts in blocks of 64 bytes, whose end rdma-core leaves out.
	if short := int(octowords*16) - len(list); short > 0 && short < umrSegBytes {
		list = append(list[:len(list):len(list)], make([]byte, short)...)
	}
	if uint64(len(list)) < octowords*16 || mask&^umrKnown != 0 || mask&umrBSF != 0 && src.BSFEn() {
		return false
	}
	list = list[:octowords*16]
	m := h.mkeys.get(key >> 8)
	if m == nil {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	c := mlx5.MKC(m.ctx[:])
	switch {
	case !m.live.Load() || !c.UMREn() || m.umem != 0, c.PD() != who.pd && !kernel:
		return false
	case mask&umrKey == 0 && c.MKey70() != byte(key):
		return false
	case flags&umrMustBeFree != 0 && !c.Free(), flags&umrMustBeUsed != 0 && c.Free(), flags&umrMustBeMine != 0 && c.QPN() != anyQPN && c.QPN() != who.qpn:
		return false
	case !kernel && c.AccessMode10()|c.AccessMode42()<<2 <= accessMTT && (len(list) > 0 || mask&umrPageSize != 0):
		return false // pages are the kernel's affair, also those of keys that programs use
	case mask&umrPD != 0 && src.PD() != c.PD() && !kernel:
		return false
	}
	move := mask&umrPD != 0 && src.PD() != c.PD()
	if move {
		if to := h.pds.get(src.PD()); to == nil || !to.useAny() {
			return false
		}
	}
	if len(list) > 0 && !h.retranslate(m, list, offset*16) {
		if move {
			h.pds.get(src.PD()).unuse()
		}
		return false
	}
	if move {
		h.pds.get(c.PD()).unuse()
	}
	mergeKey(c, src, mask)
	if mask&umrPageSize != 0 {
		m.at.buf.shift = c.LogPageSize()
	}
	return true
}

// retranslate writes a part of a key's translation; it may not become larger
// than the key was made for.
func (h *HCA) retranslate(m *mkey, list []byte, at uint64) bool {
	c := mlx5.MKC(m.ctx[:])
	limit := (uint64(c.TranslationsOctwordSize())*16 + umrSegBytes - 1) &^ (umrSegBytes - 1)
	end := at + uint64(len(list))
	if end > limit || end > maxUMRBytes {
		return false
	}
	if mode := c.AccessMode10() | c.AccessMode42()<<2; mode == accessMTT {
		n := int(end / pasBytes)
		if grow := n - len(m.at.buf.page); grow > 0 {
			if h.umrBytes.Add(int64(grow*pasBytes)) > maxUMRBytes {
				h.umrBytes.Add(int64(-grow * pasBytes))
				return false
			}
			m.umr += grow * pasBytes
			m.at.buf.page = append(m.at.buf.page, make([]uint64, grow)...)
		}
		if m.at.buf.shift == 0 {
			m.at.buf.shift = max(c.LogPageSize(), 12)
		}
		for i := range len(list) / pasBytes {
			m.at.buf.page[int(at)/pasBytes+i] = binary.BigEndian.Uint64(list[i*pasBytes:]) &^ mttFlags
		}
		return true
	}
	if grow := int(end) - len(m.at.list); grow > 0 {
		if h.umrBytes.Add(int64(grow)) > maxUMRBytes {
			h.umrBytes.Add(int64(-grow))
			return false
		}
		m.umr += grow
		m.at.list = append(m.at.list, make([]byte, grow)...)
	}
	if at == 0 {
		m.at.list = m.at.list[:max(len(list), 0)]
	}
	copy(m.at.list[at:], list)
	m.at.klms = nil
	return true
}

// mergeKey takes over the fields of a mask.
func mergeKey(dst, src mlx5.MKC, mask uint64) {
	set := func(bit uint64, take func()) {
		if mask&bit != 0 {
			take()
		}
	}
	set(umrLen, func() { dst.SetLen(src.Len()); dst.SetLength64(src.Length64()) })
	set(umrPageSize, func() { dst.SetLogPageSize(src.LogPageSize()) })
	set(umrStart, func() { dst.SetStartAddr(src.StartAddr()) })
	set(umrPD, func() { dst.SetPD(src.PD()) })
	set(umrRinval, func() { dst.SetEnRinval(src.EnRinval()) })
	set(umrKey, func() { dst.SetMKey70(src.MKey70()) })
	set(umrQPN, func() { dst.SetQPN(src.QPN()) })
	set(umrLR, func() { dst.SetLr(src.Lr()) })
	set(umrLW, func() { dst.SetLw(src.Lw()) })
	set(umrRR, func() { dst.SetRr(src.Rr()) })
	set(umrRW, func() { dst.SetRw(src.Rw()) })
	set(umrA, func() { dst.SetA(src.A()) })
	set(umrFence, func() { dst.SetSmallFenceOnRdmaReadResponse(src.SmallFenceOnRdmaReadResponse()) })
	set(umrROWrite, func() { dst.SetRelaxedOrderingWrite(src.RelaxedOrderingWrite()) })
	set(umrRORead, func() { dst.SetRelaxedOrderingRead(src.RelaxedOrderingRead()) })
	set(umrFree, func() { dst.SetFree(src.Free()) })
}

// invalidate frees a key that a SEND with invalidate names.
func (h *HCA) invalidate(who *user, key uint32) bool {
	m := h.mkeys.get(key >> 8)
	if m == nil {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	c := mlx5.MKC(m.ctx[:])
	if !m.live.Load() || c.MKey70() != byte(key) || c.PD() != who.pd || !c.EnRinval() || c.Free() {
		return false
	}
	c.SetFree(true)
	return true
}
