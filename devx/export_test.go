// SPDX-License-Identifier: BSD-2-Clause

package devx

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"devxlab.example/devx/abi"
)

// OpenFile opens the file behind a name, for tests that put their own in its
// place.
func OpenFile(name string) (File, Info, error) { return openFile(name) }

// ModifyExtended is Modify by EX_MODIFY_QP, also without a rate.
func (v *VerbsQP) ModifyExtended(a QPAttr, mask AttrMask) error {
	s, err := v.begin()
	if err != nil {
		return err
	}
	defer v.end(s)
	return s.modifyBy(abi.EX_MODIFY_QP, v, &a, mask)
}

// VerbsAttrs translates an encoded transition.
var VerbsAttrs = verbsAttrs

// VerbsMasks are the bits that a transition requires and takes.
var VerbsMasks = verbsMasks

// ViewOf is a part of a buffer as a struct of package abi.
func ViewOf[T any](b []byte) *T { return viewOf[T](b) }

// BatchIoctl issues the batch ioctl for queue pairs, also with what SendBatch
// would refuse.
func (s *Submitter) BatchIoctl(qps []*QP, lens []uint16, cmds []byte, results int) unix.Errno {
	const atLens, atHandles = 1 << 14, 1 << 15
	for i, q := range qps {
		binary.LittleEndian.PutUint32(s.in[atHandles+4*i:], q.obj.handle)
	}
	for i, n := range lens {
		binary.LittleEndian.PutUint16(s.in[atLens+2*i:], n)
	}
	copy(s.in, cmds)
	s.begin(abi.MLX5_IB_OBJECT_DEVX_OBJ, abi.MLX5_IB_METHOD_DEVX_QP_MODIFY_BATCH)
	s.inputAt(abi.MLX5_IB_ATTR_DEVX_QP_MODIFY_BATCH_HANDLES, atHandles, 4*len(qps))
	s.inputAt(abi.MLX5_IB_ATTR_DEVX_QP_MODIFY_BATCH_CMD_LENS, atLens, 2*len(lens))
	s.input(abi.MLX5_IB_ATTR_DEVX_QP_MODIFY_BATCH_CMDS, len(cmds))
	s.output(abi.MLX5_IB_ATTR_DEVX_QP_MODIFY_BATCH_RESULTS, results)
	errno, err := s.call()
	if err != nil {
		return unix.ENODEV
	}
	return errno
}
