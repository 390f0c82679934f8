// SPDX-License-Identifier: BSD-2-Clause

package fw

import "devxlab.example/mlx5"

// register is what ACCESS_REG reads and writes. Both get the driver's data and
// answer into out, which holds at least size bytes.
type register struct {
	size        int
	read, write func(h *HCA, in, out []byte) check // nil: refused
}

// Numbers of registers (MLX5_REG_* in linux/mlx5/driver.h).
const (
	regPMTU           = 0x5003
	regPTYS           = 0x5004
	regPAOS           = 0x5006
	regPFCC           = 0x5007
	regPPCNT          = 0x5008
	regNodeDesc       = 0x6001
	regHostEndianness = 0x7004
)

const (
	nodeDescBytes = 64 // IB_DEVICE_NODE_DESC_MAX
	ppcntBytes    = 8  // its header; the counters are zero
	pfccBytes     = 32
)

var registers = map[uint16]register{
	regPMTU:     {mlx5.PMTURegSize, (*HCA).readPMTU, (*HCA).writePMTU},
	regPTYS:     {mlx5.PTYSRegSize, (*HCA).readPTYS, nil},
	regPAOS:     {mlx5.PAOSRegSize, (*HCA).readPAOS, (*HCA).writePAOS},
	regPFCC:     {pfccBytes, (*HCA).readPFCC, (*HCA).writePFCC},
	regPPCNT:    {ppcntBytes, readPPCNT, nil},
	regNodeDesc: {nodeDescBytes, readNodeDesc, nil},
	regDTOR:     {mlx5.DtorRegSize, (*HCA).readDTOR, nil},
	regMCQS:     {mlx5.McqsRegSize, readMCQS, nil},
	regMCQI:     {mlx5.McqiRegSize, readMCQI, nil},
	// What the driver writes is always 0 (MLX5_SET_HOST_ENDIANNESS): little endian.
	regHostEndianness: {16, nil, writeHostEndianness},
}

// What lists the registers is one of them.
func init() {
	registers[regPCAM] = register{mlx5.PcamRegSize, readPCAM, nil}
	registers[regMCAM] = register{mlx5.McamRegSize, readMCAM, nil}
}

// Operations of ACCESS_REG.
const (
	regWrite = 0
	regRead  = 1
)

func (h *HCA) accessReg(c command) check {
	in := mlx5.AccessRegisterIn(c.in)
	r, known := registers[in.RegisterID()]
	if !known {
		return badRegister
	}
	data, out := in.RegisterData(), mlx5.AccessRegisterOut(c.out).RegisterData()
	if len(data) < r.size {
		return shortIn
	}
	if len(out) < r.size {
		return shortOut
	}
	do := r.read
	switch in.OpMod() {
	case regRead:
	case regWrite:
		do = r.write
	default:
		return badOpMod
	}
	if do == nil {
		return badRegAccess
	}
	refused := do(h, data, out)
	if refused != ok {
		clear(c.out) // what was answered so far
	}
	return refused
}

// localPort checks the port that stands in the same place of all port
// registers.
func localPort(b []byte) check {
	if p := mlx5.PMTUReg(b).LocalPort(); p < 1 || p > numPorts {
		return badPort
	}
	return ok
}

func (h *HCA) readPMTU(in, out []byte) check {
	o := mlx5.PMTUReg(out)
	o.SetLocalPort(mlx5.PMTUReg(in).LocalPort())
	o.SetMaxMTU(maxMTU)
	h.vport.mu.Lock()
	o.SetAdminMTU(h.vport.adminMTU)
	o.SetOperMTU(h.vport.adminMTU)
	h.vport.mu.Unlock()
	return localPort(in)
}

func (h *HCA) writePMTU(in, out []byte) check {
	mtu := mlx5.PMTUReg(in).AdminMTU()
	if mtu < minMTU || mtu > maxMTU {
		return badVPortMTU
	}
	if refused := localPort(in); refused != ok {
		return refused
	}
	h.vport.mu.Lock()
	h.vport.adminMTU = mtu
	h.vport.mu.Unlock()
	return h.readPMTU(in, out)
}

// protoEthernet is the bit of PTYS's proto_mask (MLX5_PTYS_EN).
const protoEthernet = 1 << 2

func (h *HCA) readPTYS(in, out []byte) check {
	i, o := mlx5.PTYSReg(in), mlx5.PTYSReg(out)
	if i.ProtoMask() != protoEthernet {
		return badProtocol
	}
	o.SetLocalPort(i.LocalPort())
	o.SetProtoMask(protoEthernet)
	o.SetEthProtoCapability(link100GCR4)
	o.SetEthProtoAdmin(link100GCR4)
	h.vport.mu.Lock()
	if h.vport.up() {
		o.SetEthProtoOper(link100GCR4)
	}
	h.vport.mu.Unlock()
	return localPort(in)
}

func (h *HCA) readPAOS(in, out []byte) check {
	o := mlx5.PAOSReg(out)
	o.SetLocalPort(mlx5.PAOSReg(in).LocalPort())
	o.SetAdminStatus(portUp)
	o.SetOperStatus(portUp)
	h.vport.mu.Lock()
	if h.vport.down {
		o.SetAdminStatus(portDown)
	}
	if !h.vport.up() {
		o.SetOperStatus(portDown)
	}
	h.vport.mu.Unlock()
	return localPort(in)
}

func (h *HCA) writePAOS(in, out []byte) check {
	i := mlx5.PAOSReg(in)
	if refused := localPort(in); refused != ok {
		return refused
	}
	if i.AdminStatus() != portUp && i.AdminStatus() != portDown {
		return badAdminState
	}
	if i.Ase() {
		h.setLink(func(v *vport) { v.down = i.AdminStatus() == portDown })
	}
	return h.readPAOS(in, out)
}

// PFCC has pause and priority flow control. Without frames it is remembered and
// no more.
func (h *HCA) readPFCC(in, out []byte) check {
	h.vport.mu.Lock()
	copy(out, h.vport.pfcc[:])
	h.vport.mu.Unlock()
	mlx5.PMTUReg(out).SetLocalPort(mlx5.PMTUReg(in).LocalPort())
	return localPort(in)
}

func (h *HCA) writePFCC(in, out []byte) check {
	if refused := localPort(in); refused != ok {
		return refused
	}
	h.vport.mu.Lock()
	copy(h.vport.pfcc[:], in)
	h.vport.mu.Unlock()
	return h.readPFCC(in, out)
}

// readPPCNT answers zero counters: no frame has moved.
func readPPCNT(_ *HCA, in, out []byte) check {
	copy(out[:ppcntBytes], in)
	return localPort(in)
}

func readNodeDesc(_ *HCA, in, out []byte) check {
	copy(out[:nodeDescBytes], "devxlab emulated HCA")
	return ok
}

func writeHostEndianness(_ *HCA, in, _ []byte) check {
	if in[0] != 0 {
		return badEndianness
	}
	return ok
}
