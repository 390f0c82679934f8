// SPDX-License-Identifier: BSD-2-Clause

package fw

import (
	"encoding/binary"
	"slices"
	"sync"

	"devxlab.example/mlx5"
)

// Lists of a vport's addresses (enum mlx5_list_type in linux/mlx5/vport.h).
const (
	listUC = iota
	listMC
	listVLAN
	numLists
)

var listLimit = [numLists]int{1 << logMaxUCList, 1 << logMaxMCList, 1 << logMaxVLANList}

const (
	addressBytes = 8 // struct mlx5_ifc_mac_address_layout_bits
	minMTU       = 68
	maxMTU       = 9978 // of the port, with the Ethernet header
	defaultMTU   = 1522
)

// vport is the function's port: what NIC_VPORT_CONTEXT says of it, and its
// registers.
type vport struct {
	mu       sync.Mutex
	ctx      [mlx5.NICVPortContextSize]byte
	lists    [numLists][]byte
	adminMTU uint16
	down     bool // by PAOS
	vDown    bool // by MODIFY_VPORT_STATE
	pfcc     [pfccBytes]byte
}

// Link speeds of PTYS (MLX5E_PROT_MASK in the driver's en/port.h): the
// reference card's port runs 100GBASE-CR4.
const link100GCR4 = 1 << 20

func (v *vport) init(mac [6]byte) {
	c := mlx5.NICVPortContext(v.ctx[:])
	c.SetMTU(defaultMTU)
	copy(c.PermanentAddress()[2:], mac[:])
	guid := guidOf(mac)
	c.SetSystemImageGuid(guid)
	c.SetNodeGuid(guid)
	c.SetPortGuid(guid)
	v.adminMTU = defaultMTU
}

// guidOf makes a GUID of a MAC address, as the reference card's are made:
// with ff:fe in the middle, nothing inverted.
func guidOf(mac [6]byte) uint64 {
	return binary.BigEndian.Uint64([]byte{mac[0], mac[1], mac[2], 0x03, 0x00, mac[3], mac[4], mac[5]})
}

func (v *vport) up() bool { return !v.down && !v.vDown }

func ownVPort(other bool, number uint16) bool { return !other && number == 0 }

func (h *HCA) queryNICVPort(c command) check {
	in := mlx5.QueryNICVPortContextIn(c.in)
	switch {
	case !ownVPort(in.OtherVPort(), in.VPortNumber()):
		return badVPort
	case in.AllowedListType() >= numLists:
		return badListType
	}
	v := &h.vport
	v.mu.Lock()
	defer v.mu.Unlock()
	o := mlx5.QueryNICVPortContextOut(c.out).NICVPortContext()
	copy(o, v.ctx[:])
	list := v.lists[in.AllowedListType()]
	room := c.out[mlx5.QueryNICVPortContextOutSize:]
	n := min(len(list), len(room)/addressBytes*addressBytes)
	copy(room, list[:n])
	o.SetAllowedListType(in.AllowedListType())
	o.SetAllowedListSize(uint16(n / addressBytes))
	return ok
}

func (h *HCA) modifyNICVPort(c command) check {
	in := mlx5.ModifyNICVPortContextIn(c.in)
	sel, src := in.FieldSelect(), in.NICVPortContext()
	list := c.in[mlx5.ModifyNICVPortContextInSize:]
	n := int(src.AllowedListSize()) * addressBytes
	switch {
	case !ownVPort(in.OtherVPort(), in.VPortNumber()):
		return badVPort
	case sel.Affiliation():
		return badFieldSelect
	case sel.MTU() && (src.MTU() < minMTU || src.MTU() > maxMTU):
		return badVPortMTU
	case sel.AddressesList() && src.AllowedListType() >= numLists:
		return badListType
	case sel.AddressesList() && (n > len(list) || n/addressBytes > listLimit[src.AllowedListType()]):
		return badListSize
	}
	v := &h.vport
	v.mu.Lock()
	defer v.mu.Unlock()
	dst := mlx5.NICVPortContext(v.ctx[:])
	if sel.MTU() {
		dst.SetMTU(src.MTU())
	}
	if sel.RoCEEn() {
		dst.SetRoCEEn(src.RoCEEn())
	}
	if sel.PermanentAddress() {
		copy(dst.PermanentAddress(), src.PermanentAddress())
	}
	if sel.NodeGuid() {
		dst.SetNodeGuid(src.NodeGuid())
	}
	if sel.PortGuid() {
		dst.SetPortGuid(src.PortGuid())
	}
	if sel.MinInline() {
		dst.SetMinWQEInlineMode(src.MinWQEInlineMode())
	}
	if sel.DisableMcLocalLb() {
		dst.SetDisableMcLocalLb(src.DisableMcLocalLb())
	}
	if sel.DisableUCLocalLb() {
		dst.SetDisableUCLocalLb(src.DisableUCLocalLb())
	}
	if sel.Promisc() {
		dst.SetPromiscUC(src.PromiscUC())
		dst.SetPromiscMc(src.PromiscMc())
		dst.SetPromiscAll(src.PromiscAll())
	}
	if sel.ChangeEvent() {
		dst.SetArmChangeEvent(src.ArmChangeEvent())
		dst.SetEventOnMTU(src.EventOnMTU())
		dst.SetEventOnPromiscChange(src.EventOnPromiscChange())
		dst.SetEventOnVLANChange(src.EventOnVLANChange())
		dst.SetEventOnMcAddressChange(src.EventOnMcAddressChange())
		dst.SetEventOnUCAddressChange(src.EventOnUCAddressChange())
	}
	if sel.AddressesList() {
		v.lists[src.AllowedListType()] = slices.Clone(list[:n])
	}
	return ok
}

// States of a port (MLX5_PORT_UP, MLX5_VPORT_ADMIN_STATE_*).
const (
	portUp    = 1
	portDown  = 2
	stateDown = 0
	stateUp   = 1
	stateAuto = 2
)

func (h *HCA) queryVPortState(c command) check {
	in := mlx5.QueryVPortStateIn(c.in)
	if in.OpMod() > 2 { // vport, E-Switch vport, uplink
		return badOpMod
	}
	if !ownVPort(in.OtherVPort(), in.VPortNumber()) {
		return badVPort
	}
	v := &h.vport
	v.mu.Lock()
	defer v.mu.Unlock()
	o := mlx5.QueryVPortStateOut(c.out)
	if !v.vDown {
		o.SetAdminState(stateUp)
	}
	if v.up() {
		o.SetState(stateUp)
	}
	return ok
}

func (h *HCA) modifyVPortState(c command) check {
	in := mlx5.ModifyVPortStateIn(c.in)
	switch {
	case in.OpMod() > 2:
		return badOpMod
	case !ownVPort(in.OtherVPort(), in.VPortNumber()):
		return badVPort
	case in.AdminState() > stateAuto:
		return badAdminState
	}
	h.setLink(func(v *vport) { v.vDown = in.AdminState() == stateDown })
	return ok
}

// setLink changes the port and reports if its link changed.
func (h *HCA) setLink(change func(*vport)) {
	v := &h.vport
	v.mu.Lock()
	was := v.up()
	change(v)
	now := v.up()
	v.mu.Unlock()
	if was == now {
		return
	}
	var data eventBytes // struct mlx5_eqe_port_state
	data[8] = 1 << 4
	subtype := uint8(4) // MLX5_PORT_CHANGE_SUBTYPE_ACTIVE
	if !now {
		subtype = 1 // MLX5_PORT_CHANGE_SUBTYPE_DOWN
	}
	h.report(mlx5.EventPortChange, subtype, &data)
}

const defaultPkey = 0xffff

// queryPkey answers for the one P_Key of an Ethernet port, or for the whole
// table.
func (h *HCA) queryPkey(c command) check {
	in := mlx5.QueryHCAVPortPkeyIn(c.in)
	switch {
	case !ownVPort(in.OtherVPort(), in.VPortNumber()):
		return badVPort
	case in.PkeyIndex() != 0 && in.PkeyIndex() != 0xffff:
		return badPkeyIndex
	}
	if room := mlx5.QueryHCAVPortPkeyOut(c.out).Pkey(); len(room) >= 4 {
		binary.BigEndian.PutUint16(room[2:], defaultPkey)
	}
	return ok
}

// queryVPortCounter answers with what passed the port. As in recordings of a
// card, received bytes have the FCS and sent ones do not.
func (h *HCA) queryVPortCounter(c command) check {
	in := mlx5.QueryVPortCounterIn(c.in)
	if !ownVPort(in.OtherVPort(), in.VPortNumber()) {
		return badVPort
	}
	o, s := mlx5.QueryVPortCounterOut(c.out), &h.port.stats
	put := func(b []byte, t *traffic, fcs uint64) { // struct mlx5_ifc_traffic_counter_bits
		n := t.packets.Load()
		binary.BigEndian.PutUint64(b, n)
		binary.BigEndian.PutUint64(b[8:], t.bytes.Load()+n*fcs)
	}
	for i, b := range [numTraffic][2][]byte{
		trafficUnicast:       {o.ReceivedEthUnicast(), o.TransmittedEthUnicast()},
		trafficMulticast:     {o.ReceivedEthMulticast(), o.TransmittedEthMulticast()},
		trafficBroadcast:     {o.ReceivedEthBroadcast(), o.TransmittedEthBroadcast()},
		trafficRDMA:          {o.ReceivedIBUnicast(), o.TransmittedIBUnicast()},
		trafficRDMAMulticast: {o.ReceivedIBMulticast(), o.TransmittedIBMulticast()},
	} {
		put(b[0], &s.rx[i], fcsBytes)
		put(b[1], &s.tx[i], 0)
	}
	return ok
}

const fcsBytes = 4

// A management datagram's header (struct ib_mad_hdr).
const (
	madMethod   = 3
	madStatus   = 4
	madResponse = 0x80
	madNoAttr   = 0x000c // the method and attribute are not supported
)

// madIfc answers that the port has no agent for anything: on Ethernet there is
// no subnet to manage.
func (h *HCA) madIfc(c command) check {
	in := mlx5.MADIfcIn(c.in)
	if in.Port() < 1 || in.Port() > numPorts {
		return badPort
	}
	mad := mlx5.MADIfcOut(c.out).ResponseMADPacket()
	copy(mad, in.MAD())
	mad[madMethod] |= madResponse
	binary.BigEndian.PutUint16(mad[madStatus:], madNoAttr)
	return ok
}

func (h *HCA) specialContexts(c command) check {
	o := mlx5.QuerySpecialContextsOut(c.out)
	o.SetResdLkey(reservedLkey)
	return ok
}

// reservedLkey means physical addresses; only the kernel may use it.
const reservedLkey = 0x300
