// SPDX-License-Identifier: BSD-2-Clause

package devxtest

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"devxlab.example/devx/abi"
)

// modifyBatch is the ioctl of a patched kernel. Input of up to 8 bytes stands in
// the attribute.
func (f *file) modifyBatch(h abi.Header) unix.Errno {
	if f.stub.Batch == nil {
		return unix.EPROTONOSUPPORT
	}
	var part [4][]byte
	for i := range int(h.NumAttrs()) {
		a := h.Attr(i)
		at := int(a.ID() - abi.MLX5_IB_ATTR_DEVX_QP_MODIFY_BATCH_HANDLES)
		if at >= len(part) {
			return unix.EPROTONOSUPPORT
		}
		if a.ID() != abi.MLX5_IB_ATTR_DEVX_QP_MODIFY_BATCH_RESULTS && a.Len() <= abi.InlineSize {
			part[at] = a[8:][:a.Len()]
			continue
		}
		b, mapped := resolve(a)
		if !mapped {
			return unix.EFAULT
		}
		part[at] = b
	}
	handles, lens, cmds, results := part[0], part[1], part[2], part[3]
	n := len(handles) / 4
	if n < 1 || n > abi.QPModifyBatchMax || len(lens) != 2*n || len(results) != abi.QPModifyResultSize*n {
		return unix.EINVAL
	}
	word := binary.LittleEndian.Uint32
	size := func(i int) int { return int(binary.LittleEndian.Uint16(lens[2*i:])) }
	at := 0
	for i := range n {
		at += size(i)
		for j := range i {
			if word(handles[4*j:]) == word(handles[4*i:]) {
				return unix.EINVAL
			}
		}
	}
	if at != len(cmds) {
		return unix.EINVAL
	}
	for i := range n {
		r := abi.QPModifyResult(results[abi.QPModifyResultSize*i:][:abi.QPModifyResultSize])
		binary.LittleEndian.PutUint32(r, uint32(-int32(f.stub.Batch(cmds[:size(i)], r.Outbox()))))
		cmds = cmds[size(i):]
	}
	return 0
}
