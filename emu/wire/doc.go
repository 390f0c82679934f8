// SPDX-License-Identifier: BSD-2-Clause

// Package wire is what lies between emulated HCAs: links, and a switch with
// any number of ports, with rate, delay, jitter, loss, duplication,
// reordering, corruption, queues with ECN marking, and priority flow control,
// each per direction, seedable, and changeable while frames are on their way.
// A tap writes what passes a port as pcapng.
//
// It carries Ethernet frames as bytes, without their FCS. It knows no HCA, no
// RoCE and no PCI, builds and reads no transport packets, and sends no CNPs:
// that is for what is connected to a port. It is no model of a certain switch:
// queues are served by strict priority, thresholds are fixed, and there is no
// VLAN filtering, spanning tree or LAG.
//
// A port takes frames by Send and gives them to the function that was passed to
// Connect, on the one goroutine that a link or a switch has. Nothing is called
// while a lock of this package is held, except a Filter and a priority
// function, so that a receiver may answer with Send.
//
// # Time
//
// What happens when is computed from the parameters and never from when a
// goroutine woke. On a virtual clock everything is exact, and the same again
// for the same seed. On the real clock frames are handed over late by what a
// timerfd and the scheduler take, tens of microseconds at best, which does not
// add up: a late frame delays none behind it.
//
// A frame of n bytes takes (max(n, 60) + 24) · 8 / rate on the wire: 8 bytes of
// preamble, 4 of FCS and 12 between frames (IEEE 802.3, 4.2.3.4 and 4.4.2). It
// arrives when all of that is over, plus the delay. Parts of a nanosecond are
// carried along, so that the rate is exact over many frames.
//
// # ECN and RoCE
//
// A mark changes the two ECN bits of the IPv4 TOS or the IPv6 traffic class,
// and the IPv4 header checksum. The ICRC of RoCEv2 stays right: it is computed
// with the fields that a network may change set to ones, among them TOS, TTL and
// checksum, and the traffic class (InfiniBand Architecture Specification, annex
// A17 RoCEv2, Invariant CRC; Linux, rxe_icrc.c, rxe_icrc_hdr).
package wire
