# SPDX-License-Identifier: BSD-2-Clause
#
#   refuse.py ADDRESS SECONDS
# Listens, looks at a request only after some seconds, and refuses it.
import sys
import time

import pyverbs.cm_enums as ce
import pyverbs.enums as e
from pyverbs.cmid import CMID, AddrInfo
from pyverbs.qp import QPCap, QPInitAttr

cap = QPInitAttr(qp_type=e.IBV_QPT_RC, cap=QPCap(max_recv_wr=1))
server = CMID(creator=AddrInfo(src=sys.argv[1], src_service='7471', port_space=ce.RDMA_PS_TCP, flags=ce.RAI_PASSIVE), qp_init_attr=cap)
server.listen()
time.sleep(float(sys.argv[2]))
server.get_request().reject()
