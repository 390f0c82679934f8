// SPDX-License-Identifier: BSD-2-Clause

// Package lab runs programs in a virtual machine whose unmodified distribution
// kernel, with its own mlx5_core and mlx5_ib, drives the emulated HCA: a PCI
// function that another process offers to QEMU over vfio-user.
//
//	r, err := lab.Run(ctx, lab.Options{Args: []string{"ls", "/sys/class/infiniband"}, Devices: 1, Stdout: os.Stdout})
//
// It finds QEMU and a kernel, or brings them into the user's cache from the apt
// mirror that this machine is configured for; it changes nothing outside the
// cache. It knows the rest of devxlab only as a program: the one it starts as the
// HCA, and the one it puts into the guest, where it is also process 1.
//
// The guest is an x86-64 PC, on any host: its QEMU is qemu-system-x86_64. It has
// no network to the host and no disk; it gets files before it starts and gives
// them back before it is powered off.
package lab
