// SPDX-License-Identifier: BSD-2-Clause

package fw

import "encoding/binary"

// Opcodes of work requests (linux/mlx5/device.h, MLX5_OPCODE_*).
const (
	opNOP       = 0x00
	opSendInval = 0x01
	opWrite     = 0x08
	opWriteImm  = 0x09
	opSend      = 0x0a
	opSendImm   = 0x0b
	opLSO       = 0x0e
	opRead      = 0x10
	opCAS       = 0x11
	opFetchAdd  = 0x12
	opUMR       = 0x25
)

// Segments of a work request (struct mlx5_wqe_*_seg in linux/mlx5/qp.h).
const (
	segBytes  = 16 // the unit, and the size of most segments
	avBytes   = 48 // struct mlx5_av
	maxWQE    = 63 * segBytes
	inlineBit = 1 << 31

	wqeCompletion = 0x08 // of byte 11, fm_ce_se
	wqeSolicited  = 0x02
	wqeFence      = 0xe0
	wqeFenceSmall = 0x20 // initiator small fence: for UMR only
)

// sge is a piece of memory of the host, or data that stands in the request.
type sge struct {
	n      uint32
	key    uint32
	va     uint64
	inline []byte // nil: none
}

// wqe is a work request of a send queue.
type wqe struct {
	op        byte
	signalled bool
	solicited bool
	fence     bool // it waits for the RDMA READs and atomics before it
	index     uint16
	blocks    uint16
	imm       uint32 // immediate data, or a key
	va        uint64 // remote
	key       uint32
	swap      uint64 // or what to add
	compare   uint64
	srqn      uint32 // of XRC
	av        [avBytes]byte
	seg       []byte // of UMR: all behind the control segment
	sges      []sge
	bytes     uint64

	raw [maxWQE]byte
}

// parse takes a request of ds units apart. What it finds lies in w.raw. It
// returns false if the request makes no sense.
func (w *wqe) parse(ds int, st serviceKind) bool {
	b := w.raw[:ds*segBytes]
	w.op = b[3]
	w.signalled, w.solicited = b[11]&wqeCompletion != 0, b[11]&wqeSolicited != 0
	w.fence = b[11]&wqeFence != 0 && b[11]&wqeFence != wqeFenceSmall
	w.imm = binary.BigEndian.Uint32(b[12:])
	w.va, w.key, w.swap, w.compare, w.srqn, w.seg, w.sges, w.bytes = 0, 0, 0, 0, 0, nil, w.sges[:0], 0
	b = b[segBytes:]
	head := func(n int) []byte {
		if len(b) < n {
			return nil
		}
		h := b[:n]
		b = b[n:]
		return h
	}
	switch st {
	case kindXRC:
		if w.op == opNOP || w.op == opUMR {
			break
		}
		h := head(segBytes)
		if h == nil {
			return false
		}
		w.srqn = binary.BigEndian.Uint32(h) & 0xffffff
	case kindUD:
		if w.op == opNOP || w.op == opUMR {
			break
		}
		h := head(avBytes)
		if h == nil {
			return false
		}
		copy(w.av[:], h)
	}
	switch w.op {
	case opNOP:
		return true
	case opUMR:
		w.seg = b
		return true
	case opWrite, opWriteImm, opRead, opCAS, opFetchAdd:
		h := head(segBytes)
		if h == nil {
			return false
		}
		w.va, w.key = binary.BigEndian.Uint64(h), binary.BigEndian.Uint32(h[8:])
	case opSend, opSendImm, opSendInval:
	default:
		return false
	}
	if w.op == opCAS || w.op == opFetchAdd {
		h := head(segBytes)
		if h == nil {
			return false
		}
		w.swap, w.compare = binary.BigEndian.Uint64(h), binary.BigEndian.Uint64(h[8:])
	}
	var good bool
	w.sges, w.bytes, good = appendSGEs(w.sges, b)
	return good && w.bytes <= 1<<31
}

// appendSGEs takes data segments apart.
func appendSGEs(s []sge, b []byte) (_ []sge, total uint64, good bool) {
	for len(b) >= segBytes {
		n := binary.BigEndian.Uint32(b)
		if n&inlineBit != 0 {
			n &^= inlineBit
			took := (4 + int(n) + segBytes - 1) / segBytes * segBytes
			if took > len(b) {
				return s, 0, false
			}
			s = append(s, sge{n: n, inline: b[4 : 4+n]})
			b = b[took:]
			total += uint64(n)
			continue
		}
		if n > 0 {
			s = append(s, sge{n: n, key: binary.BigEndian.Uint32(b[4:]), va: binary.BigEndian.Uint64(b[8:])})
		}
		total += uint64(n)
		b = b[segBytes:]
	}
	return s, total, len(b) == 0
}

// gather reads what stands at an offset of a list of pieces.
func (h *HCA) gather(who *user, s []sge, off uint64, b []byte) bool {
	return h.move(who, s, off, b, false)
}

// scatter writes there.
func (h *HCA) scatter(who *user, s []sge, off uint64, b []byte) bool {
	return h.move(who, s, off, b, true)
}

func (h *HCA) move(who *user, s []sge, off uint64, b []byte, write bool) bool {
	need := localRead
	if write {
		need = localWrite
	}
	for i := range s {
		if len(b) == 0 {
			return true
		}
		p := &s[i]
		if off >= uint64(p.n) {
			off -= uint64(p.n)
			continue
		}
		n := min(uint64(p.n)-off, uint64(len(b)))
		switch {
		case p.inline == nil:
			if !h.dma(who, p.key, p.va+off, b[:n], need, write) {
				return false
			}
		case write:
			return false
		default:
			copy(b[:n], p.inline[off:])
		}
		b, off = b[n:], 0
	}
	return len(b) == 0
}

// allowed reports whether a list of pieces may be read or written.
func (h *HCA) allowed(who *user, s []sge, need access) bool {
	for i := range s {
		if s[i].inline != nil && need == localRead {
			continue
		}
		if s[i].inline != nil || !h.allows(who, s[i].key, s[i].va, uint64(s[i].n), need) {
			return false
		}
	}
	return true
}
