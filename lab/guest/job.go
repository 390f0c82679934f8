// SPDX-License-Identifier: BSD-2-Clause

// Package guest is what runs inside the lab's virtual machine: Init, the first
// program that its kernel starts, and the frames in which it and package lab
// talk to each other.
//
// Init is part of the devxlab program, so that the guest needs no program of its
// own to be built: the kernel is told to start "devxlab lab init". It loads the
// modules that the job names, in their order, brings the links up, runs the
// job's program, sends its output, its exit status and the files that were asked
// for, and powers the machine off. It does nothing else that an init does:
// orphans are not reaped, nothing is restarted.
package guest

// JobFile is where Init finds its job, as JSON.
const JobFile = "/lab/job.json"

// PortName is the virtio-serial port on which the frames go. Without one they go
// over SerialPort.
const (
	PortName   = "devxlab"
	SerialPort = "/dev/ttyS1"
)

// Job is what Init is to do.
type Job struct {
	Args    []string // the program, looked up in PATH, and its arguments
	Env     []string // beside PATH, HOME and the like
	Dir     string   // where it starts; empty: /root
	TTY     bool     // give it a terminal
	Size    WindowSize
	Modules []Module
	Devices int // how many RDMA devices must come up
	Get     []Get

	ForceOff bool // cut the machine off if its kernel does not come down
}

// Get is a file or directory to send back.
type Get struct {
	Path     string
	Optional bool // it need not be there
}

// Module is a kernel module to load.
type Module struct {
	Path   string // in the guest, decompressed
	Params string // name=value …
}
