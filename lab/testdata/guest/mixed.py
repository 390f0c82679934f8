# SPDX-License-Identifier: BSD-2-Clause
#
# All that RC, UC and UD queue pairs send, over RoCEv1 and RoCEv2, IPv6 and IPv4,
# in messages of none to several packets, and two NAKs. Paths are ECN-capable: a
# wire that marks gets CNPs as well. Prints how many messages ended well, and no
# more if all did.
import sys

import pyverbs.enums as e
from pyverbs.addr import AH
from pyverbs.qp import QPAttr
from pyverbs.wr import SGE, SendWR

from pair import End, cards

ROUNDS = int(sys.argv[1])
GIDS = 0, 1, 2, 3  # RoCEv1 and v2 of the link-local address, and of that of IPv4
SIZES = 0, 1, 7, 64, 1000, 1024, 1025, 4000
ECT0 = 2
GRH = 40  # bytes in front of a datagram
QKEY = 0x11111111
UC_ACCESS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE


def work(end, other, opcode, size):
    w = SendWR(opcode=opcode, num_sge=1, sg=end.sge(size), imm_data=size)
    if opcode in (e.IBV_WR_RDMA_WRITE, e.IBV_WR_RDMA_WRITE_WITH_IMM, e.IBV_WR_RDMA_READ):
        w.set_wr_rdma(other.card.mr.rkey, other.card.mr.buf)
    elif opcode in (e.IBV_WR_ATOMIC_CMP_AND_SWP, e.IBV_WR_ATOMIC_FETCH_AND_ADD):
        w = SendWR(opcode=opcode, num_sge=1, sg=end.sge(8))
        w.set_wr_atomic(other.card.mr.rkey, other.card.mr.buf + 8192, 1, 2)
    return w


def exchange(a, b, works, ends_in_receive):
    """Posts works one after the other, and returns how many ended well at both ends."""
    well = 0
    for w, receives in zip(works, ends_in_receive):
        if receives:
            b.recv()
        a.qp.post_send(w)
        well += a.poll(1) == [(0, 0)] and (not receives or b.poll(1) == [(0, 0)])
    return well


MESSAGES = {e.IBV_WR_SEND: True, e.IBV_WR_SEND_WITH_IMM: True, e.IBV_WR_RDMA_WRITE: False, e.IBV_WR_RDMA_WRITE_WITH_IMM: True}
READS = {e.IBV_WR_RDMA_READ: False, e.IBV_WR_ATOMIC_CMP_AND_SWP: False, e.IBV_WR_ATOMIC_FETCH_AND_ADD: False}


def connected(kind, opcodes, gid, **how):
    a, b = End(near, kind), End(far, kind)
    a.connect(b, gid=gid, tclass=ECT0, **how)
    b.connect(a, gid=gid, tclass=ECT0, **how)
    well = 0
    for _ in range(ROUNDS):
        todo = [(o, n) for n in SIZES for o in opcodes]
        for x, y in ((a, b), (b, a)):
            well += exchange(x, y, [work(x, y, o, n) for o, n in todo], [opcodes[o] for o, _ in todo])
    a.qp.close(), b.qp.close()
    return well, 2 * ROUNDS * len(SIZES) * len(opcodes)


def refused(gid):
    """A receive entry comes late, a memory key that is invalidated is none, one that is written to neither."""
    a, b = End(near), End(far)
    a.connect(b, gid=gid)
    b.connect(a, gid=gid)
    a.send()
    early = a.poll(1, 0.01)
    b.recv()
    got = early + a.poll(1) + b.poll(1)
    for opcode, receives in (e.IBV_WR_SEND_WITH_INV, 1), (e.IBV_WR_RDMA_WRITE, 0):
        a.qp.close(), b.qp.close()
        a, b = End(near), End(far)
        a.connect(b, gid=gid)
        b.connect(a, gid=gid)
        b.recv(receives)
        w = SendWR(opcode=opcode, num_sge=1, sg=a.sge(64), imm_data=far.mr.rkey ^ 0xff00)
        w.set_wr_rdma(far.mr.rkey ^ 0xff00, far.mr.buf)
        a.qp.post_send(w)
        got += a.poll(1) + b.poll(receives)
    a.qp.close(), b.qp.close()
    access = (e.IBV_WC_REM_ACCESS_ERR, 0x88)
    return got, [(0, 0), (0, 0), access, (e.IBV_WC_LOC_PROT_ERR, 0x56), access]


def datagrams(gid):
    a, b = End(near, e.IBV_QPT_UD), End(far, e.IBV_QPT_UD)
    for end in a, b:
        attr = QPAttr(port_num=1)
        attr.qkey = QKEY
        end.qp.to_rts(attr)
    ah = AH(near.pd, attr=a.path(b, gid, ECT0))
    works = []
    for n in SIZES * ROUNDS:
        for opcode in e.IBV_WR_SEND, e.IBV_WR_SEND_WITH_IMM:
            w = SendWR(opcode=opcode, num_sge=1, sg=[SGE(near.mr.buf, min(n, 1024), near.mr.lkey)], imm_data=n)
            w.set_wr_ud(ah, b.qp.qp_num, QKEY)
            works.append(w)
    well = exchange(a, b, works, [True] * len(works))
    a.qp.close(), b.qp.close(), ah.close()
    return well, len(works)


far, near = cards()
for gid in GIDS:
    for name, (well, of) in (('RC', connected(e.IBV_QPT_RC, MESSAGES | READS, gid)), ('UC', connected(e.IBV_QPT_UC, MESSAGES, gid, access=UC_ACCESS)),
                             ('UD', datagrams(gid)), ('NAKs', refused(gid))):
        print(f'{name} of GID {gid}' if well == of else f'{name} of GID {gid}: {well} of {of} messages', flush=True)
