// SPDX-License-Identifier: BSD-2-Clause

package roce

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
)

// ErrNoRoCE is of bytes that are not a whole RoCE packet.
var ErrNoRoCE = errors.New("roce: no whole packet of RoCE, from its IP header or GRH on")

const (
	ipv4Bytes = 20
	ipv6Bytes = 40
	udpBytes  = 8
	protoUDP  = 17

	// maskedBytes has room for the local route header, which RoCE lacks, the longest
	// header of IPv4, UDP and BTH.
	maskedBytes = 8 + 60 + udpBytes + bthBytes
)

// ICRC computes the invariant checksum of a packet that begins with its IP header
// (RoCEv2) or GRH (RoCEv1) and ends with its ICRC, whose four bytes do not count.
// What routers change counts as ones (specification, 7.8.1, annexes A16 and A17).
// It allocates nothing.
func ICRC(packet []byte) (uint32, error) {
	l3, total, err := extent(packet)
	if err != nil {
		return 0, err
	}
	var masked [maskedBytes]byte
	for i := range 8 {
		masked[i] = 0xff
	}
	head := masked[8:]
	n := copy(head, packet[:l3+bthBytes])
	switch head[0] >> 4 {
	case 4:
		head[1], head[8], head[10], head[11] = 0xff, 0xff, 0xff, 0xff // traffic class, time to live, checksum
	case 6:
		head[0] |= 0x0f // traffic class, flow label
		head[1], head[2], head[3], head[7] = 0xff, 0xff, 0xff, 0xff
	}
	if udp := head[l3-udpBytes : l3]; isUDP(packet) {
		udp[6], udp[7] = 0xff, 0xff // checksum
	}
	head[l3+4] = 0xff // FECN, BECN, reserved
	return crc32.Update(checksum(&masked, 8+n), crc32.IEEETable, packet[n:total-icrcBytes]), nil
}

// checksum is crc32.ChecksumIEEE of the first n bytes, which that would move to the
// heap.
func checksum(b *[maskedBytes]byte, n int) uint32 {
	c := ^uint32(0)
	for _, x := range b[:n] {
		c = crc32.IEEETable[byte(c)^x] ^ c>>8
	}
	return ^c
}

// CheckICRC reports whether the checksum is right.
func CheckICRC(packet []byte) (bool, error) {
	want, err := ICRC(packet)
	if err != nil {
		return false, err
	}
	_, total, _ := extent(packet)
	return binary.LittleEndian.Uint32(packet[total-icrcBytes:]) == want, nil
}

// SetICRC writes the checksum into a packet that is otherwise whole.
func SetICRC(packet []byte) error {
	c, err := ICRC(packet)
	if err != nil {
		return err
	}
	_, total, _ := extent(packet)
	binary.LittleEndian.PutUint32(packet[total-icrcBytes:], c)
	return nil
}

func isUDP(packet []byte) bool {
	return packet[0]>>4 == 4 && packet[9] == protoUDP || packet[0]>>4 == 6 && packet[6] == protoUDP
}

// extent returns where the base transport header begins and where the packet
// ends, by the lengths in its headers.
func extent(p []byte) (bth, total int, err error) {
	switch {
	case len(p) < ipv4Bytes:
		return 0, 0, ErrNoRoCE
	case p[0]>>4 == 4 && isUDP(p):
		bth, total = int(p[0]&0xf)*4+udpBytes, int(be16(p[2:]))
		if bth < ipv4Bytes+udpBytes {
			return 0, 0, ErrNoRoCE
		}
	case len(p) < ipv6Bytes || p[0]>>4 != 6:
		return 0, 0, ErrNoRoCE
	case isUDP(p):
		bth, total = ipv6Bytes+udpBytes, ipv6Bytes+int(be16(p[4:]))
	case p[6] == NextHeaderBTH:
		bth, total = grhBytes, grhBytes+int(be16(p[4:]))
	default:
		return 0, 0, ErrNoRoCE
	}
	if total > len(p) || bth+bthBytes+icrcBytes > total {
		return 0, 0, ErrNoRoCE
	}
	return bth, total, nil
}
