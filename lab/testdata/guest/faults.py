# SPDX-License-Identifier: BSD-2-Clause
#
# Faults of the wire and of the peer, as a program of rdma-core sees them: RC
# queue pairs of two cards, the second of which is in the network namespace
# "far". A line "@fault wire PARAMS" has the host change the wire. Each step
# prints what completed, in which states the queue pairs are, and which counters
# of each card moved, and by how much if that is certain.
import ctypes
import os
import struct
import subprocess
import sys
import time

import pyverbs.enums as e
from pyverbs.addr import AHAttr, GID, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsRDMAError
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
        self.gid = self.ctx.query_gid(1, GID_INDEX)

    def count(self):
        return {n: int(open(self.counters + n).read()) for n in COUNTERS}


class End:
    """A queue pair, with its completion queue."""

    def __init__(self, card):
        self.card = card
        self.cq = CQ(card.ctx, 1024)
        self.qp = QP(card.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=QPCap(max_send_wr=256, max_recv_wr=256), sq_sig_all=1))

    def connect(self, other, timeout=14, retries=7, rnr=7, reads=4):
        a = QPAttr(port_num=1)
        a.qp_access_flags = ACCESS
        self.qp.to_init(a)
        a.path_mtu = e.IBV_MTU_1024
        a.dest_qp_num = other.qp.qp_num
        a.min_rnr_timer = 14  # 1.28 ms
        a.max_dest_rd_atomic = a.max_rd_atomic = reads
        a.ah_attr = AHAttr(port_num=1, is_global=1, gr=GlobalRoute(dgid=GID(str(other.card.gid)), sgid_index=GID_INDEX, hop_limit=64))
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


class Step:
    """Prints what came of a step at its end. exact says whether amounts are certain."""

    def __init__(self, name, exact=True, **how):
        self.name, self.exact = name, exact
        self.a, self.b = End(near), End(far)
        self.a.connect(self.b, **how)
        self.b.connect(self.a, **how)
        self.before = near.count(), far.count()
        self.began = time.monotonic()

    def moved(self, before, now):
        m = {n: now[n] - before[n] for n in COUNTERS if now[n] != before[n]}
        return ' '.join(f'{n}+{d}' if self.exact else n for n, d in m.items()) or 'none'

    def done(self, a, b):
        took = time.monotonic() - self.began
        print(f'{self.name}: {words(a)}; peer {words(b)}; {self.a.state()} {self.b.state()}')
        print(f'{self.name} counters: {self.moved(self.before[0], near.count())}; peer {self.moved(self.before[1], far.count())}')
        print(f'# {self.name}: {took:.3f} s', flush=True)
        self.a.qp.close(), self.b.qp.close()


namespace('/run/netns/far')
os.makedirs('/tmp/far', exist_ok=True)
subprocess.run(['mount', '-t', 'sysfs', 'far', '/tmp/far'], check=True)
far = Card('mlx5_1', '/tmp/far')
namespace('/proc/1/ns/net')
near = Card('mlx5_0', '/sys')

s = Step('sound')
s.b.recv(10)
s.a.send(10)
s.a.remote(e.IBV_WR_RDMA_WRITE, s.b, 2)
s.a.remote(e.IBV_WR_RDMA_READ, s.b, 2, off=20480)
s.a.add(s.b, 2)
s.done(s.a.poll(16), s.b.poll(10))

s = Step('dead wire')  # 8 times 67 ms
wire('loss=100%')
s.a.recv()
s.a.send(3)
got = s.a.poll(4)
wire('loss=0%')
s.done(got, s.b.poll(1, 0))

s = Step('peer in ERR')
s.b.recv(2)
s.b.error()
s.a.send(3)
s.done(s.a.poll(3), s.b.poll(2))

s = Step('receive entries posted in ERR, late')
s.b.error()
time.sleep(2)
s.b.recv(3)
s.done([], s.b.poll(3))

for n in 0, 1:
    s = Step(f'RNR retry {n}', rnr=n)
    s.a.send()
    s.done(s.a.poll(1), s.b.poll(1, 0))

s = Step('RNR for ever', exact=False)
s.a.send()
early = s.a.poll(1, 1)
s.b.recv()
s.done(early + s.a.poll(1), s.b.poll(1))

s = Step('wrong rkey')
s.a.remote(e.IBV_WR_RDMA_WRITE, s.b, rkey=far.mr.rkey ^ 0xff00)
s.a.send()
s.done(s.a.poll(2), s.b.poll(1, 0))

# RTR resolves the peer's MAC address, for 1 s; a lost ARP request is repeated
# only then.
wire('loss=100%')
netdev = os.listdir('/sys/class/infiniband/mlx5_0/device/net')[0]
subprocess.run(['ip', 'neigh', 'flush', 'dev', netdev], check=True)
a, b = End(near), End(far)
try:
    a.connect(b)
    print('RTR without ARP: connected')
except PyverbsRDMAError as x:
    print(f'RTR without ARP: errno {x.error_code}')
wire('loss=0%')
for _ in range(5):  # the next repeat of the request may have been lost as well
    try:
        a.connect(b)
        break
    except PyverbsRDMAError:
        pass
print(f'RTR with ARP: {a.state()}')
a.qp.close(), b.qp.close()

# Atomics are executed once, whatever is lost, doubled or overtaken. Writes and
# what they wrote come back whole.
far.mr.write(struct.pack('<Q', 0), 8, 8192)
pattern = bytes(i * 7 & 0xff for i in range(8000))
s = Step('bad wire', exact=False)
near.mr.write(pattern, len(pattern))
wire('loss=5%,dup=5%,reorder=5%:200us')
got, arrived, sums = [], [], 0
for _ in range(20):
    s.b.recv(2)
    s.a.send(2, 4000)
    s.a.remote(e.IBV_WR_RDMA_WRITE, s.b, size=len(pattern))
    s.a.remote(e.IBV_WR_RDMA_READ, s.b, size=len(pattern), off=40960)
    s.a.add(s.b, 2)
    got += s.a.poll(6)
    arrived += s.b.poll(2)
    sums += near.mr.read(len(pattern), 40960) == pattern
wire('loss=0%')
s.done(got, arrived)
print(f"bad wire: added {struct.unpack('<Q', far.mr.read(8, 8192))[0]} of 40, {sums} of 20 READs whole")
