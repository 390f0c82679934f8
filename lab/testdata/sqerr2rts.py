# SPDX-License-Identifier: BSD-2-Clause
"""Brings a UD queue pair into SQER with a bad key, and back with MODIFY_QP by verbs.

Prints a line for each thing that was as it should be.
"""

import time

import pyverbs.enums as e
from pyverbs.addr import AH, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import RecvWR, SGE, SendWR

QKEY, GID, SIZE, GRH = 0x1234, 1, 64, 40

ctx = Context(name='mlx5_0')
pd = PD(ctx)
cq = CQ(ctx, 16)
mr = MR(pd, 4096, e.IBV_ACCESS_LOCAL_WRITE)
qp = QP(pd, QPInitAttr(qp_type=e.IBV_QPT_UD, scq=cq, rcq=cq, cap=QPCap(4, 4, 1, 1)))
attr = QPAttr(port_num=1)
attr.qkey = QKEY
qp.to_rts(attr)
route = GlobalRoute(dgid=ctx.query_gid(1, GID), sgid_index=GID)
ah = AH(pd, attr=AHAttr(gr=route, is_global=1, port_num=1))


def send(lkey):
    wr = SendWR(num_sge=1, sg=[SGE(mr.buf, SIZE, lkey)], opcode=e.IBV_WR_SEND)
    wr.set_wr_ud(ah, qp.qp_num, QKEY)
    qp.post_send(wr)


def poll(n):
    found, until = [], time.monotonic() + 10
    while len(found) < n and time.monotonic() < until:
        found += cq.poll(n - len(found))[1] or []
    return [(c.opcode & e.IBV_WC_RECV, c.status) for c in found]


def state():
    return qp.query(e.IBV_QP_STATE)[0].qp_state


for _ in range(2):
    qp.post_recv(RecvWR(num_sge=1, sg=[SGE(mr.buf + 1024, SIZE + GRH, mr.lkey)]))
send(mr.lkey ^ 0x100)
send(mr.lkey)
assert [s for _, s in poll(2)] == [e.IBV_WC_LOC_PROT_ERR, e.IBV_WC_WR_FLUSH_ERR]
print('flushed')
assert state() == e.IBV_QPS_SQE, state()
print('SQE')
back = QPAttr(qp_state=e.IBV_QPS_RTS, cur_qp_state=e.IBV_QPS_SQE)
qp.modify(back, e.IBV_QP_STATE | e.IBV_QP_CUR_STATE)
assert state() == e.IBV_QPS_RTS, state()
print('RTS')
send(mr.lkey)
done = poll(2)
assert sorted(done) == [(0, e.IBV_WC_SUCCESS), (e.IBV_WC_RECV, e.IBV_WC_SUCCESS)], done
print('sent')
