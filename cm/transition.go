// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"bytes"
	"fmt"
	"math/bits"
	"net"
	"net/netip"
	"strconv"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"devxlab.example/mlx5"
)

// INIT returns what QPAttr says of the state INIT as a transition of package mlx5,
// for a queue pair of devx.NewQP, package batch or timerfix.
func (id *ID) INIT() (mlx5.RST2INIT, error) {
	a, _, err := id.QPAttr(mlx5.StateInit)
	if err != nil {
		return mlx5.RST2INIT{}, err
	}
	t := mlx5.RST2INIT{Port: mlx5.Set(a.Port), PkeyIndex: mlx5.Set(a.PkeyIndex)}
	if id.space == Datagram {
		t.QKey = mlx5.Set(a.QKey)
	} else {
		t.Access = mlx5.Set(a.Access)
	}
	return t, nil
}

// RTR returns what QPAttr says of the state RTR of a connection as a transition.
// qpn is the own queue pair's. What verbs leave to the driver is found here: the
// peer's MAC address in the kernel's neighbour table (in the network namespace of
// the calling thread), and the UDP source port.
func (id *ID) RTR(qpn uint32) (mlx5.INIT2RTR, error) {
	a, _, err := id.QPAttr(mlx5.StateRTR)
	if err != nil {
		return mlx5.INIT2RTR{}, err
	}
	r, err := id.Route()
	if err != nil {
		return mlx5.INIT2RTR{}, err
	}
	mac, err := neighbour(r.Src.Addr(), r.Dst.Addr())
	if err != nil {
		return mlx5.INIT2RTR{}, err
	}
	return mlx5.INIT2RTR{
		MTU: mlx5.Set(a.PathMTU), RemoteQPN: mlx5.Set(a.DestQPN), NextRcvPSN: mlx5.Set(a.RQPSN), LogRRAMax: mlx5.Set(ceilLog(a.MaxDestRdAtomic)),
		MinRNRNak: mlx5.Set(a.MinRNRTimer),
		Path: mlx5.Path{
			Port: mlx5.Set(r.Port), RGID: a.AV.DGID, RMAC: mac, SrcAddrIndex: mlx5.Set(a.AV.SGIDIndex), HopLimit: mlx5.Set(a.AV.HopLimit),
			TClass: mlx5.Set(a.AV.TrafficClass), FlowLabel: mlx5.Set(a.AV.FlowLabel), SL: mlx5.Set(a.AV.SL),
			UDPSport: mlx5.Set(UDPSourcePort(a.AV.FlowLabel, qpn, a.DestQPN)),
		},
	}, nil
}

// RTS returns what QPAttr says of the state RTS of a connection as a transition.
func (id *ID) RTS() (mlx5.RTR2RTS, error) {
	a, _, err := id.QPAttr(mlx5.StateRTS)
	if err != nil {
		return mlx5.RTR2RTS{}, err
	}
	return mlx5.RTR2RTS{
		AckTimeout: mlx5.Set(a.Timeout), RetryCount: mlx5.Set(a.RetryCnt), RNRRetry: mlx5.Set(a.RNRRetry), NextSendPSN: mlx5.Set(a.SQPSN),
		LogSRAMax: mlx5.Set(ceilLog(a.MaxRdAtomic)),
	}, nil
}

// ceilLog is the logarithm as the driver rounds it (__mlx5_ib_modify_qp in
// mlx5_ib's qp.c: fls(n - 1)).
func ceilLog(n uint8) int { return bits.Len8(max(n, 1) - 1) }

// UDPSourcePort is the port that the kernel chooses for a queue pair's RoCEv2
// packets, so that the network can spread connections (rdma_flow_label_to_udp_sport
// and rdma_calc_flow_label in rdma/ib_verbs.h): from the flow label, or, if that is
// 0, from both numbers.
func UDPSourcePort(flowLabel, qpn, remoteQPN uint32) uint16 {
	const valid = 0xc000 // IB_ROCE_UDP_ENCAP_VALID_PORT_MIN
	fl := flowLabel & 0xfffff
	if fl == 0 {
		v := uint64(qpn) * uint64(remoteQPN)
		v ^= v >> 20
		v ^= v >> 40
		fl = uint32(v & 0xfffff)
	}
	return uint16(fl&0x3fff^fl>>14) | valid
}

// neighbour returns the MAC address to which the kernel sends what is for dst.
func neighbour(src, dst netip.Addr) (mac [6]byte, err error) {
	fail := func(err error) ([6]byte, error) {
		return mac, fmt.Errorf("cm: MAC address of %s: %w", dst, err)
	}
	routes, err := netlink.RouteGetWithOptions(dst.Unmap().AsSlice(), &netlink.RouteGetOptions{SrcAddr: src.Unmap().AsSlice(), OifIndex: int(scopeOf(dst))})
	if err != nil {
		return fail(err)
	}
	if len(routes) == 0 {
		return fail(unix.EHOSTUNREACH)
	}
	r := routes[0]
	if r.Type == unix.RTN_LOCAL {
		return own(dst)
	}
	next := net.IP(dst.Unmap().AsSlice())
	if r.Gw != nil {
		next = r.Gw
	}
	known, err := netlink.NeighList(r.LinkIndex, netlink.FAMILY_ALL)
	if err != nil {
		return fail(err)
	}
	for _, n := range known {
		if n.IP.Equal(next) && len(n.HardwareAddr) == len(mac) && !bytes.Equal(n.HardwareAddr, mac[:]) {
			return [6]byte(n.HardwareAddr), nil
		}
	}
	return fail(fmt.Errorf("%s is in no entry of the neighbour table: ResolveAddr puts it there, ip neigh shows it", next))
}

// own returns the MAC address of the interface that has an address.
func own(addr netip.Addr) (mac [6]byte, err error) {
	all, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return mac, fmt.Errorf("cm: %w", err)
	}
	for _, a := range all {
		if a.IP.Equal(addr.Unmap().AsSlice()) {
			i, err := net.InterfaceByIndex(a.LinkIndex)
			if err == nil && len(i.HardwareAddr) == len(mac) {
				return [6]byte(i.HardwareAddr), nil
			}
		}
	}
	return mac, fmt.Errorf("cm: no network interface with a MAC address has %s", addr)
}

// scopeOf and zoneOf translate the zone of a link-local address: its interface by
// name or number, and by number.
func scopeOf(a netip.Addr) uint32 {
	if a.Zone() == "" {
		return 0
	}
	if i, err := net.InterfaceByName(a.Zone()); err == nil {
		return uint32(i.Index)
	}
	n, err := strconv.ParseUint(a.Zone(), 10, 32)
	if err != nil {
		return 0 // which the kernel refuses
	}
	return uint32(n)
}

func isInterface(scope uint32) bool {
	_, err := net.InterfaceByIndex(int(scope))
	return err == nil
}

func zoneOf(scope uint32) string {
	if i, err := net.InterfaceByIndex(int(scope)); err == nil {
		return i.Name
	}
	return fmt.Sprint(scope)
}
