// SPDX-License-Identifier: BSD-2-Clause

package devxtest

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"devxlab.example/devx"
	"devxlab.example/devx/abi"
	"devxlab.example/internal/usermem"
)

// verbsFile is a file that has write(2), too.
type verbsFile struct{ *file }

// invokeWrite takes the attributes of the ioctl in any order. Their lengths must
// be those of the command.
func (f *file) invokeWrite(h abi.Header) unix.Errno {
	if f.stub.Verbs == nil {
		return unix.EOPNOTSUPP
	}
	var cmd abi.WriteCmd
	var answer uint64
	var parts [4][]byte // request, driver's part, answer, driver's part
	for i := range int(h.NumAttrs()) {
		a := h.Attr(i)
		at := 0
		switch a.ID() {
		case abi.UVERBS_ATTR_WRITE_CMD:
			cmd = abi.WriteCmd(a.Data())
			continue
		case abi.UVERBS_ATTR_CORE_IN:
		case abi.UVERBS_ATTR_UHW_IN:
			at = 1
		case abi.UVERBS_ATTR_CORE_OUT:
			at, answer = 2, a.Data()
		case abi.UVERBS_ATTR_UHW_OUT:
			at = 3
		default:
			return unix.EPROTONOSUPPORT
		}
		if at < 2 && a.Len() <= abi.InlineSize {
			parts[at] = a[len(a)-abi.InlineSize:][:a.Len()]
			continue
		}
		b, mapped := resolve(a)
		if !mapped {
			return unix.EFAULT
		}
		parts[at] = b
	}
	m := abi.LookupWrite(cmd)
	switch {
	case m == nil:
		return unix.EOPNOTSUPP
	case len(parts[0]) != m.Req || len(parts[2]) != m.Resp:
		return unix.ENOSPC
	case len(parts[1]) != m.DriverReq || len(parts[3]) != m.DriverResp:
		return unix.EINVAL
	}
	// Package devx has the driver's part behind the answer.
	resp, mapped := usermem.Resolve(answer, m.Resp+m.DriverResp)
	if !mapped && m.Resp > 0 {
		return unix.EFAULT
	}
	return f.verbs(Command{Method: m, Path: devx.InvokeWrite, Core: parts[0], Driver: parts[1], Resp: resp})
}

// Write checks the lengths as verify_hdr in uverbs_main.c does.
func (f verbsFile) Write(b []byte) unix.Errno {
	if len(b) < abi.CmdHdrSize {
		return unix.EINVAL
	}
	m := abi.LookupWrite(abi.WriteCmd(binary.LittleEndian.Uint32(b)))
	if m == nil {
		return unix.EOPNOTSUPP
	}
	word := func(at int) int { return int(binary.LittleEndian.Uint16(b[at:])) }
	if len(b) < m.HeaderLen()+m.Req {
		return unix.ENOSPC
	}
	core, rest := b[m.HeaderLen():][:m.Req], b[m.HeaderLen()+m.Req:]
	var addr uint64
	room := m.Resp + m.DriverResp
	if m.Cmd.Extended() {
		addr = binary.LittleEndian.Uint64(b[8:])
		if word(4)*8 != m.Req || word(16)*8 != len(rest) || word(6)*8 != m.Resp || word(18)*8 != m.DriverResp {
			return unix.EINVAL
		}
	} else {
		if word(4)*4 != len(b) || word(6)*4 != room {
			return unix.EINVAL
		}
		if m.Resp > 0 {
			addr = binary.LittleEndian.Uint64(core)
		}
	}
	if len(rest) != m.DriverReq {
		return unix.EINVAL
	}
	var resp []byte
	if room > 0 {
		var mapped bool
		if resp, mapped = usermem.Resolve(addr, room); !mapped {
			return unix.EFAULT
		}
	}
	return f.verbs(Command{Method: m, Path: devx.PlainWrite, Core: core, Driver: rest, Resp: resp})
}

// verbs gives what is made its handle and number, which are the same, and asks
// the test.
func (f *file) verbs(c Command) unix.Errno {
	id := f.ids.Add(1)
	put := func(at int) { binary.LittleEndian.PutUint32(c.Resp[at:], id) }
	switch c.Method.Cmd {
	case abi.IB_USER_VERBS_CMD_ALLOC_PD, abi.IB_USER_VERBS_CMD_CREATE_CQ:
		put(0)
		put(c.Method.Resp) // the driver's part
	case abi.IB_USER_VERBS_CMD_CREATE_QP:
		put(0)
		put(4)
	case abi.IB_USER_VERBS_CMD_REG_MR:
		put(0)
		put(4)
		put(8)
	}
	return f.stub.Verbs(c)
}
