// SPDX-License-Identifier: BSD-2-Clause

package ebpf

// A Stage is a place on a command's way through the kernel. Each command, or each
// call that may lead to one, is counted where it passes.
type Stage uint8

// The stages, in the order in which a modification passes them. bpf/command.bpf.c
// has the same list.
const (
	UverbsModify Stage = iota // MODIFY_QP reaches ib_uverbs, by whichever system call
	DevXCreate                // a DevX method reaches mlx5_ib
	DevXModify
	DevXQuery
	DevXOther
	CoreModify   // a verbs modification reaches ib_core
	DriverModify // a verbs modification reaches mlx5_ib: qp.c
	QPCModify    // mlx5_ib sends the command of a verbs modification: qpc.c
	Command      // mlx5_core begins a firmware command
	Queued       // its work is queued for the submission worker
	Worker       // the worker begins with it: it waits for a slot, then rings the doorbell
	Completion   // the firmware has answered
	Awake        // the caller runs again, and its command returns

	// Of connections, counted for the whole machine: but for CMEnd no filter is applied.
	CMSendREQ // ib_cm is told to send one; repetitions are not counted
	CMSendREP
	CMSendRTU
	CMSendDREQ
	CMReceiveREQ // ib_cm receives one, also a repetition
	CMReceiveREP
	CMReceiveRTU
	CMReceiveDREQ
	CMWork      // a worker begins with an event
	CMRemoteID  // a remote communication id is inserted
	CMRemoteQPN // a remote QPN is inserted
	CMDuplicate // the id was there already: a repeated REQ or REP
	CMStale     // the QPN was there already: a stale connection
	CMReject    // a REJ is issued for a message without a connection
	CMTimewait  // a connection enters time-wait
	CMSent      // a message of a connection is handed to ib_mad
	CMSendEnd   // ib_mad is done with a message, and tells its repetitions
	CMEnd       // a connection ends, and its record is complete; one per connection, filters applied
)

// A Part is a span of time between two stages.
type Part uint8

// The parts. What the kernel has no function for, the doorbell, is known from the
// command entry's own time stamps.
const (
	Entry     Part = iota // uverbs or DevX to Command; of a call's first command
	Prepare               // Command to Queued: copies, messages
	Queue                 // Queued to Worker: waiting for the one submission worker
	Slot                  // Worker to the doorbell: waiting for a free slot, and writing it
	Firmware              // doorbell to Completion
	Wake                  // Completion to Awake
	Whole                 // Command to Awake
	Call                  // uverbs or DevX to its return, all commands of it
	partCount = iota
)

// place is a function, or a tracepoint, and what is attached there.
type place struct {
	program string
	symbol  string
	back    bool // at its return
	renamed bool // also where the compiler changed its arguments: only that it was called is of interest
	trace   bool // symbol is a tracepoint
	fentry  bool // also on top of another program: in interrupts
}

// spec says where a stage can be seen.
type spec struct {
	name   string
	module string  // vmlinux: the kernel itself
	needs  []Stage // without which this one sees nothing
	ways   [][]place
}

// entered is a function whose return ends the call.
func entered(program string, symbols ...string) (way []place) {
	for _, s := range symbols {
		way = append(way, place{program: program, symbol: s, renamed: true}, place{program: "left", symbol: s, back: true, renamed: true})
	}
	return way
}

const devxHandler = "mlx5_ib_handler_MLX5_IB_METHOD_DEVX_"

// specs are the stages' places. The first way whose places are all there is taken.
var specs = [...]spec{
	UverbsModify: {name: "uverbs modify", module: "ib_uverbs", ways: [][]place{entered("uverbs_modify", "ib_uverbs_modify_qp", "ib_uverbs_ex_modify_qp")}},
	DevXCreate:   {name: "DevX create", module: "mlx5_ib", ways: [][]place{entered("devx_create", devxHandler+"OBJ_CREATE")}},
	DevXModify:   {name: "DevX modify", module: "mlx5_ib", ways: [][]place{entered("devx_modify", devxHandler+"OBJ_MODIFY")}},
	DevXQuery:    {name: "DevX query", module: "mlx5_ib", ways: [][]place{entered("devx_query", devxHandler+"OBJ_QUERY")}},
	DevXOther:    {name: "DevX other", module: "mlx5_ib", ways: [][]place{entered("devx_other", devxHandler+"OTHER")}},
	CoreModify: {name: "core modify", module: "ib_core", ways: [][]place{
		{{program: "core_modify", symbol: "_ib_modify_qp", renamed: true}},
		{{program: "core_modify", symbol: "ib_modify_qp", renamed: true}, {program: "core_modify", symbol: "ib_modify_qp_with_udata", renamed: true}},
	}},
	DriverModify: {name: "driver modify", module: "mlx5_ib", ways: [][]place{{{program: "driver_modify", symbol: "mlx5_ib_modify_qp", renamed: true}}}},
	QPCModify:    {name: "qpc modify", module: "mlx5_ib", ways: [][]place{{{program: "qpc_modify", symbol: "mlx5_core_qp_modify", renamed: true}}}},
	Command:      {name: "command", module: "mlx5_core", ways: [][]place{{{program: "command", symbol: "cmd_exec"}}}},
	Queued: {name: "queued", module: "vmlinux", needs: []Stage{Command, Worker},
		ways: [][]place{{{program: "queued", symbol: "workqueue_queue_work", trace: true}}}},
	Worker: {name: "worker", module: "mlx5_core", needs: []Stage{Command}, ways: [][]place{{{program: "worker", symbol: "cmd_work_handler"}}}},
	Completion: {name: "completion", module: "vmlinux", needs: []Stage{Command, Worker},
		ways: [][]place{{{program: "completion", symbol: "complete", fentry: true}, {program: "completion_again", symbol: "complete", fentry: true}}}},
	Awake:         {name: "awake", module: "mlx5_core", needs: []Stage{Command}, ways: [][]place{{{program: "awake", symbol: "cmd_exec", back: true}}}},
	CMSendREQ:     cmAt("send REQ", "cm_send_req", "ib_send_cm_req", false),
	CMSendREP:     cmAt("send REP", "cm_send_rep", "ib_send_cm_rep", false),
	CMSendRTU:     cmAt("send RTU", "cm_send_rtu", "ib_send_cm_rtu", false),
	CMSendDREQ:    cmAt("send DREQ", "cm_send_dreq", "ib_send_cm_dreq", false),
	CMReceiveREQ:  cmReceive("receive REQ"),
	CMReceiveREP:  cmReceive("receive REP"),
	CMReceiveRTU:  cmReceive("receive RTU"),
	CMReceiveDREQ: cmReceive("receive DREQ"),
	CMWork:        cmAt("work", "cm_work", "cm_work_handler", false),
	CMRemoteID:    cmAt("remote id", "cm_remote_id", "cm_insert_remote_id", false),
	CMRemoteQPN:   cmAt("remote QPN", "cm_remote_qpn", "cm_insert_remote_qpn", false),
	CMDuplicate:   cmAt("duplicate", "cm_duplicate", "cm_insert_remote_id", true),
	CMStale:       cmAt("stale", "cm_stale", "cm_insert_remote_qpn", true),
	CMReject:      cmAt("reject", "cm_reject", "cm_issue_rej", false),
	CMTimewait:    cmAt("time-wait", "cm_timewait", "cm_enter_timewait", false),
	CMSent:        {name: "CM sent", module: "ib_core", ways: [][]place{{{program: "cm_sent", symbol: "ib_post_send_mad"}}}},
	CMSendEnd:     {name: "CM send end", module: "ib_cm", ways: [][]place{{{program: "cm_send_end", symbol: "cm_send_handler"}}}},
	CMEnd:         {name: "CM end", module: "ib_cm", needs: []Stage{CMSent, CMReceiveREQ}, ways: [][]place{destroyed("cm_destroy_id"), destroyed("ib_destroy_cm_id")}},
}

// cmAt is a stage of ib_cm that is seen where one function begins, or returns.
func cmAt(name, program, symbol string, back bool) spec {
	return spec{name: "CM " + name, module: "ib_cm", ways: [][]place{{{program: program, symbol: symbol, back: back, renamed: true}}}}
}

// destroyed is a function that destroys an id, to its return.
func destroyed(symbol string) []place {
	return []place{{program: "cm_destroy", symbol: symbol}, {program: "cm_destroyed", symbol: symbol, back: true}}
}

// cmReceive is one kind of message of those that one function receives.
func cmReceive(name string) spec {
	return spec{name: "CM " + name, module: "ib_cm", ways: [][]place{{{program: "cm_receive", symbol: "cm_recv_handler"}}}}
}

// Stages returns all of them, in their order.
func Stages() []Stage {
	all := make([]Stage, len(specs))
	for i := range all {
		all[i] = Stage(i)
	}
	return all
}

func (s Stage) String() string {
	if int(s) < len(specs) {
		return specs[s].name
	}
	return "unknown stage"
}

// MarshalText gives a stage its name in JSON.
func (s Stage) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

var partNames = [partCount]string{"entry", "prepare", "queue", "slot", "firmware", "wake", "command", "call"}

// Parts returns all of them, in their order.
func Parts() []Part {
	all := make([]Part, partCount)
	for i := range all {
		all[i] = Part(i)
	}
	return all
}

func (p Part) String() string {
	if int(p) < len(partNames) {
		return partNames[p]
	}
	return "unknown part"
}

// MarshalText gives a part its name in JSON.
func (p Part) MarshalText() ([]byte, error) { return []byte(p.String()), nil }
