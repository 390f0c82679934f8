// SPDX-License-Identifier: BSD-2-Clause

package explain

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"devxlab.example/mlx5"
	"golang.org/x/sys/unix"
)

// errnoInfo is what an error number means on this path. Where nothing else is
// said, it was read in Linux 5.15: ib_uverbs, ib_core, mlx5_ib, mlx5_core.
type errnoInfo struct {
	short   string
	meaning []string
	check   []string
}

const whoRefused = "Who refused: from Linux 6.1 on the tracepoint mlx5:mlx5_cmd fires for each command that firmware refused. If it stays silent the kernel did, and `echo 'module mlx5_ib +p' > /sys/kernel/debug/dynamic_debug/control` makes the driver say why. Before 6.1 use `module mlx5_core +p`: failures of user contexts are printed at debug level only."

const healthCheck = "dmesg for health reports, `devlink health show`, and whether the device is still there (`ls /sys/class/infiniband`)."

const (
	commandTimeout  = "The driver waited 60 s for firmware and 5 s more for a lost completion, then gave the command up (dmesg: `timeout. Will cause a leak of a command resource`). From Linux 5.16 on the device may shorten this. Commands queued behind it fail with ECANCELED after 60 s."
	commandCanceled = "The command waited 60 s in the driver's queue without being started, and was withdrawn (dmesg: `canceled on out of queue timeout`): all command slots were taken, or one command hung."
	hungFirst       = "dmesg for the command that hung first (`No done completion`)."
)

var errnos = map[unix.Errno]errnoInfo{
	unix.EREMOTEIO: {"look in the outbox", []string{
		"Linux 5.18 and later: firmware refused the command of a DevX OBJ_CREATE, OBJ_MODIFY, OBJ_QUERY or OTHER. The kernel passes the output on: byte 0 is the status, bytes 4 to 7 are the syndrome.",
		"UMEM_REG, destroy and context creation still map the status to another error number and pass no output.",
	}, []string{"Read the output and explain that: `devxlab explain --op NAME --status 0x… --syndrome 0x…`, or paste its bytes."}},
	unix.EINVAL: {"the kernel or firmware refused the request", []string{
		"Mostly it is the kernel, before firmware sees anything. DevX: no user context for DevX, a handle or number that is not the object's, an opcode that the method does not let through (SQD2RTS by OBJ_MODIFY, ACCESS_REG by OTHER), CREATE_CQ with an unknown EQ, QUERY_UAR with dynamic UARs.",
		"Verbs: a transition that is not in the tables, an attribute too many or too few for it, path_mtu outside 1 to 5, a bad port or P_Key index, RoCE without is_global and sgid_index, an address vector in RTS.",
	}, []string{whoRefused}},
	unix.ENOMEM: {"a limit of the device, of pinned memory or of the kernel", []string{
		"Before Linux 5.18 a device that is out of QPs looks like this: its status limits exceeded is mapped to it.",
		"Registering memory: more pinned than RLIMIT_MEMLOCK without CAP_IPC_LOCK.",
		"In the log of a probe, -12 is also what many other failures of mlx5_ib read as: load it with dyndbg=+p to see the stage.",
	}, []string{countQPs, "`ulimit -l` and the size that is being registered.", noRetry}},
	unix.ETIMEDOUT: {"how long the call took tells which of two", []string{
		"About 1 s, in ibv_modify_qp to RTR on RoCE (or any modify with an address vector): the kernel found no MAC for the destination GID by ARP or neighbour discovery. The GID is dead, unreachable or of another network. No firmware command was sent, and DevX INIT2RTR, where you give the MAC, cannot fail in this way.",
		"About 65 s: a firmware command time-out. " + commandTimeout,
	}, []string{"The time that the call took.", "1 s: `ip neigh`, ping of the destination from the netdev of the source GID, and the GID index: `rdma link`, /sys/class/infiniband/*/ports/*/gids.", "65 s: " + healthCheck}},
	unix.ECANCELED: {"the command was never sent", []string{
		commandCanceled,
	}, []string{hungFirst, healthCheck}},
	unix.EPROTONOSUPPORT: {"this kernel does not know the method", []string{
		"The ioctl framework knows no such object, method or mandatory attribute, and returns this for nothing else. The kernel is too old for the call, or the driver that has it (mlx5_ib, a devxlab patch) is not loaded.",
	}, []string{"`uname -r` against the version that has the method; `lsmod | grep mlx5_ib`."}},
	unix.EOPNOTSUPP: {"the kernel knows it, this device or driver does not offer it", []string{
		"Among others: a UAR of type BF where the device has no BlueFlame; a DevX query without DevX rights where no fallback exists; REMOTE_ATOMIC in a transition to RTR on a device without atomics; an attribute longer than this kernel's whose new part is not zero; modify of a queue pair type that does not take it.",
		"On a device named emu: it is what every verbs command gets: only DevX is emulated in process.",
	}, []string{"`ibv_devinfo -v` and QUERY_HCA_CAP for the capability."}},
	unix.EIO: {"the device is gone or in error, or firmware failed", []string{
		"After removal of the device every later call on the file gives this, and DevX event files read it: objects are gone, open the device again.",
		"Device in error, Linux 5.15: 2ERR, 2RST and destroy report success without hardware, everything else gives this. On 6.1 and later the call gives ENXIO.",
	}, []string{healthCheck}},
	unix.ENXIO: {"the device is in error", []string{
		"Linux 6.1 and later: the driver refuses commands because the device is in error or its PCI channel is offline. 5.15 gives EIO.",
	}, []string{healthCheck, "Recovery may take a minute (`health recovery succeeded`); after it, open the device again."}},
	unix.ENODEV: {"the device or network interface went away", []string{
		"The device was being removed at the moment of the call, or an address has no RDMA device behind it (rdma_cm).",
	}, []string{healthCheck, "`rdma link`: which netdev belongs to which device."}},
	unix.ENOENT: {"no such file, or no such handle", []string{
		"As a path: no /dev/infiniband/uverbsN, or a counter that is elsewhere (out_of_buffer is under hw_counters).",
		"From an ioctl: the handle is not one of this file.",
	}, []string{"`ls /dev/infiniband`; `modprobe ib_uverbs mlx5_ib`.", "That the handle came from the same open file and was not destroyed."}},
	unix.EPERM: {"a capability is missing", []string{
		"CAP_NET_RAW: raw packet QPs, and a Q_Key with its top bit set. CAP_NET_ADMIN: changes through rdma netlink. RLIMIT_MEMLOCK of 0: any registration. An RC QP, by verbs or DevX, needs none.",
	}, []string{"`capsh --print`, `ulimit -l`; inside a container what its runtime drops."}},
	unix.EACCES: {"no permission for the file, or other credentials than at open", []string{
		"open: the permissions of /dev/infiniband/uverbsN or rdma_cm, or the container's device list.",
		"write: the process changed its credentials (setuid, exec) after it opened the file; the kernel says so in dmesg once.",
	}, []string{"`ls -l /dev/infiniband`, `id`, the container's devices cgroup.", "dmesg for `changed security contexts`."}},
	unix.ENOSPC: {"the room for the answer is too small", []string{
		"INVOKE_WRITE: the output attribute is shorter than the driver's answer. read of an asynchronous DevX query: the buffer is shorter than header and output together.",
	}, []string{"The length of the output attribute or buffer."}},
	unix.EAGAIN: {"no resources at the moment", []string{
		"Firmware status no resources before Linux 5.18; a command slot that could not be had; or simply a non-blocking event file without an event.",
	}, []string{"If it was a read: poll first.", "Otherwise dmesg for `failed to allocate command entry` and page failures; retry after a pause."}},
	unix.EBUSY: {"in use, or no command slot for 60 s", []string{
		"The object is used by another one or by a call in flight: uverbs refuses to destroy it. Or firmware says resource busy.",
		"6.1 stable kernels: no command slot became free for 60 s.",
	}, []string{"What refers to the object: `rdma resource show qp`, … cq, … mr.", healthCheck}},
	unix.EFAULT: {"a pointer could not be read or written", []string{
		"A pointer inside an ioctl attribute. In Go: memory that moved or was freed, because the collector does not see a pointer in a uint64. Also a command block that the device could not take.",
	}, []string{"That attribute memory is mmapped or pinned for the whole call."}},
	unix.EINTR: {"a signal interrupted a wait", []string{
		"read or poll of an event file; Go's runtime sends such signals itself to preempt. An ioctl inside the driver is not interrupted.",
	}, []string{"Repeat the call."}},
	unix.EOVERFLOW: {"events were lost", []string{
		"read of a DevX event file: the kernel could not queue an event; this is reported once.",
	}, []string{"Query the objects that you watch, and read faster."}},
	unix.ENOSYS: {"not implemented", []string{"For example modify of a QP made on a receive-queue indirection table."}, nil},
	unix.EHOSTUNREACH: {"no route", []string{"Resolving the destination GID or address: the kernel has no route to it."},
		[]string{"`ip route get` for the destination, from the netdev of the source GID."}},
	unix.ENETUNREACH: {"no route", []string{"Resolving the destination GID or address: the kernel has no route to it."},
		[]string{"`ip route get` for the destination, from the netdev of the source GID."}},
	unix.EBADR:  {"the command's delivery failed", []string{"mlx5_core: signature or token error in the command queue: driver and device disagree about the queue."}, []string{healthCheck}},
	unix.ENOMSG: {"the command's delivery failed", []string{"mlx5_core: the device refused a length, descriptor or reserved field of the command queue entry."}, []string{healthCheck}},
}

// Errno explains an error number of a verbs or DevX call. 0 is no error.
func Errno(e unix.Errno) Answer {
	a := Answer{Kind: KindErrno, Errno: e}
	if e == 0 {
		a.Summary = "errno 0: no error"
		return a
	}
	if errnoName(e) == "" {
		a.Summary = fmt.Sprintf("%d is no error number of Linux", int(e))
		return a
	}
	i, known := errnos[e]
	a.Summary = fmt.Sprintf("%s: %s", errnoText(e), e.Error())
	if known {
		a.Summary += ": " + i.short
	}
	a.Meaning = append(a.Meaning, i.meaning...)
	if s := statusesOf(e); s != "" {
		a.mean("Firmware statuses that become it where the kernel passes no output on (every DevX failure before Linux 5.18): %s.", s)
	}
	if len(a.Meaning) == 0 {
		a.mean("mlx5 and uverbs give it no meaning of their own.")
	}
	a.check(i.check...)
	return a
}

// statusesOf lists the statuses that the driver maps to e.
func statusesOf(e unix.Errno) string {
	var n []string
	for s := mlx5.Status(1); s != 0; s++ {
		if knownStatus(s) && statusErrno(s) == e {
			n = append(n, statusText(s))
		}
	}
	return strings.Join(n, ", ")
}

func errnoText(e unix.Errno) string { return fmt.Sprintf("%s (%d)", errnoName(e), int(e)) }

// errnoName prefers the name that the kernel's sources use.
func errnoName(e unix.Errno) string {
	if e == unix.EOPNOTSUPP {
		return "EOPNOTSUPP"
	}
	return unix.ErrnoName(e)
}

const maxErrno = 255 // above the last that Linux has

// errnoNames maps names and, in lower case, texts to numbers.
var errnoNames = sync.OnceValues(func() (names, texts map[string]unix.Errno) {
	names = map[string]unix.Errno{"ENOTSUP": unix.EOPNOTSUPP, "EWOULDBLOCK": unix.EAGAIN, "EDEADLOCK": unix.EDEADLK}
	texts = map[string]unix.Errno{}
	for e := unix.Errno(1); e <= maxErrno; e++ {
		if n := errnoName(e); n != "" {
			names[n] = e
			texts[strings.ToLower(e.Error())] = e
		}
	}
	return names, texts
})

// addErrno adds what an errno in s means, if there is one.
func (a *Answer) addErrno(s string) {
	if e, ok := errnoIn(s); ok {
		a.Errno = e
		x := Errno(e)
		a.mean("%s", x.Summary)
		a.Meaning = append(a.Meaning, x.Meaning...)
		a.check(x.Check...)
	}
}

var (
	errnoNameRE = regexp.MustCompile(`\bE[A-Z0-9]{2,}\b`)
	errnoNumRE  = regexp.MustCompile(`(?i)(?:\b(?:errno|err|error|ret|rc|returns?|returned|with|failed)\b[\s:=(]*-?|\(-|\[-?)(\d{1,3})\b|^-?(\d{1,3})$`)
)

// errnoIn finds an error number by name, by number where the words around it
// say that it is one, or by the text that strerror gives.
func errnoIn(s string) (unix.Errno, bool) {
	byName, byText := errnoNames()
	for _, w := range errnoNameRE.FindAllString(s, -1) {
		if e, ok := byName[w]; ok {
			return e, true
		}
	}
	var best string
	low := strings.ToLower(s)
	for t := range byText {
		if (len(t) > len(best) || len(t) == len(best) && t < best) && strings.Contains(low, t) {
			best = t
		}
	}
	if best != "" {
		return byText[best], true
	}
	if m := errnoNumRE.FindStringSubmatch(s); m != nil {
		if v, err := strconv.Atoi(m[1] + m[2]); err == nil && v > 0 && errnoName(unix.Errno(v)) != "" {
			return unix.Errno(v), true
		}
	}
	return 0, false
}

func parseErrno(s string) (Answer, bool, error) {
	e, ok := errnoIn(strings.ToUpper(s))
	if !ok {
		return Answer{}, false, nil
	}
	a := Errno(e)
	if n, err := strconv.Atoi(strings.TrimPrefix(s, "-")); err == nil && n < len(wcStatuses) {
		a.check(fmt.Sprintf("If %d was a completion's status (%s), give it with its vendor error: %d/0x81.", n, wcName(uint8(n)), n))
	}
	return a, true, nil
}
