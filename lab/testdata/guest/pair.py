# SPDX-License-Identifier: BSD-2-Clause
#
# Two cards in one guest, the second of which is in the network namespace "far"
# (apart.sh), and queue pairs between them. A line "@fault wire PARAMS" has the
# host change the wire.
import ctypes
import os
import subprocess
import sys
import time

import pyverbs.enums as e
from pyverbs.addr import AHAttr, GID, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

CLONE_NEWNET = 0x40000000
GID_INDEX = 3  # RoCEv2, IPv4
SIZE = 64 << 10
COUNTERS = ('local_ack_timeout_err packet_seq_err implied_nak_seq_err rnr_nak_retry_err out_of_sequence duplicate_request out_of_buffer '
            'req_cqe_error req_cqe_flush_error req_remote_access_errors req_remote_invalid_request resp_cqe_error resp_cqe_flush_error '
            'resp_remote_access_errors rx_write_requests rx_read_requests rx_atomic_requests').split()
ACCESS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_ATOMIC


def namespace(path):
    with open(path) as f:
        if ctypes.CDLL(None, use_errno=True).setns(f.fileno(), CLONE_NEWNET) != 0:
            sys.exit(f'setns {path}: errno {ctypes.get_errno()}')


def wire(params):
    print(f'@fault wire {params}', flush=True)
    answer = sys.stdin.readline().strip()
    if answer != 'ok':
        sys.exit(f'wire {params}: {answer}')


class Card:
    def __init__(self, name, sysfs):
        self.ctx = Context(name=name)
        self.pd = PD(self.ctx)
        self.mr = MR(self.pd, SIZE, ACCESS)
        self.counters = f'{sysfs}/class/infiniband/{name}/ports/1/hw_counters/'

    def count(self):
        return {n: int(open(self.counters + n).read()) for n in COUNTERS}


class End:
    """A queue pair, with its completion queue."""

    def __init__(self, card, kind=e.IBV_QPT_RC):
        self.card = card
        self.cq = CQ(card.ctx, 1024)
        self.qp = QP(card.pd, QPInitAttr(qp_type=kind, scq=self.cq, rcq=self.cq, cap=QPCap(max_send_wr=256, max_recv_wr=256), sq_sig_all=1))

    def path(self, other, gid=GID_INDEX, tclass=0):
        """Returns the way to another, from a GID of this index to one of the same."""
        to = GID(str(other.card.ctx.query_gid(1, gid)))
        return AHAttr(port_num=1, is_global=1, gr=GlobalRoute(dgid=to, sgid_index=gid, hop_limit=64, traffic_class=tclass))

    def connect(self, other, timeout=14, retries=7, rnr=7, reads=4, access=ACCESS, **how):
        a = QPAttr(port_num=1)
        a.qp_access_flags = access
        self.qp.to_init(a)
        a.path_mtu = e.IBV_MTU_1024
        a.dest_qp_num = other.qp.qp_num
        a.min_rnr_timer = 14  # 1.28 ms
        a.max_dest_rd_atomic = a.max_rd_atomic = reads
        a.ah_attr = self.path(other, **how)
        a.timeout, a.retry_cnt, a.rnr_retry = timeout, retries, rnr
        self.qp.to_rtr(a)
        self.qp.to_rts(a)

    def sge(self, n, off=0):
        return [SGE(self.card.mr.buf + off, n, self.card.mr.lkey)]

    def recv(self, n=1, size=4096):
        for _ in range(n):
            self.qp.post_recv(RecvWR(num_sge=1, sg=self.sge(size, 32768)))

    def send(self, n=1, size=1024):
        for _ in range(n):
            self.qp.post_send(SendWR(opcode=e.IBV_WR_SEND, num_sge=1, sg=self.sge(size)))

    def remote(self, opcode, other, n=1, size=1024, off=0, rkey=None):
        for _ in range(n):
            w = SendWR(opcode=opcode, num_sge=1, sg=self.sge(size, off))
            w.set_wr_rdma(other.card.mr.rkey if rkey is None else rkey, other.card.mr.buf)
            self.qp.post_send(w)

    def add(self, other, n=1):
        for _ in range(n):
            w = SendWR(opcode=e.IBV_WR_ATOMIC_FETCH_AND_ADD, num_sge=1, sg=self.sge(8, 16384))
            w.set_wr_atomic(other.card.mr.rkey, other.card.mr.buf + 8192, 1)
            self.qp.post_send(w)

    def poll(self, n, limit=60):
        """Returns n completions, or those that came within the limit."""
        got, end = [], time.monotonic() + limit
        while len(got) < n and time.monotonic() < end:
            got += [(wc.status, wc.vendor_err if wc.status else 0) for wc in self.cq.poll(num_entries=n - len(got))[1]]
        return got

    def state(self):
        return STATES[self.qp.query(e.IBV_QP_STATE)[0].qp_state]

    def error(self):
        self.qp.modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE)


STATES = ['RESET', 'INIT', 'RTR', 'RTS', 'SQD', 'SQE', 'ERR']


def words(completions):
    out = []
    for c in completions:
        w = 'ok' if c[0] == 0 else '%d/%#x' % c
        if out and out[-1][0] == w:
            out[-1][1] += 1
        else:
            out.append([w, 1])
    return ' '.join(w if n == 1 else f'{n}*{w}' for w, n in out) or 'nothing'


def cards():
    """Opens both, the far one first, and returns them; the program stays in the near namespace."""
    namespace('/run/netns/far')
    os.makedirs('/tmp/far', exist_ok=True)
    subprocess.run(['mount', '-t', 'sysfs', 'far', '/tmp/far'], check=True)
    far = Card('mlx5_1', '/tmp/far')
    namespace('/proc/1/ns/net')
    near = Card('mlx5_0', '/sys')
    return far, near
