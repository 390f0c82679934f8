// SPDX-License-Identifier: BSD-2-Clause
//
// The loop that "devxlab bench rival" runs in Go, in C on rdma-core's libmlx5:
// INIT2INIT_QP through mlx5dv_devx_obj_modify. It reads lines "THREADS N" from
// standard input, has each thread modify a queue pair of its own N times, and
// answers each line with the nanoseconds that all of it took.
//
//	cc -O2 -pthread -o modify modify.c -lmlx5 -libverbs

#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <infiniband/mlx5dv.h>

enum {
	MAX_THREADS = 64,
	COMMAND = 272, // bytes of CREATE_CQ, CREATE_QP and the transitions
	ANSWER = 16,
	OP_CREATE_CQ = 0x400,
	OP_CREATE_QP = 0x500,
	OP_RST2INIT = 0x502,
	OP_INIT2INIT = 0x50e,
	PAGE = 4096,
	// Of the umem: the completion queue, doorbell records, and a queue buffer
	// that all queue pairs share. Nothing is ever posted to it.
	AT_CQ = 0,
	AT_RECORDS = PAGE,
	AT_QUEUES = 2 * PAGE,
	UMEM = 3 * PAGE,
};

struct worker {
	pthread_t thread;
	struct mlx5dv_devx_obj *qp;
	uint32_t qpn;
	unsigned long n;
};

static struct ibv_context *context;
static struct worker workers[MAX_THREADS];

static void die(const char *what)
{
	fprintf(stderr, "modify: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void put32(uint8_t *cmd, int at, uint32_t v)
{
	v = htobe32(v);
	memcpy(cmd + at, &v, sizeof(v));
}

static uint32_t number(const uint8_t *answer)
{
	uint32_t v;

	memcpy(&v, answer + 8, sizeof(v));
	return be32toh(v) & 0xffffff;
}

static struct mlx5dv_devx_obj *create(uint8_t *cmd, const char *what, uint32_t *id)
{
	uint8_t answer[ANSWER] = {0};
	struct mlx5dv_devx_obj *o = mlx5dv_devx_obj_create(context, cmd, COMMAND, answer, sizeof(answer));

	if (!o)
		die(what);
	*id = number(answer);
	return o;
}

static int transition(struct worker *w, uint32_t op)
{
	uint8_t cmd[COMMAND] = {0}, answer[ANSWER] = {0};

	put32(cmd, 0, op << 16);
	put32(cmd, 8, w->qpn);
	put32(cmd, 24, 3 << 11);        // qpc.pm_state: migrated
	put32(cmd, 24 + 0x3c, 1 << 16); // qpc.primary_address_path.vhca_port_num
	return mlx5dv_devx_obj_modify(w->qp, cmd, sizeof(cmd), answer, sizeof(answer));
}

static void *work(void *arg)
{
	struct worker *w = arg;

	for (unsigned long i = 0; i < w->n; i++)
		if ((errno = transition(w, OP_INIT2INIT)))
			die("INIT2INIT_QP");
	return NULL;
}

static void open_device(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL), **d = list;
	struct mlx5dv_context_attr attr = {.flags = MLX5DV_CONTEXT_FLAGS_DEVX};

	if (!list)
		die("no list of devices");
	while (*d && strcmp(ibv_get_device_name(*d), name))
		d++;
	if (!*d) {
		errno = ENODEV;
		die(name);
	}
	context = mlx5dv_open_device(*d, &attr);
	if (!context)
		die("no DevX context");
	ibv_free_device_list(list);
}

static void make_queue_pairs(void)
{
	uint8_t cmd[COMMAND];
	uint32_t eqn, cqn;
	void *memory = NULL;
	struct mlx5dv_devx_umem *umem;
	struct mlx5dv_devx_uar *uar;
	struct ibv_pd *pd;
	struct mlx5dv_pd dvpd;
	struct mlx5dv_obj obj = {0};

	if (posix_memalign(&memory, PAGE, UMEM))
		die("no memory");
	memset(memory, 0, UMEM);
	umem = mlx5dv_devx_umem_reg(context, memory, UMEM, 0);
	uar = mlx5dv_devx_alloc_uar(context, MLX5DV_UAR_ALLOC_TYPE_NC);
	pd = ibv_alloc_pd(context);
	if (!umem || !uar || !pd || mlx5dv_devx_query_eqn(context, 0, &eqn))
		die("no umem, UAR, PD or EQ");
	obj.pd.in = pd;
	obj.pd.out = &dvpd;
	if (mlx5dv_init_obj(&obj, MLX5DV_OBJ_PD))
		die("no PD number");

	memset(cmd, 0, sizeof(cmd));
	put32(cmd, 0, OP_CREATE_CQ << 16);
	put32(cmd, 16 + 4, umem->umem_id);            // cqc.dbr_umem_id
	put32(cmd, 16 + 12, 2 << 24 | uar->page_id);  // cqc.log_cq_size, uar_page
	put32(cmd, 16 + 20, eqn);
	put32(cmd, 16 + 60, AT_RECORDS);              // cqc.dbr_addr
	put32(cmd, 84, AT_CQ);                        // cq_umem_offset
	put32(cmd, 88, umem->umem_id);
	create(cmd, "CREATE_CQ", &cqn);

	for (int i = 0; i < MAX_THREADS; i++) {
		struct worker *w = &workers[i];

		memset(cmd, 0, sizeof(cmd));
		put32(cmd, 0, OP_CREATE_QP << 16);
		put32(cmd, 24, 3 << 11);                    // qpc.pm_state
		put32(cmd, 24 + 4, dvpd.pdn);
		put32(cmd, 24 + 8, 2 << 19 | 1 << 6);       // log_rq_size: 4 entries of 16 bytes; ts_format: default
		put32(cmd, 24 + 12, uar->page_id);
		put32(cmd, 24 + 124, cqn);                  // cqn_snd
		put32(cmd, 24 + 156, cqn);                  // cqn_rcv
		put32(cmd, 24 + 164, AT_RECORDS + 64 + 8 * i); // dbr_addr
		put32(cmd, 24 + 228, umem->umem_id);        // dbr_umem_id
		put32(cmd, 260, AT_QUEUES);                 // wq_umem_offset
		put32(cmd, 264, umem->umem_id);
		w->qp = create(cmd, "CREATE_QP", &w->qpn);
		if ((errno = transition(w, OP_RST2INIT)))
			die("RST2INIT_QP");
	}
}

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * UINT64_C(1000000000) + t.tv_nsec;
}

int main(int argc, char **argv)
{
	int threads;
	unsigned long n;

	if (argc != 2) {
		fprintf(stderr, "usage: modify DEVICE\n");
		return 2;
	}
	open_device(argv[1]);
	make_queue_pairs();
	puts("ready");
	fflush(stdout);
	while (scanf("%d %lu", &threads, &n) == 2) {
		uint64_t start = now();

		if (threads < 1 || threads > MAX_THREADS) {
			errno = EINVAL;
			die("threads");
		}
		for (int i = 0; i < threads; i++) {
			workers[i].n = n;
			if (threads > 1 && (errno = pthread_create(&workers[i].thread, NULL, work, &workers[i])))
				die("no thread");
		}
		if (threads == 1)
			work(&workers[0]);
		else
			for (int i = 0; i < threads; i++)
				pthread_join(workers[i].thread, NULL);
		printf("%" PRIu64 "\n", now() - start);
		fflush(stdout);
	}
	return 0;
}
