// SPDX-License-Identifier: BSD-2-Clause

package devx

import (
	"encoding/binary"
	"math"

	"golang.org/x/sys/unix"

	"devxlab.example/devx/abi"
	"devxlab.example/mlx5"
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

// XRCTarget makes an XRC target queue pair and a second handle of it, as
// ibv_open_qp does: two objects of the kernel, with one number. They live as long as
// the context.
func (s *Submitter) XRCTarget() (q, again *QP, err error) {
	const openXRCD, openQP, xrcTarget = 37, 40, 10 // enum ib_uverbs_write_cmds and ib_uverbs_qp_type, rdma/ib_user_verbs.h
	handles := [2]*QP{{st: mlx5.STRC}, {st: mlx5.STRC}}
	none := uint32(math.MaxUint32)
	m := &abi.WriteMethod{Name: "OPEN_XRCD", Cmd: openXRCD, Req: 16, Resp: 8}
	in := s.in[m.HeaderLen():]
	clear(in[:m.Req])
	binary.LittleEndian.PutUint32(in[8:], none) // no file
	binary.LittleEndian.PutUint32(in[12:], unix.O_CREAT)
	if err := s.verbs(m); err != nil {
		return nil, nil, err
	}
	domain := binary.LittleEndian.Uint32(s.out)

	m = s.beginWrite(abi.IB_USER_VERBS_CMD_CREATE_QP)
	*request[abi.CreateQP](s, m) = abi.CreateQP{PDHandle: domain, QPType: xrcTarget}
	for i, h := range handles {
		if err := s.verbs(m); err != nil {
			return nil, nil, err
		}
		resp := response[abi.CreateQPResp](s)
		h.obj.handle, h.qpn = resp.QPHandle, resp.QPN
		if i == 0 {
			m = &abi.WriteMethod{Name: "OPEN_QP", Cmd: openQP, Req: 32, Resp: m.Resp}
			clear(in[:m.Req])
			binary.LittleEndian.PutUint32(in[16:], domain)
			binary.LittleEndian.PutUint32(in[20:], h.qpn)
			in[24] = xrcTarget
		}
	}
	return handles[0], handles[1], nil
}
