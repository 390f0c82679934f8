# SPDX-License-Identifier: BSD-2-Clause
#
# Faults of the wire and of the peer, as a program of rdma-core sees them: RC
# queue pairs of two cards. Each step prints what completed, in which states the
# queue pairs are, and which counters of each card moved, and by how much if that
# is certain.
import os
import struct
import subprocess
import time

import pyverbs.enums as e
from pyverbs.pyverbs_error import PyverbsRDMAError

from pair import COUNTERS, End, cards, wire, words


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


far, near = cards()

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
