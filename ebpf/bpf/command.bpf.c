// SPDX-License-Identifier: BSD-2-Clause

// What happens to one firmware command, from the system call to the return of its
// caller: counts, histograms and, if asked for, a record of each.
//
// A command changes threads twice. Its caller runs cmd_exec, which queues a work
// and sleeps; a worker waits for a free slot and rings the doorbell; an interrupt
// completes it and wakes the caller. The caller is known by its thread, the others
// by the address of the work, which lies inside the command's entry.

#include "kernel.h"

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

char program_license[] SEC("license") = "Dual BSD/GPL";

// Places that are counted. Package ebpf has the same list, in the same order.
enum stage {
	STAGE_UVERBS_MODIFY,
	STAGE_DEVX_CREATE,
	STAGE_DEVX_MODIFY,
	STAGE_DEVX_QUERY,
	STAGE_DEVX_OTHER,
	STAGE_CORE_MODIFY,
	STAGE_DRIVER_MODIFY,
	STAGE_QPC_MODIFY,
	STAGE_COMMAND,
	STAGE_QUEUED,
	STAGE_WORKER,
	STAGE_COMPLETION,
	STAGE_AWAKE,
	STAGE_CM_SEND_REQ,
	STAGE_CM_SEND_REP,
	STAGE_CM_SEND_RTU,
	STAGE_CM_SEND_DREQ,
	STAGE_CM_RECEIVE_REQ,
	STAGE_CM_RECEIVE_REP,
	STAGE_CM_RECEIVE_RTU,
	STAGE_CM_RECEIVE_DREQ,
	STAGE_CM_WORK,
	STAGE_CM_REMOTE_ID,
	STAGE_CM_REMOTE_QPN,
	STAGE_CM_DUPLICATE,
	STAGE_CM_STALE,
	STAGE_CM_REJECT,
	STAGE_CM_TIMEWAIT,
	STAGE_CM_SENT,
	STAGE_CM_SEND_END,
	STAGE_CM_END,
};

// Parts of a command's time, also in the same order there.
enum part {
	PART_ENTRY,    // uverbs or DevX entry to cmd_exec
	PART_PREPARE,  // cmd_exec to the queueing of its work
	PART_QUEUE,    // queued to the worker's start on it
	PART_SLOT,     // worker's start to just before the doorbell
	PART_FIRMWARE, // from there to its completion
	PART_WAKE,     // completion to the return of cmd_exec
	PART_COMMAND,  // all of cmd_exec
	PART_CALL,     // all of the uverbs or DevX call
	PARTS,
};

// What was not seen.
enum loss {
	LOSS_RECORD, // ring buffer full
	LOSS_COUNT,  // no room for another histogram bucket or count
	LOSS_CALL,   // no room for another call in flight
	LOSS_RETURN, // a call whose return was not seen
	LOSS_STAMPS, // completed, and the entry's time stamps were not plausible
	LOSS_COMPLETION, // a caller that had its answer before the completion was seen
	LOSS_ASYNC,  // commands without a caller that waits: counted, not timed
	LOSS_CONNECTION, // no room for another connection, or two peers used one id for theirs
	LOSS_ARRIVAL, // a worker began with a message whose arrival was not seen
	LOSSES,
};

#define UNKNOWN (~0ULL)

// Counts: of each stage, and of those that know the opcode, by opcode. One array, so
// that a count is an addition and no search.
#define OP_STAGES (STAGE_AWAKE - STAGE_COMMAND + 1)
#define MAX_STAGES 64
#define MAX_OPS 4096 // opcodes have 12 bits so far (mlx5_ifc.h)

struct stage_counts {
	__u64 stages[MAX_STAGES];
	__u64 ops[OP_STAGES][MAX_OPS];
};

// Histograms: bucket_of says which value is in which bucket. What takes 2^37 ns and
// more, 137 s, is in the last.
#define BUCKETS 2048

#define BUCKET_SUM 0xffff // in the place of a bucket, where each is by itself: the sum of all values

struct histogram {
	__u64 sum;
	__u32 buckets[BUCKETS];
};

// All parts of the commands with one opcode and one outcome, so that a command makes
// one search and then additions only.
struct part_times {
	struct histogram parts[PARTS];
};

struct part_times_key {
	__u16 op;
	__u16 error; // errno
	__u8 status;
	__u8 zero[3];
};

struct failure_key {
	__u32 syndrome;
	__u16 op;
	__u16 error;
	__u8 status;
	__u8 zero[3];
};

// One command that has ended.
struct record {
	__u64 began; // CLOCK_MONOTONIC
	__u64 parts[PARTS];
	__u32 tgid, tid;
	__u32 qpn, syndrome;
	__s32 returned;
	__u16 op, op_mod, uid;
	__u8 status;
	__u8 zero;
	char comm[16];
};

// A call in flight: from cmd_exec to its return.
struct call {
	__u64 entered, began, queued, started, rung, completed;
	__u64 work, out; // addresses
	__u32 qpn;
	__u16 op, op_mod, uid;
	__u16 nested; // commands that an interrupt sends meanwhile
};

// A thread in a uverbs or DevX call.
struct entry {
	__u64 entered;
	__u16 op; // of its first command
	__u16 used; // it had one
	__u32 zero;
};

#define MAX_CALLS 8192
#define MAX_TIMES 128 // 8 MB
#define MAX_BUCKETS 32768 // of connections
#define MAX_TASKS 16384

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct stage_counts);
} counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_TIMES);
	__type(key, struct part_times_key);
	__type(value, struct part_times);
} times SEC(".maps");

struct part_times no_times; // too large for a stack

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct failure_key);
	__type(value, __u64);
} failures SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, LOSSES);
	__type(key, __u32);
	__type(value, __u64);
} losses SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_CALLS);
	__type(key, __u64); // thread
	__type(value, struct call);
} calls SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_CALLS);
	__type(key, __u64); // thread
	__type(value, struct entry);
} entries SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_CALLS);
	__type(key, __u64); // address of a work
	__type(value, __u64); // thread
} works SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_TASKS);
	__type(key, __u32); // process
	__type(value, __u8);
} tasks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} records SEC(".maps");

volatile const __u64 work_function; // address of cmd_work_handler
volatile const __u64 filter_cgroup;
volatile const __u32 filter_qpn;
volatile const __u16 filter_op;
volatile const __u8 filter_tasks;
volatile const __u8 filter_device; // length of device_name with its zero byte
volatile const __u8 want_records;
volatile const __u64 wake_up_at; // bytes
#define DEVICE_NAME 32
volatile const char device_name[DEVICE_NAME];
volatile const char rdma_name[DEVICE_NAME];
volatile const __u8 rdma_length; // with its zero byte
volatile const __u8 service_mask; // struct ib_cm_id has one; asked only where no BTF tells its fields
volatile __u8 follow_connections; // where all that needs is attached
volatile __u8 over; // nothing is counted any more
volatile const __u8 timewait_id; // cm_enter_timewait has its argument where the source says

// wake_up is how to put a record into a buffer: its reader comes by itself now and
// then, and is woken if there is much for it.
static __always_inline __u64 wake_up(void *buffer)
{
	return bpf_ringbuf_query(buffer, BPF_RB_AVAIL_DATA) >= wake_up_at ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP;
}

static void lose(__u32 what)
{
	__u64 *n = bpf_map_lookup_elem(&losses, &what);
	if (n)
		__sync_fetch_and_add(n, 1);
}

static __always_inline void add(void *map, const void *key, __u64 by)
{
	__u64 *n = bpf_map_lookup_elem(map, key);
	if (!n) {
		__u64 zero = 0;
		bpf_map_update_elem(map, key, &zero, BPF_NOEXIST);
		n = bpf_map_lookup_elem(map, key);
	}
	if (n)
		__sync_fetch_and_add(n, by);
	else
		lose(LOSS_COUNT);
}

static __always_inline void count(__u8 stage, __u16 op)
{
	__u32 zero = 0;
	struct stage_counts *c = bpf_map_lookup_elem(&counts, &zero);
	__u64 at = op;

	if (!c)
		return;
	if (op >= MAX_OPS) {
		lose(LOSS_COUNT);
		return;
	}
	asm volatile("%0 &= 4095" : "+r"(at)); // MAX_OPS - 1, where the verifier sees it
	if (stage >= STAGE_COMMAND && stage <= STAGE_AWAKE)
		__sync_fetch_and_add(&c->ops[stage - STAGE_COMMAND][at], 1);
	else
		__sync_fetch_and_add(&c->stages[stage], 1);
}

// bucket_of numbers values up to 127 by themselves and gives each further power of
// two 64 buckets of one width, so none is wider than 1/64 of its values; but the last
// also has all that is longer.
//
// It is not static, so that the verifier goes through it once, and not for each part in
// each way that the parts before can go: Linux 5.15 gave up.
__attribute__((noinline)) __u32 bucket_of(__u64 v)
{
	__u64 bucket;

	__u32 e = 0;
	__u64 x = v >> 7;
	if (x >> 32) { e += 32; x >>= 32; }
	if (x >> 16) { e += 16; x >>= 16; }
	if (x >> 8) { e += 8; x >>= 8; }
	if (x >> 4) { e += 4; x >>= 4; }
	if (x >> 2) { e += 2; x >>= 2; }
	if (x >> 1) { e += 1; x >>= 1; }
	e += x;
	bucket = (e << 6) + (v >> e);
	return bucket < BUCKETS ? bucket : BUCKETS - 1;
}

// times_of finds the histograms of an outcome.
static __always_inline struct part_times *times_of(__u16 op, __u8 status, __u16 error)
{
	struct part_times_key key = { .op = op, .error = error, .status = status };
	struct part_times *t = bpf_map_lookup_elem(&times, &key);

	if (t)
		return t;
	bpf_map_update_elem(&times, &key, &no_times, BPF_NOEXIST);
	t = bpf_map_lookup_elem(&times, &key);
	if (!t)
		lose(LOSS_COUNT);
	return t;
}

static __always_inline void observe(struct histogram *h, __u64 value)
{
	__u64 bucket;

	if (value == UNKNOWN)
		return;
	bucket = bucket_of(value);
	asm volatile("%0 &= 2047" : "+r"(bucket)); // BUCKETS - 1
	__sync_fetch_and_add(&h->buckets[bucket], 1);
	__sync_fetch_and_add(&h->sum, value);
}

// wanted tells whether the current thread is one that is asked for.
static bool wanted(void)
{
	if (filter_tasks) {
		__u32 tgid = bpf_get_current_pid_tgid() >> 32;
		if (!bpf_map_lookup_elem(&tasks, &tgid))
			return false;
	}
	return !filter_cgroup || bpf_get_current_cgroup_id() == filter_cgroup;
}

// bus_name reads the name of a device from a pointer to it.
static __always_inline void bus_name(char *name, const void *pointer)
{
	struct device *device = 0;
	const char *text = 0;

	bpf_probe_read_kernel(&device, sizeof(device), pointer);
	bpf_core_read(&text, sizeof(text), &device->kobj.name);
	bpf_probe_read_kernel_str(name, DEVICE_NAME, text);
}

static __always_inline bool wanted_device(const void *dev)
{
	char name[DEVICE_NAME] = {};
	__u32 at = 0; // the first field of struct mlx5_core_dev, where no BTF says otherwise

	if (!filter_device)
		return true;
	if (bpf_core_type_exists(struct mlx5_core_dev))
		at = bpf_core_field_offset(struct mlx5_core_dev, device);
	bus_name(name, dev + at);
	for (int i = 0; i < DEVICE_NAME; i++) {
		if (i >= filter_device)
			break;
		if (name[i] != device_name[i])
			return false;
	}
	return true;
}

// enter begins a uverbs or DevX call.
static int enter(__u8 stage)
{
	__u64 thread = bpf_get_current_pid_tgid();
	struct entry e = { .entered = bpf_ktime_get_ns() };

	if (over || !wanted())
		return 0;
	count(stage, 0);
	if (bpf_map_lookup_elem(&entries, &thread))
		lose(LOSS_RETURN); // of the call before
	if (bpf_map_update_elem(&entries, &thread, &e, BPF_ANY))
		lose(LOSS_CALL);
	return 0;
}

static int pass(__u8 stage)
{
	if (!over && wanted())
		count(stage, 0);
	return 0;
}

#define ENTER(name, stage) \
	SEC("kprobe") int name(struct pt_regs *regs) { return enter(stage); }
#define PASS(name, stage) \
	SEC("kprobe") int name(struct pt_regs *regs) { return pass(stage); }

ENTER(uverbs_modify, STAGE_UVERBS_MODIFY)
ENTER(devx_create, STAGE_DEVX_CREATE)
ENTER(devx_modify, STAGE_DEVX_MODIFY)
ENTER(devx_query, STAGE_DEVX_QUERY)
ENTER(devx_other, STAGE_DEVX_OTHER)
PASS(core_modify, STAGE_CORE_MODIFY)
PASS(driver_modify, STAGE_DRIVER_MODIFY)
PASS(qpc_modify, STAGE_QPC_MODIFY)

// left is the return of each of those that enter.
SEC("kretprobe")
int left(struct pt_regs *regs)
{
	__u64 thread = bpf_get_current_pid_tgid();
	struct entry *e = bpf_map_lookup_elem(&entries, &thread);

	if (over || !e)
		return 0;
	if (e->used) {
		__u64 took = bpf_ktime_get_ns() - e->entered;
		struct part_times *t = times_of(e->op, 0, 0);

		if (t)
			observe(&t->parts[PART_CALL], took);
	}
	bpf_map_delete_elem(&entries, &thread);
	return 0;
}

static __always_inline __u16 be16(const __u8 *at)
{
	return at[0] << 8 | at[1];
}

static __always_inline __u32 be32(const __u8 *at)
{
	return (__u32)be16(at) << 16 | be16(at + 2);
}

static __always_inline __u64 be64(const __u8 *at)
{
	return (__u64)be32(at) << 32 | be32(at + 4);
}

static __always_inline __u32 be24(const __u8 *at)
{
	return at[0] << 16 | at[1] << 8 | at[2];
}

// Commands whose second dword is a QP's number: INIT2INIT and all below, without
// CREATE_QP (mlx5_ifc.h).
#define OP_CREATE_QP 0x500
#define OP_LAST_QP 0x50e

static __always_inline __u32 qpn_of(__u16 op, const __u8 *command)
{
	return op > OP_CREATE_QP && op <= OP_LAST_QP ? be24(command + 9) : 0;
}

// disown forgets the work of a call whose completion was not seen.
static __always_inline void disown(struct call *c, __u64 thread)
{
	__u64 work = c->work, *owner;

	if (!work || c->completed)
		return;
	owner = bpf_map_lookup_elem(&works, &work);
	if (owner && *owner == thread)
		bpf_map_delete_elem(&works, &work);
}

// forget drops a call of this thread whose return was not seen.
static __always_inline void forget(__u64 thread)
{
	struct call *c = bpf_map_lookup_elem(&calls, &thread);

	if (!c)
		return;
	lose(LOSS_RETURN);
	disown(c, thread);
	bpf_map_delete_elem(&calls, &thread);
}

static __always_inline int command_async(const void *dev, const void *in)
{
	__u64 thread = bpf_get_current_pid_tgid();
	struct call *c = bpf_map_lookup_elem(&calls, &thread);
	__u8 op[2] = {};

	if (c)
		c->nested++;
	bpf_probe_read_kernel(op, sizeof(op), in);
	if (!wanted() || !wanted_device(dev) || filter_qpn || (filter_op && be16(op) != filter_op))
		return 0;
	count(STAGE_COMMAND, be16(op));
	lose(LOSS_ASYNC);
	return 0;
}

// cmd_exec(dev, in, in_size, out, out_size, callback, context, force_polling)
SEC("kprobe")
int command(struct pt_regs *regs)
{
	__u64 thread = bpf_get_current_pid_tgid();
	struct call c = { .began = bpf_ktime_get_ns() };
	struct entry *e;
	__u8 in[12] = {};

	if (over)
		return 0;
	if (ARG6(regs)) // a callback: it may come in an interrupt, on top of another's call
		return command_async((void *)ARG1(regs), (void *)ARG2(regs));
	forget(thread);
	if (!wanted() || !wanted_device((void *)ARG1(regs)))
		return 0;
	bpf_probe_read_kernel(in, sizeof(in), (void *)ARG2(regs));
	c.op = be16(in);
	c.uid = be16(in + 2);
	c.op_mod = be16(in + 6);
	c.qpn = qpn_of(c.op, in);
	if ((filter_op && c.op != filter_op) || (filter_qpn && c.qpn != filter_qpn))
		return 0;
	count(STAGE_COMMAND, c.op);
	c.out = ARG4(regs);
	e = bpf_map_lookup_elem(&entries, &thread);
	if (e && !e->used) {
		c.entered = e->entered;
		e->op = c.op;
		e->used = 1;
	}
	if (bpf_map_update_elem(&calls, &thread, &c, BPF_ANY))
		lose(LOSS_CALL);
	return 0;
}

static void own(struct call *c, __u64 thread, __u64 work)
{
	c->work = work;
	if (bpf_map_update_elem(&works, &work, &thread, BPF_ANY))
		lose(LOSS_CALL);
}

// workqueue_queue_work(req_cpu, pwq, work)
SEC("raw_tp/workqueue_queue_work")
int queued(struct bpf_raw_tracepoint_args *ctx)
{
	__u64 thread = bpf_get_current_pid_tgid();
	struct work_struct *work = (void *)ctx->args[2];
	struct call *c = bpf_map_lookup_elem(&calls, &thread);
	__u64 function = 0;

	if (over || !c || c->queued || c->nested)
		return 0;
	bpf_core_read(&function, sizeof(function), &work->func);
	if (function != work_function)
		return 0;
	c->queued = bpf_ktime_get_ns();
	count(STAGE_QUEUED, c->op);
	own(c, thread, (__u64)work);
	return 0;
}

// cmd_work_handler(work). Commands about pages call it without a worker.
SEC("kprobe")
int worker(struct pt_regs *regs)
{
	__u64 work = ARG1(regs), thread, *owner;
	struct call *c;

	owner = bpf_map_lookup_elem(&works, &work);
	thread = owner ? *owner : bpf_get_current_pid_tgid();
	c = bpf_map_lookup_elem(&calls, &thread);
	if (over || !c || c->started)
		return 0;
	c->started = bpf_ktime_get_ns();
	count(STAGE_WORKER, c->op);
	if (!owner)
		own(c, thread, work);
	return 0;
}

// Distances within struct mlx5_cmd_work_ent. Where no BTF tells them they are those
// of 5.10 to 7.3 without lock debugging: the time stamps are then checked.

static __always_inline __u64 done_to_work(void)
{
	if (bpf_core_type_exists(struct mlx5_cmd_work_ent))
		return bpf_core_field_offset(struct mlx5_cmd_work_ent, work) - bpf_core_field_offset(struct mlx5_cmd_work_ent, done);
	return bpf_core_type_size(struct completion) + sizeof(void *);
}

static __always_inline __u64 work_to_stamps(void)
{
	if (bpf_core_type_exists(struct mlx5_cmd_work_ent))
		return bpf_core_field_offset(struct mlx5_cmd_work_ent, ts1) - bpf_core_field_offset(struct mlx5_cmd_work_ent, work);
	return bpf_core_type_size(struct work_struct) + 24;
}

// complete(x) is called for everything in the kernel that waits for something. The
// one that is meant is that of a command's entry, for which mlx5_cmd_comp_handler
// calls it when it has written the second time stamp. The entry still exists: its
// owner is yet to be woken.
//
// It happens in an interrupt, maybe on top of another program of these. A kprobe's
// program would not be run then (trace_call_bpf). One of fentry is, unless it is the
// very one that was interrupted, for another call of complete: so there are two, and
// the second finds its work done where the first was run.
static int completed(__u64 work)
{
	__u64 now, stamps[2] = {}, *owner;
	struct call *c;

	owner = bpf_map_lookup_elem(&works, &work);
	if (!owner)
		return 0;
	c = bpf_map_lookup_elem(&calls, owner);
	if (over || !c || c->work != work || !c->started || c->completed)
		return 0;
	now = bpf_ktime_get_ns();
	// Now, while the entry exists: freed, it may be another command's before this
	// one's caller has returned.
	bpf_map_delete_elem(&works, &work);
	count(STAGE_COMPLETION, c->op);
	bpf_probe_read_kernel(stamps, sizeof(stamps), (void *)(work + work_to_stamps()));
	c->completed = now;
	if (stamps[0] >= c->started && stamps[0] <= stamps[1] && stamps[1] <= now) {
		c->rung = stamps[0];
		c->completed = stamps[1];
	} else {
		lose(LOSS_STAMPS);
	}
	return 0;
}

SEC("fentry/complete")
int completion(__u64 *args)
{
	return completed(args[0] + done_to_work());
}

SEC("fentry/complete")
int completion_again(__u64 *args)
{
	return completed(args[0] + done_to_work());
}

// between returns how long it was from one time to another, if both were seen.
static __always_inline __u64 between(__u64 from, __u64 to)
{
	return from && to ? to - from : UNKNOWN;
}

#define SPLIT(into, c, now) do { \
	(into)[PART_ENTRY] = between((c)->entered, (c)->began); \
	(into)[PART_PREPARE] = between((c)->began, (c)->queued); \
	(into)[PART_QUEUE] = between((c)->queued, (c)->started); \
	(into)[PART_SLOT] = between((c)->started, (c)->rung); \
	(into)[PART_FIRMWARE] = between((c)->rung, (c)->completed); \
	(into)[PART_WAKE] = between((c)->completed, now); \
	(into)[PART_COMMAND] = (now) - (c)->began; \
	(into)[PART_CALL] = UNKNOWN; \
} while (0)

// The return of cmd_exec. The answer is in the caller's buffer only if it is 0.
SEC("kretprobe")
int awake(struct pt_regs *regs)
{
	__u64 thread = bpf_get_current_pid_tgid(), now = bpf_ktime_get_ns();
	struct call *c = bpf_map_lookup_elem(&calls, &thread);
	struct record r = {};
	struct part_times *t;
	__u8 out[12] = {};
	__u16 error;

	if (over || !c)
		return 0;
	if (c->nested) {
		c->nested--;
		return 0;
	}
	r.returned = RETURNED(regs);
	error = r.returned < 0 ? -r.returned : 0;
	r.op = c->op;
	r.qpn = c->qpn;
	if (!r.returned) {
		bpf_probe_read_kernel(out, sizeof(out), (void *)c->out);
		r.status = out[0];
		r.syndrome = be32(out + 4);
		if (!c->completed)
			lose(LOSS_COMPLETION);
		if (c->op == OP_CREATE_QP && !r.status)
			r.qpn = be24(out + 9);
	}
	count(STAGE_AWAKE, r.op);
	SPLIT(r.parts, c, now);
	t = times_of(r.op, r.status, error);
	if (t) {
#pragma unroll
		for (int i = 0; i < PART_CALL; i++)
			observe(&t->parts[i], r.parts[i]);
	}
	if (r.status || error) {
		struct failure_key f = { .syndrome = r.syndrome, .op = r.op, .error = error, .status = r.status };
		add(&failures, &f, 1);
	}
	if (want_records) {
		r.began = c->began;
		r.tgid = thread >> 32;
		r.tid = thread;
		r.op_mod = c->op_mod;
		r.uid = c->uid;
		bpf_get_current_comm(r.comm, sizeof(r.comm));
		if (bpf_ringbuf_output(&records, &r, sizeof(r), wake_up(&records)))
			lose(LOSS_RECORD);
	}
	disown(c, thread);
	bpf_map_delete_elem(&calls, &thread);
	return 0;
}

// sched_process_fork(parent, child): children of wanted processes are wanted.
SEC("raw_tp/sched_process_fork")
int forked(struct bpf_raw_tracepoint_args *ctx)
{
	__u32 parent = bpf_get_current_pid_tgid() >> 32, child = 0;
	struct task_struct *task = (void *)ctx->args[1];
	__u8 yes = 1;

	if (!bpf_map_lookup_elem(&tasks, &parent))
		return 0;
	bpf_core_read(&child, sizeof(child), &task->tgid);
	if (bpf_map_update_elem(&tasks, &child, &yes, BPF_ANY))
		lose(LOSS_CALL);
	return 0;
}

// sched_process_exit(task)
SEC("raw_tp/sched_process_exit")
int exited(struct bpf_raw_tracepoint_args *ctx)
{
	__u64 thread = bpf_get_current_pid_tgid();
	__u32 tgid = thread >> 32;
	struct task_struct *task = (void *)ctx->args[0];

	bpf_map_delete_elem(&entries, &thread);
	if (!BPF_CORE_READ(task, signal, live.counter)) // no thread is left
		bpf_map_delete_elem(&tasks, &tgid);
	return 0;
}

#include "connection.h"

// For the generated bindings.
const struct record *unused_record __attribute__((unused));
const struct stage_counts *unused_counts __attribute__((unused));
const struct failure_key *unused_failure __attribute__((unused));
const struct connection *unused_connection __attribute__((unused));
const struct connection_bucket_key *unused_connection_bucket __attribute__((unused));
const struct outcome_key *unused_outcome __attribute__((unused));
