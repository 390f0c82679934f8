// SPDX-License-Identifier: BSD-2-Clause

// Package mlx5 is the firmware interface of a ConnectX NIC as bytes: opcodes,
// command layouts, statuses and the rules of queue pair transitions.
//
// Each command and context of the device is a view, a []byte type with named
// accessors (QPC, CreateQPIn, …), generated from the kernel's mlx5_ifc.h. The
// eight transitions that DevX accepts are plain structs (RST2INIT, RTR2RTS, …)
// whose Encode method refuses a missing or unencodable attribute by its name.
//
// The package does no I/O. To send what it encodes, see package devx; to send
// many transitions at once, see package batch.
package mlx5
