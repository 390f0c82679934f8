// SPDX-License-Identifier: BSD-2-Clause

// Package devx talks to an mlx5 device through DevX: raw firmware commands over
// /dev/infiniband/uverbsN, without cgo. It opens contexts, makes objects, user
// memory, doorbell pages and event channels, and brings queue pairs from state
// to state.
//
// A name such as "mlx5_0" opens the kernel's file. A name that begins with the
// scheme of an imported driver opens that one: with
//
//	import _ "devxlab.example/emu/uverbs"
//
// "emu:" is an emulated device inside the process.
//
// The verbs calls (ibv_create_qp, ibv_modify_qp) are not here; a queue pair of
// this package is the caller's alone, and the driver's own path does not know
// it. Many transitions at once are the business of package batch.
package devx
