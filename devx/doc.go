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
// A queue pair of NewQP is the caller's alone, and the driver's own path does not
// know it. One of NewVerbsQP goes the way of ibv_create_qp and ibv_modify_qp, and
// can be changed through DevX besides: see VerbsQP.DevX for what that skips.
// Verbs need a kernel (the lab or hardware): on "emu:" they are ErrNoVerbs. Many
// transitions at once are the business of package batch.
package devx
