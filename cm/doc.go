// SPDX-License-Identifier: BSD-2-Clause

// Package cm makes connections through the kernel's connection manager: rdma_cm
// in pure Go, over /dev/infiniband/rdma_cm.
//
// A Channel is one open file of it; an ID is an end of a connection before, while
// and after there is one, as struct rdma_cm_id is. Its methods are the steps of
// rdma_cm(7): each waits for its event, takes a context, and returns an error that
// has the event's status or the peer's reason. Dialer and Listener take all steps
// of a client and of a server, and say how long each took.
//
// The queue pair is the caller's, and its number is all that the connection
// manager needs to know. ID.QPAttr says what it is to become, for one that verbs
// made; ID.INIT, RTR and RTS say the same as transitions of package mlx5, for one
// of DevX, for package batch or timerfix.
//
// What the package rests on is the kernel's drivers/infiniband/core: ucma.c (the
// file), cma.c (states and events), cm.c (messages, repeats, time-outs).
package cm
