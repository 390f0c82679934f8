// SPDX-License-Identifier: BSD-2-Clause

package roce

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

const (
	madBytes    = 256
	madHdrBytes = 24
	cmBytes     = madBytes - madHdrBytes

	// ClassCM is the management class of the communication manager, and
	// CMVersion the version of it that this package reads (specification, 12.6.2).
	ClassCM   = 0x07
	CMVersion = 2

	// MethodSend is that of all messages of the CM (ComMgtSend, table 104).
	MethodSend = 0x03
)

// Attribute of a CM datagram: which message it is (specification, table 105).
type Attribute uint16

// CM messages.
const (
	AttrREQ     Attribute = 0x10
	AttrMRA     Attribute = 0x11
	AttrREJ     Attribute = 0x12
	AttrREP     Attribute = 0x13
	AttrRTU     Attribute = 0x14
	AttrDREQ    Attribute = 0x15
	AttrDREP    Attribute = 0x16
	AttrSIDRReq Attribute = 0x17
	AttrSIDRRep Attribute = 0x18
	AttrLAP     Attribute = 0x19
	AttrAPR     Attribute = 0x1a
)

// cmType returns the layer of a CM message.
func cmType(a Attribute) (gopacket.LayerType, bool) {
	switch a {
	case AttrREQ:
		return LayerTypeREQ, true
	case AttrMRA:
		return LayerTypeMRA, true
	case AttrREJ:
		return LayerTypeREJ, true
	case AttrREP:
		return LayerTypeREP, true
	case AttrRTU:
		return LayerTypeRTU, true
	case AttrDREQ:
		return LayerTypeDREQ, true
	case AttrDREP:
		return LayerTypeDREP, true
	case AttrSIDRReq:
		return LayerTypeSIDRReq, true
	case AttrSIDRRep:
		return LayerTypeSIDRRep, true
	case AttrLAP:
		return LayerTypeLAP, true
	case AttrAPR:
		return LayerTypeAPR, true
	}
	return gopacket.LayerTypePayload, false
}

// Attributes returns those of all messages of the CM.
func Attributes() []Attribute {
	return []Attribute{AttrREQ, AttrMRA, AttrREJ, AttrREP, AttrRTU, AttrDREQ, AttrDREP, AttrSIDRReq, AttrSIDRRep, AttrLAP, AttrAPR}
}

func (a Attribute) String() string {
	if t, ok := cmType(a); ok {
		return t.String()
	}
	return fmt.Sprintf("attribute %#x", uint16(a))
}

// MAD is the header of a management datagram (specification, 13.4.3). Its payload
// is 232 bytes.
type MAD struct {
	layers.BaseLayer
	BaseVersion       uint8 // 1
	MgmtClass         uint8
	ClassVersion      uint8
	Method            uint8
	Status            uint16
	ClassSpecific     uint16
	TransactionID     uint64
	AttributeID       Attribute
	AttributeModifier uint32
}

// LayerType is LayerTypeMAD.
func (*MAD) LayerType() gopacket.LayerType { return LayerTypeMAD }

// CanDecode is LayerTypeMAD.
func (*MAD) CanDecode() gopacket.LayerClass { return LayerTypeMAD }

// NextLayerType is that of a CM message, or gopacket.LayerTypePayload if Unread
// has a reason.
func (m *MAD) NextLayerType() gopacket.LayerType {
	if m.Unread() != "" {
		return gopacket.LayerTypePayload
	}
	t, _ := cmType(m.AttributeID)
	return t
}

// Unread says why the payload is not decoded as a CM message; empty if it is.
func (m *MAD) Unread() string {
	switch _, known := cmType(m.AttributeID); {
	case m.BaseVersion != 1:
		return fmt.Sprintf("MAD of base version %d, not 1", m.BaseVersion)
	case m.MgmtClass != ClassCM:
		return fmt.Sprintf("MAD of management class %#x, which is not that of the CM (%#x)", m.MgmtClass, ClassCM)
	case m.ClassVersion != CMVersion:
		return fmt.Sprintf("CM message of class version %d, not %d", m.ClassVersion, CMVersion)
	case m.Method != MethodSend:
		return fmt.Sprintf("CM message of method %#x, not %#x (Send)", m.Method, MethodSend)
	case !known:
		return fmt.Sprintf("CM message with attribute id %#x, which is none", uint16(m.AttributeID))
	}
	return ""
}

// DecodeFromBytes reads a datagram of 256 bytes: 24 of header, 232 of payload.
func (m *MAD) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	if len(data) < madBytes {
		return tooShort("MAD", len(data), madBytes, df)
	}
	m.BaseVersion, m.MgmtClass, m.ClassVersion, m.Method = data[0], data[1], data[2], data[3]
	m.Status, m.ClassSpecific, m.TransactionID = be16(data[4:]), be16(data[6:]), binary.BigEndian.Uint64(data[8:])
	m.AttributeID, m.AttributeModifier = Attribute(be16(data[16:])), binary.BigEndian.Uint32(data[20:])
	m.Contents, m.Payload = data[:madHdrBytes], data[madHdrBytes:madBytes]
	return nil
}

// SerializeTo prepends 24 bytes.
func (m *MAD) SerializeTo(b gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	p, err := prepend(b, madHdrBytes)
	if err != nil {
		return err
	}
	p[0], p[1], p[2], p[3] = m.BaseVersion, m.MgmtClass, m.ClassVersion, m.Method
	binary.BigEndian.PutUint16(p[4:], m.Status)
	binary.BigEndian.PutUint16(p[6:], m.ClassSpecific)
	binary.BigEndian.PutUint64(p[8:], m.TransactionID)
	binary.BigEndian.PutUint16(p[16:], uint16(m.AttributeID))
	binary.BigEndian.PutUint32(p[20:], m.AttributeModifier)
	return nil
}

func prependCM(b gopacket.SerializeBuffer) ([]byte, error) { return prepend(b, cmBytes) }

// RejectReason of a REJ (enum ib_cm_rej_reason in the kernel's rdma/ib_cm.h;
// specification, table 109).
type RejectReason uint16

// Reasons that rdma_cm programs meet.
const (
	RejectNoQP             RejectReason = 1
	RejectNoResources      RejectReason = 3
	RejectTimeout          RejectReason = 4
	RejectUnsupported      RejectReason = 5
	RejectInvalidCommID    RejectReason = 6
	RejectInvalidServiceID RejectReason = 8
	RejectInvalidTransport RejectReason = 9
	RejectStaleConnection  RejectReason = 10
	RejectInvalidGID       RejectReason = 12
	RejectInvalidMTU       RejectReason = 26
	RejectConsumerDefined  RejectReason = 28
)

var rejectWords = map[RejectReason]string{
	RejectNoQP: "no queue pair", 2: "no end-to-end context", RejectNoResources: "no resources", RejectTimeout: "time-out: the peer heard no answer",
	RejectUnsupported: "unsupported request", RejectInvalidCommID: "invalid communication id", 7: "invalid communication instance",
	RejectInvalidServiceID: "invalid service id: nobody listens on that port", RejectInvalidTransport: "invalid transport type",
	RejectStaleConnection: "stale connection: the peer still has one with this queue pair number", 11: "the reliable datagram channel does not exist",
	RejectInvalidGID: "invalid GID", 13: "invalid LID", 14: "invalid service level", 15: "invalid traffic class", 16: "invalid hop limit",
	17: "invalid packet rate", 18: "invalid alternate GID", 19: "invalid alternate LID", 20: "invalid alternate service level",
	21: "invalid alternate traffic class", 22: "invalid alternate hop limit", 23: "invalid alternate packet rate",
	24: "the port and its CM are redirected", 25: "the port is redirected", RejectInvalidMTU: "invalid MTU", 27: "insufficient responder resources",
	RejectConsumerDefined: "refused by the program", 29: "invalid RNR retry count", 30: "duplicate local communication id",
	31: "invalid class version", 32: "invalid flow label", 33: "invalid alternate flow label", 35: "the vendor option is not supported",
}

func (r RejectReason) String() string {
	if w := rejectWords[r]; w != "" {
		return fmt.Sprintf("%d, %s", uint16(r), w)
	}
	return fmt.Sprintf("%d, a reason that the specification does not have", uint16(r))
}

// PortSpace is what an rdma_cm service id has in front of the port (enum
// rdma_ucm_port_space in rdma/rdma_user_cm.h).
type PortSpace uint16

// Port spaces.
const (
	PortSpaceIPoIB PortSpace = 0x0002
	PortSpaceTCP   PortSpace = 0x0106
	PortSpaceUDP   PortSpace = 0x0111
	PortSpaceIB    PortSpace = 0x013f
)

// Service splits the service id of an rdma_cm connection into port space and port;
// of another service the space is 0.
func Service(id uint64) (space PortSpace, port uint16) {
	if id>>32 != 0 {
		return 0, uint16(id)
	}
	return PortSpace(id >> 16), uint16(id)
}

// ServiceID puts them together.
func ServiceID(space PortSpace, port uint16) uint64 { return uint64(space)<<16 | uint64(port) }

// cmaBytes is the length of the header that rdma_cm puts in front of a REQ's
// private data.
const cmaBytes = 36

// CMAHeader is that header (struct cma_hdr in the kernel's cma.c; specification,
// annex A11).
type CMAHeader struct {
	Version  uint8
	IPv6     bool
	Port     uint16 // of the source
	Src, Dst netip.Addr
}

// CMA reads the header from the private data of a REQ or SIDR_REQ and returns
// what is behind it, which is the program's. ok is false if there is none.
func CMA(private []byte) (h CMAHeader, rest []byte, ok bool) {
	if len(private) < cmaBytes {
		return h, private, false
	}
	h.Version, h.Port = private[0], be16(private[2:])
	src, dst := private[4:20], private[20:36]
	switch private[1] >> 4 {
	case 4: // in the last four of 16 bytes
		h.Src, h.Dst = netip.AddrFrom4([4]byte(src[12:])), netip.AddrFrom4([4]byte(dst[12:]))
	case 6:
		h.IPv6, h.Src, h.Dst = true, netip.AddrFrom16([16]byte(src)), netip.AddrFrom16([16]byte(dst))
	default:
		return h, private, false
	}
	return h, private[cmaBytes:], h.Version == 0
}
