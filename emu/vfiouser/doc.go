// SPDX-License-Identifier: BSD-2-Clause

// Package vfiouser serves a PCI function to QEMU: the vfio-user protocol, on a
// Unix socket.
//
//	qemu-system-x86_64 … -object memory-backend-memfd,id=m,size=512M,share=on
//	  -machine q35,memory-backend=m
//	  -device '{"driver":"vfio-user-pci","socket":{"type":"unix","path":"…"}}'
//
// A [Function] is what QEMU's guest sees: configuration space, BARs, MSI-X
// vectors. While a client is there, the function has a [Host]: guest memory and
// interrupts. One client is served at a time; the next one waits in the
// listener's queue.
//
// # What it does
//
// It answers what vfio-user-pci of QEMU 10.1 and later sends (seen with 11.1.3),
// and is strict on all else. A command that is malformed, or that the function does not have, gets an
// error reply. A client that breaks the framing (a size that cannot be, a reply
// to nothing, more descriptors than fit), that stops in the middle of a message
// or does not read its replies, is dropped. Everything that a client can make
// the server hold is bounded: message size, mappings and their total, event
// descriptors, time.
//
// # What it does not do
//
// Guest memory is reached through shared mappings only: memory that the client
// announces without a file descriptor (QEMU does so for ROMs) is acknowledged,
// and access to it fails. VFIO_USER_DMA_READ and _WRITE, the way over the socket,
// are therefore never sent. BARs cannot be mapped by the client, and there are no
// I/O event descriptors, so each access of the guest is a message. INTx, MSI,
// option ROM, migration and dirty page logging are not there.
//
// # Trust
//
// Guest memory must be a memfd or another file of tmpfs or hugetlbfs: elsewhere a
// page fault may take for ever. (Parts of hugetlbfs that are not whole huge pages
// cannot be mapped.) A client can still truncate the file; an access then fails
// with [ErrFault]. What a hostile client can do is to hold up its own server: by
// sending a descriptor whose close blocks, or by clearing O_NONBLOCK of an event
// descriptor again and filling it, so that [Host].Interrupt blocks.
//
// The facts are from docs/interop/vfio-user.rst and hw/vfio-user in QEMU's source,
// and from linux/vfio.h.
package vfiouser
