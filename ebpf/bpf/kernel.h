// SPDX-License-Identifier: BSD-2-Clause

// The few kernel types that the programs read. Their fields are found in the
// running kernel's BTF (CO-RE), so order and size here mean nothing.

#pragma once

typedef unsigned char __u8;
typedef signed short __s16;
typedef unsigned short __u16;
typedef signed int __s32;
typedef unsigned int __u32;
typedef signed long long __s64;
typedef unsigned long long __u64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u64 __be64;
typedef __u32 __wsum;

typedef _Bool bool;
enum { false, true };

// linux/bpf.h
enum {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_RINGBUF = 27,
};
enum { BPF_ANY = 0, BPF_NOEXIST = 1 };
enum { BPF_RB_AVAIL_DATA = 0, BPF_RB_NO_WAKEUP = 1, BPF_RB_FORCE_WAKEUP = 2 };

struct bpf_raw_tracepoint_args {
	__u64 args[0];
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

// Registers at a function's entry and at its return.
struct pt_regs {
#if defined(__TARGET_ARCH_x86)
	unsigned long di, si, dx, cx, r8, r9, ax;
#elif defined(__TARGET_ARCH_arm64)
	unsigned long long regs[31];
#else
#error "registers of this architecture are not known"
#endif
};

typedef struct {
	int counter;
} atomic_t;

struct signal_struct {
	atomic_t live;
};

struct task_struct {
	int tgid;
	struct signal_struct *signal;
};

struct work_struct {
	void (*func)(struct work_struct *);
};

struct completion {
	unsigned int done;
};

struct kobject {
	const char *name;
};

struct device {
	struct kobject kobj;
};

// mlx5_core's. Kernels without BTF of modules do not tell where the fields are of
// these, and of those of ib_core.

struct mlx5_core_dev {
	struct device *device;
};

struct mlx5_cmd_work_ent {
	struct completion done;
	struct work_struct work;
	__u64 ts1, ts2;
};

// ib_core's.

struct ib_mad_recv_buf {
	void *mad;
};

struct ib_mad_recv_wc {
	struct ib_mad_recv_buf recv_buf;
};

struct ib_device {
	struct device *dma_device;
	char name[64];
};

struct ib_mad_agent {
	struct ib_device *device;
};

struct ib_mad_send_buf {
	void *mad;
	struct ib_mad_agent *mad_agent;
	int retries;
};

enum ib_wc_status {
	IB_WC_SUCCESS,
	IB_WC_WR_FLUSH_ERR = 5,
};

struct ib_mad_send_wc {
	struct ib_mad_send_buf *send_buf;
	enum ib_wc_status status;
};

// ib_cm's.

struct list_head {
	struct list_head *next, *prev;
};

struct delayed_work {
	struct work_struct work;
};

struct cm_work {
	struct delayed_work work;
	struct ib_mad_recv_wc *mad_recv_wc;
};

enum ib_cm_state {
	IB_CM_IDLE,
};

struct ib_cm_id {
	enum ib_cm_state state;
	__be32 local_id, remote_id;
};

#pragma clang attribute pop

#if defined(__TARGET_ARCH_x86)
#define ARG1(r) ((r)->di)
#define ARG2(r) ((r)->si)
#define ARG3(r) ((r)->dx)
#define ARG4(r) ((r)->cx)
#define ARG6(r) ((r)->r9)
#define RETURNED(r) ((r)->ax)
#else
#define ARG1(r) ((r)->regs[0])
#define ARG2(r) ((r)->regs[1])
#define ARG3(r) ((r)->regs[2])
#define ARG4(r) ((r)->regs[3])
#define ARG6(r) ((r)->regs[5])
#define RETURNED(r) ((r)->regs[0])
#endif
