// SPDX-License-Identifier: BSD-2-Clause

// What happens to one connection of ib_cm, by what it sends and receives: each
// message passes ib_post_send_mad or cm_recv_handler, and says itself what it is and
// whose. Of the kernel's own structures only public ones are read, and cm_work.
//
// Much of this happens in workers that serve everybody. Stages are counted for the
// whole machine; a connection belongs to the process that sent its REQ, or its REP or
// REJ in answer to one.

#pragma once

#define CM(name, stage) \
	SEC("kprobe") int name(struct pt_regs *regs) { if (!over) count(stage, 0); return 0; }
// The tree of remote ids, or of remote QPNs, returns what was there before.
#define CM_FOUND(name, stage) \
	SEC("kretprobe") int name(struct pt_regs *regs) { if (!over && RETURNED(regs)) count(stage, 0); return 0; }

CM(cm_send_req, STAGE_CM_SEND_REQ)
CM(cm_send_rep, STAGE_CM_SEND_REP)
CM(cm_send_rtu, STAGE_CM_SEND_RTU)
CM(cm_send_dreq, STAGE_CM_SEND_DREQ)
CM(cm_remote_id, STAGE_CM_REMOTE_ID)
CM(cm_remote_qpn, STAGE_CM_REMOTE_QPN)
CM_FOUND(cm_duplicate, STAGE_CM_DUPLICATE)
CM_FOUND(cm_stale, STAGE_CM_STALE)
CM(cm_reject, STAGE_CM_REJECT)

// Messages, as their attribute ids count from CM_FIRST (rdma/ib_cm.h). Package ebpf
// has the same list.
#define CM_FIRST 0x10
enum message { CM_REQ, CM_MRA, CM_REJ, CM_REP, CM_RTU, CM_DREQ, CM_DREP, CM_MESSAGES };
#define CM_OTHER 0xff
#define CM_SLOTS 8 // of arrays by message: a power of two, so that the verifier can be shown what is in bounds

// Parts of a connection's time. Package ebpf has the same list.
enum connection_part {
	CM_PART_REPLY,   // REQ to REP
	CM_PART_CONFIRM, // REP to RTU
	CM_PART_WORK,    // received to the worker's start on it, by message
};

// What became of it, in the order in which package ebpf has it.
enum outcome { CM_ESTABLISHED, CM_REJECTED, CM_UNANSWERED, CM_DROPPED };

struct connection_key {
	__u64 guid; // of the peer's CA; 0 in a connection that this side asked for
	__u32 id;   // of the side that asked
	__u32 passive;
};

struct connection {
	__u64 sent[CM_SLOTS], received[CM_SLOTS]; // the first of each, CLOCK_MONOTONIC
	__u64 waited[CM_SLOTS]; // from there to the worker's start on it
	__u64 timewait, ended;
	__u64 service, guid;
	__u32 tgid, tid;
	__u32 local, remote, local_qpn, remote_qpn;
	__u32 retried, repeated; // messages sent again, received again
	__u32 echo;    // what a REQ has where others have the receiver's id: the vendor's
	__u32 zero2;
	__u16 reason;
	__u8 passive;
	__u8 rejected; // which message was: 0 REQ, 1 REP, 2 neither
	__u8 status;   // of a message that could not be sent, or got no answer: ib_wc_status
	__u8 failed;   // which one
	__u8 outcome;
	__u8 zero;
	char comm[16];
	char device[DEVICE_NAME];
};

// Ids that lead to a connection: this side's, or until that is known the peer's.
struct id_key {
	__u32 id;
	__u32 remote;
};

struct arrival {
	struct connection_key key;
	__u64 at;
	__u8 message;
	__u8 zero[7];
};

struct ending {
	struct connection_key key;
	__u64 began;
};

struct connection_bucket_key {
	__u8 part, passive, message, zero;
	__u16 bucket;
	__u16 zero2;
};

struct outcome_key {
	__u16 reason;
	__u8 outcome, passive;
};

#define MAX_CONNECTIONS 16384

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_CONNECTIONS);
	__type(key, struct connection_key);
	__type(value, struct connection);
} connections SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 2 * MAX_CONNECTIONS);
	__type(key, struct id_key);
	__type(value, struct connection_key);
} ids SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_CONNECTIONS);
	__type(key, __u64); // address of the ib_mad_recv_wc
	__type(value, struct arrival);
} arrivals SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_CALLS);
	__type(key, __u64); // thread
	__type(value, struct ending);
} endings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_BUCKETS);
	__type(key, struct connection_bucket_key);
	__type(value, __u64);
} connection_buckets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 256);
	__type(key, struct outcome_key);
	__type(value, __u64);
} outcomes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} connection_records SEC(".maps");

static const struct connection nothing; // 300 bytes that the stack has no room for

// Where a MAD has what is read of it: the header's class and attribute id, and behind
// it both ids of each message but REQ, which has only its own (ibta_vol1_c12.h).
#define MAD_CLASS 1
#define MAD_ATTR_ID 16
#define MAD_LOCAL_ID 24
#define MAD_REMOTE_ID 28
#define MAD_REQ_SERVICE 32
#define MAD_REQ_GUID 40
#define MAD_REQ_QPN 56
#define MAD_REP_QPN 36
#define MAD_REJ_MESSAGE 32
#define MAD_REJ_REASON 34
#define MAD_READ 60
#define MAD_CLASS_CM 7

static __always_inline __u8 message_of(const __u8 *mad)
{
	__u16 id = be16(mad + MAD_ATTR_ID);
	return id >= CM_FIRST && id < CM_FIRST + CM_MESSAGES ? id - CM_FIRST : CM_OTHER;
}

static __always_inline __u64 *slot(__u64 *times, __u64 m)
{
	asm volatile("%0 &= 7" : "+r"(m)); // CM_SLOTS - 1
	return times + m;
}

static void observe_connection(__u8 part, __u8 passive, __u8 message, __u64 value)
{
	struct connection_bucket_key key = { .part = part, .passive = passive, .message = message };

	key.bucket = bucket_of(value);
	add(&connection_buckets, &key, 1);
	key.bucket = BUCKET_SUM;
	add(&connection_buckets, &key, value);
}

// device_of fills in the connection's device: its RDMA name, or without BTF of ib_core
// that of its place on the bus. It tells whether the device is asked for.
static __always_inline bool device_of(struct connection *c, const void *agent)
{
	__u64 dev = 0;
	__u32 at = 0; // the first field of either, where no BTF says otherwise

	if (bpf_core_type_exists(struct ib_mad_agent))
		at = bpf_core_field_offset(struct ib_mad_agent, device);
	bpf_probe_read_kernel(&dev, sizeof(dev), agent + at);
	if (bpf_core_type_exists(struct ib_device)) {
		bpf_probe_read_kernel_str(c->device, sizeof(c->device), (void *)(dev + bpf_core_field_offset(struct ib_device, name)));
		for (int i = 0; i < DEVICE_NAME; i++) {
			if (i >= rdma_length)
				break;
			if (c->device[i] != rdma_name[i])
				return false;
		}
		return true;
	}
	bus_name(c->device, (void *)dev);
	for (int i = 0; i < DEVICE_NAME; i++) {
		if (i >= filter_device)
			break;
		if (c->device[i] != device_name[i])
			return false;
	}
	return true;
}

static __always_inline void point(__u32 id, __u32 remote, const struct connection_key *key)
{
	struct id_key k = { .id = id, .remote = remote };

	if (bpf_map_update_elem(&ids, &k, key, BPF_ANY))
		lose(LOSS_CONNECTION);
}

// forget_id removes an id, unless it leads to another connection by now.
static __always_inline void forget_id(__u32 id, __u32 remote, const struct connection_key *key)
{
	struct id_key k = { .id = id, .remote = remote };
	struct connection_key *there = bpf_map_lookup_elem(&ids, &k);

	if (there && there->guid == key->guid && there->id == key->id)
		bpf_map_delete_elem(&ids, &k);
}

static void drop(struct connection_key *key, struct connection *c)
{
	if (c->passive) {
		forget_id(c->remote, 1, key);
		if (c->local)
			forget_id(c->local, 0, key);
	}
	bpf_map_delete_elem(&connections, key);
}

static __always_inline __u64 began(const struct connection *c)
{
	return c->passive ? c->received[CM_REQ] : c->sent[CM_REQ];
}

// end is when nothing more can happen to a connection.
static void end(struct connection_key *key, struct connection *c)
{
	struct outcome_key o = { .passive = c->passive, .reason = c->reason };

	if (!c->tgid && (filter_tasks || filter_cgroup)) { // nobody's: the kernel has not asked any process
		drop(key, c);
		return;
	}
	c->ended = bpf_ktime_get_ns();
	if (c->sent[CM_RTU] || c->received[CM_RTU] || c->sent[CM_DREQ] || c->received[CM_DREQ])
		o.outcome = CM_ESTABLISHED;
	else if (c->sent[CM_REJ] || c->received[CM_REJ])
		o.outcome = CM_REJECTED;
	else if (c->status)
		o.outcome = CM_UNANSWERED;
	else
		o.outcome = CM_DROPPED;
	c->outcome = o.outcome;
	count(STAGE_CM_END, 0);
	add(&outcomes, &o, 1);
	if (want_records && bpf_ringbuf_output(&connection_records, c, sizeof(*c), wake_up(&connection_records)))
		lose(LOSS_RECORD);
	drop(key, c);
}

// begin makes a connection of a REQ. One of a passive side that is there already has
// the REQ sent again.
static __always_inline struct connection *begin(struct connection_key *key, const void *agent, const __u8 *mad)
{
	struct connection *c = bpf_map_lookup_elem(&connections, key);
	struct id_key remote = { .id = key->id, .remote = 1 };

	if (c && key->passive) {
		__sync_fetch_and_add(&c->repeated, 1);
		return 0;
	}
	if (c) // the same id asks again: the attempt before has failed
		end(key, c);
	if (key->passive && bpf_map_lookup_elem(&ids, &remote))
		lose(LOSS_CONNECTION); // of another peer, which now cannot be told from this one
	if (bpf_map_update_elem(&connections, key, &nothing, BPF_ANY)) {
		lose(LOSS_CONNECTION);
		return 0;
	}
	c = bpf_map_lookup_elem(&connections, key);
	if (!c)
		return 0;
	c->passive = key->passive;
	if (!device_of(c, agent)) {
		bpf_map_delete_elem(&connections, key);
		return 0;
	}
	c->service = be64(mad + MAD_REQ_SERVICE);
	c->guid = key->guid;
	c->echo = be32(mad + MAD_REMOTE_ID);
	if (key->passive) {
		c->remote = key->id;
		c->remote_qpn = be24(mad + MAD_REQ_QPN);
		point(key->id, 1, key);
	} else {
		c->local = key->id;
		c->local_qpn = be24(mad + MAD_REQ_QPN);
	}
	return c;
}

// find finds a connection by this side's id.
static __always_inline struct connection *find(__u32 local, struct connection_key *key)
{
	struct id_key id = { .id = local };
	struct connection_key *there;
	struct connection *c;

	key->guid = key->passive = 0;
	key->id = local;
	c = bpf_map_lookup_elem(&connections, key);
	if (c)
		return c;
	there = bpf_map_lookup_elem(&ids, &id);
	if (!there)
		return 0;
	*key = *there;
	return bpf_map_lookup_elem(&connections, key);
}

// find_peer finds a passive side by the peer's id.
static __always_inline struct connection *find_peer(__u32 remote, struct connection_key *key)
{
	struct id_key id = { .id = remote, .remote = 1 };
	struct connection_key *there = bpf_map_lookup_elem(&ids, &id);

	if (!there)
		return 0;
	*key = *there;
	return bpf_map_lookup_elem(&connections, key);
}

// find_asking finds one whose id the peer has not been told.
static __always_inline struct connection *find_asking(__u32 remote, struct connection_key *key)
{
	struct connection *c = find_peer(remote, key);

	return c && !c->local ? c : 0;
}

// own makes the current process a connection's, if it is one that is asked for.
static __always_inline bool own_connection(struct connection *c)
{
	__u64 thread = bpf_get_current_pid_tgid();

	if (!wanted())
		return false;
	c->tgid = thread >> 32;
	c->tid = thread;
	bpf_get_current_comm(c->comm, sizeof(c->comm));
	if (c->passive && c->waited[CM_REQ])
		observe_connection(CM_PART_WORK, 1, CM_REQ, c->waited[CM_REQ]);
	return true;
}

static __always_inline void read_send_buf(const void *buf, __u64 *mad, __u64 *agent)
{
	__u32 at_mad = sizeof(void *), at_agent = 2 * sizeof(void *); // 5.10 to 7.3

	if (bpf_core_type_exists(struct ib_mad_send_buf)) {
		at_mad = bpf_core_field_offset(struct ib_mad_send_buf, mad);
		at_agent = bpf_core_field_offset(struct ib_mad_send_buf, mad_agent);
	}
	bpf_probe_read_kernel(mad, sizeof(*mad), buf + at_mad);
	bpf_probe_read_kernel(agent, sizeof(*agent), buf + at_agent);
}

// ib_post_send_mad(send_buf, bad_send_buf)
SEC("kprobe")
int cm_sent(struct pt_regs *regs)
{
	__u64 now = bpf_ktime_get_ns(), at = 0, agent = 0;
	struct connection_key key = {};
	struct connection *c;
	__u8 mad[MAD_READ] = {}, m;
	__u32 local, remote;

	if (over)
		return 0;
	read_send_buf((void *)ARG1(regs), &at, &agent);
	bpf_probe_read_kernel(mad, sizeof(mad), (void *)at);
	m = message_of(mad);
	if (mad[MAD_CLASS] != MAD_CLASS_CM || m >= CM_MESSAGES)
		return 0;
	count(STAGE_CM_SENT, 0);
	if (!follow_connections)
		return 0;
	local = be32(mad + MAD_LOCAL_ID);
	remote = be32(mad + MAD_REMOTE_ID);
	if (m == CM_REQ) {
		key.id = local;
		if (!wanted())
			return 0;
		c = begin(&key, (void *)agent, mad);
		if (c)
			own_connection(c);
	} else {
		c = find(local, &key);
		if (!c && (m == CM_REP || m == CM_REJ || m == CM_MRA)) {
			c = find_asking(remote, &key);
			if (c && local && local != c->echo) { // which cm_issue_rej sends back for one
				c->local = local;
				point(local, 0, &key);
			}
		}
	}
	if (!c)
		return 0;
	if (!c->tgid && (m == CM_REP || m == CM_REJ) && !own_connection(c)) {
		drop(&key, c);
		return 0;
	}
	if (*slot(c->sent, m)) {
		__sync_fetch_and_add(&c->retried, 1);
		return 0;
	}
	*slot(c->sent, m) = now;
	if (m == CM_REP) {
		c->local_qpn = be24(mad + MAD_REP_QPN);
		if (c->received[CM_REQ])
			observe_connection(CM_PART_REPLY, 1, CM_REP, now - c->received[CM_REQ]);
	} else if (m == CM_RTU && c->received[CM_REP]) {
		observe_connection(CM_PART_CONFIRM, 0, CM_RTU, now - c->received[CM_REP]);
	} else if (m == CM_REJ) {
		c->reason = be16(mad + MAD_REJ_REASON);
		c->rejected = mad[MAD_REJ_MESSAGE] >> 6;
		if (c->passive && !c->local) // the kernel forgets it now, and its id was never told
			end(&key, c);
	}
	return 0;
}

static __always_inline void count_received(__u8 m)
{
	switch (m) {
	case CM_REQ:
		count(STAGE_CM_RECEIVE_REQ, 0);
		break;
	case CM_REP:
		count(STAGE_CM_RECEIVE_REP, 0);
		break;
	case CM_RTU:
		count(STAGE_CM_RECEIVE_RTU, 0);
		break;
	case CM_DREQ:
		count(STAGE_CM_RECEIVE_DREQ, 0);
		break;
	}
}

// cm_recv_handler(mad_agent, send_buf, mad_recv_wc)
SEC("kprobe")
int cm_receive(struct pt_regs *regs)
{
	__u64 off = 4 * sizeof(void *), at = 0, wc = ARG3(regs); // where no BTF says otherwise: behind wc, list and grh
	struct arrival a = { .at = bpf_ktime_get_ns(), .message = CM_OTHER };
	struct connection *c;
	__u8 mad[MAD_READ] = {}, m;
	__u32 local, remote;

	if (over)
		return 0;
	if (bpf_core_type_exists(struct ib_mad_recv_wc))
		off = bpf_core_field_offset(struct ib_mad_recv_wc, recv_buf.mad);
	bpf_probe_read_kernel(&at, sizeof(at), (void *)(wc + off));
	bpf_probe_read_kernel(mad, sizeof(mad), (void *)at);
	m = message_of(mad);
	count_received(m);
	if (!follow_connections)
		return 0;
	remote = be32(mad + MAD_LOCAL_ID);
	local = be32(mad + MAD_REMOTE_ID);
	if (m == CM_REQ) {
		a.key.guid = be64(mad + MAD_REQ_GUID);
		a.key.id = remote;
		a.key.passive = 1;
		c = begin(&a.key, (void *)ARG1(regs), mad);
	} else {
		c = m < CM_MESSAGES ? find(local, &a.key) : 0;
		if (!c && m == CM_REJ && !local) // of a peer that never heard an answer
			c = find_peer(remote, &a.key);
	}
	if (c && m < CM_MESSAGES) {
		if (*slot(c->received, m)) {
			__sync_fetch_and_add(&c->repeated, 1);
		} else {
			*slot(c->received, m) = a.at;
			a.message = m;
		}
		if (a.message == CM_REP) {
			c->remote = remote;
			c->remote_qpn = be24(mad + MAD_REP_QPN);
			if (c->sent[CM_REQ])
				observe_connection(CM_PART_REPLY, 0, CM_REP, a.at - c->sent[CM_REQ]);
		} else if (a.message == CM_RTU && c->sent[CM_REP]) {
			observe_connection(CM_PART_CONFIRM, 1, CM_RTU, a.at - c->sent[CM_REP]);
		} else if (a.message == CM_REJ) {
			c->reason = be16(mad + MAD_REJ_REASON);
			c->rejected = mad[MAD_REJ_MESSAGE] >> 6;
		}
	}
	if (bpf_map_update_elem(&arrivals, &wc, &a, BPF_ANY))
		lose(LOSS_CONNECTION);
	return 0;
}

// cm_work_handler(work)
SEC("kprobe")
int cm_work(struct pt_regs *regs)
{
	__u64 now = bpf_ktime_get_ns(), wc = 0;
	__u64 off = bpf_core_type_size(struct delayed_work) + sizeof(struct list_head) + sizeof(void *); // behind list and port
	struct connection *c;
	struct arrival *a;
	__u8 m;

	if (over)
		return 0;
	count(STAGE_CM_WORK, 0);
	if (!follow_connections)
		return 0;
	if (bpf_core_type_exists(struct cm_work))
		off = bpf_core_field_offset(struct cm_work, mad_recv_wc) - bpf_core_field_offset(struct cm_work, work);
	bpf_probe_read_kernel(&wc, sizeof(wc), (void *)(ARG1(regs) + off));
	if (!wc) // the end of a time-wait, or data that came before the RTU
		return 0;
	a = bpf_map_lookup_elem(&arrivals, &wc);
	if (!a) {
		lose(LOSS_ARRIVAL);
		return 0;
	}
	m = a->message;
	if (m < CM_MESSAGES) {
		c = bpf_map_lookup_elem(&connections, &a->key);
		if (c && !*slot(c->waited, m)) {
			*slot(c->waited, m) = now - a->at;
			if (m != CM_REQ && (c->tgid || !(filter_tasks || filter_cgroup))) // whose connection is nobody's yet
				observe_connection(CM_PART_WORK, c->passive, m, now - a->at);
		}
	}
	bpf_map_delete_elem(&arrivals, &wc);
	return 0;
}

// cm_send_handler(mad_agent, mad_send_wc)
SEC("kprobe")
int cm_send_end(struct pt_regs *regs)
{
	__u32 at_buf = 0, at_status = sizeof(void *); // of struct ib_mad_send_wc, 5.10 to 7.3
	__u32 at_retries = 6 * sizeof(void *) + 6 * sizeof(int); // of struct ib_mad_send_buf
	__u64 buf = 0, at = 0, agent = 0;
	struct connection_key key = {};
	struct connection *c;
	__u8 mad[MAD_REMOTE_ID] = {}, m;
	__s32 status = 0, retries = 0;

	if (over)
		return 0;
	count(STAGE_CM_SEND_END, 0);
	if (!follow_connections)
		return 0;
	if (bpf_core_type_exists(struct ib_mad_send_wc)) {
		at_buf = bpf_core_field_offset(struct ib_mad_send_wc, send_buf);
		at_status = bpf_core_field_offset(struct ib_mad_send_wc, status);
	}
	if (bpf_core_type_exists(struct ib_mad_send_buf))
		at_retries = bpf_core_field_offset(struct ib_mad_send_buf, retries);
	bpf_probe_read_kernel(&buf, sizeof(buf), (void *)(ARG2(regs) + at_buf));
	bpf_probe_read_kernel(&status, sizeof(status), (void *)(ARG2(regs) + at_status));
	bpf_probe_read_kernel(&retries, sizeof(retries), (void *)(buf + at_retries));
	read_send_buf((void *)buf, &at, &agent);
	bpf_probe_read_kernel(mad, sizeof(mad), (void *)at);
	m = message_of(mad);
	if (m >= CM_MESSAGES)
		return 0;
	c = find(be32(mad + MAD_LOCAL_ID), &key);
	if (!c)
		return 0;
	if (retries > 0)
		__sync_fetch_and_add(&c->retried, retries);
	if (status != IB_WC_SUCCESS && status != IB_WC_WR_FLUSH_ERR) { // flushed is also what needs no answer any more
		c->status = status;
		c->failed = m;
	}
	return 0;
}

// read_id reads what is public of a cm_id_private: its first member, struct ib_cm_id.
static __always_inline void read_id(const void *id, __u32 *state, __u32 *local, __u32 *remote)
{
	// Where no BTF says otherwise: behind cm_handler, context, device, service_id and, on
	// some kernels, service_mask. The ids are behind lap_state.
	__u32 at_state = (4 + service_mask) * sizeof(__u64), at_local = at_state + 2 * sizeof(__u32), at_remote = at_local + sizeof(__u32);
	__u8 l[4] = {}, r[4] = {};

	if (bpf_core_type_exists(struct ib_cm_id)) {
		at_state = bpf_core_field_offset(struct ib_cm_id, state);
		at_local = bpf_core_field_offset(struct ib_cm_id, local_id);
		at_remote = bpf_core_field_offset(struct ib_cm_id, remote_id);
	}
	bpf_probe_read_kernel(state, sizeof(*state), id + at_state);
	bpf_probe_read_kernel(l, sizeof(l), id + at_local);
	bpf_probe_read_kernel(r, sizeof(r), id + at_remote);
	*local = be32(l);
	*remote = be32(r);
}

// cm_destroy_id(cm_id, err), or ib_destroy_cm_id(cm_id). It still sends what is due, and
// waits until nothing more can come.
SEC("kprobe")
int cm_destroy(struct pt_regs *regs)
{
	__u32 state = 0, local = 0, remote = 0;
	__u64 thread = bpf_get_current_pid_tgid();
	struct ending e = {};
	struct connection *c;

	if (over)
		return 0;
	read_id((void *)ARG1(regs), &state, &local, &remote);
	c = find(local, &e.key);
	if (!c && remote)
		c = find_asking(remote, &e.key);
	if (!c)
		return 0;
	if (!c->local && state == IB_CM_IDLE) {
		// A REQ that is a repetition has an id for as long as nobody knows that it is one, and
		// its end is not the connection's. Without one the REQ itself led to nothing: a late
		// duplicate of what has ended, or one that the kernel could make nothing of.
		if (c->passive && !c->repeated)
			drop(&e.key, c);
		return 0;
	}
	e.began = began(c);
	if (bpf_map_update_elem(&endings, &thread, &e, BPF_ANY))
		lose(LOSS_CONNECTION);
	return 0;
}

SEC("kretprobe")
int cm_destroyed(struct pt_regs *regs)
{
	__u64 thread = bpf_get_current_pid_tgid();
	struct ending *e = bpf_map_lookup_elem(&endings, &thread);
	struct connection_key key;
	struct connection *c;

	if (over)
		return 0;
	if (!e)
		return 0;
	key = e->key;
	c = bpf_map_lookup_elem(&connections, &key);
	if (c && began(c) == e->began)
		end(&key, c);
	bpf_map_delete_elem(&endings, &thread);
	return 0;
}

// cm_enter_timewait(cm_id_priv)
SEC("kprobe")
int cm_timewait(struct pt_regs *regs)
{
	__u32 state = 0, local = 0, remote = 0;
	struct connection_key key = {};
	struct connection *c;

	if (over)
		return 0;
	count(STAGE_CM_TIMEWAIT, 0);
	if (!follow_connections || !timewait_id)
		return 0;
	read_id((void *)ARG1(regs), &state, &local, &remote);
	c = find(local, &key);
	if (c && !c->timewait)
		c->timewait = bpf_ktime_get_ns();
	return 0;
}
