# SPDX-License-Identifier: BSD-2-Clause
#
# A storm of connection requests for remote queue pairs that live connections have,
# by rdma_cm with queue pair numbers of the program's own; and another peer's request
# amidst it. Prints one line of JSON: how each ended and when.
#
#   stale.py ADDRESS REQUESTS [LIVE]
#
# REQUESTS for each of LIVE connections (1), all at once.

import ctypes, json, select, socket, struct, sys, time

EVENTS = ["ADDR_RESOLVED", "ADDR_ERROR", "ROUTE_RESOLVED", "ROUTE_ERROR", "CONNECT_REQUEST", "CONNECT_RESPONSE",
          "CONNECT_ERROR", "UNREACHABLE", "REJECTED", "ESTABLISHED", "DISCONNECTED"]
PS_TCP, TIMEOUT_MS, PORT = 0x106, 2000, 7471
LIVE, OTHER, SERVER = 0x1001, 0x9002, 0xa000  # queue pair numbers, of LIVE the first


class Event(ctypes.Structure):  # struct rdma_cm_event, as far as it is read
    _fields_ = [("id", ctypes.c_void_p), ("listen", ctypes.c_void_p), ("event", ctypes.c_int), ("status", ctypes.c_int)]


class ConnParam(ctypes.Structure):  # struct rdma_conn_param
    _fields_ = [("private", ctypes.c_void_p), ("length", ctypes.c_uint8), ("responder", ctypes.c_uint8), ("initiator", ctypes.c_uint8),
                ("flow", ctypes.c_uint8), ("retry", ctypes.c_uint8), ("rnr", ctypes.c_uint8), ("srq", ctypes.c_uint8), ("qpn", ctypes.c_uint32)]


lib = ctypes.CDLL("librdmacm.so.1", use_errno=True)
lib.rdma_create_event_channel.restype = ctypes.c_void_p


def call(name, *args):
    if getattr(lib, name)(*args) != 0:
        raise OSError(ctypes.get_errno(), name)


def address(host, port):
    return struct.pack("<H", socket.AF_INET) + struct.pack(">H", port) + socket.inet_aton(host) + bytes(8)


class Channel:
    def __init__(self):
        self.p = ctypes.c_void_p(lib.rdma_create_event_channel())
        self.fd = ctypes.cast(self.p, ctypes.POINTER(ctypes.c_int))[0]

    def id(self):
        i = ctypes.c_void_p()
        call("rdma_create_id", self.p, ctypes.byref(i), self.fd + 1, PS_TCP)  # a context that is not 0: the kernel drops events of others
        return i

    def get(self):
        e = ctypes.POINTER(Event)()
        call("rdma_get_cm_event", self.p, ctypes.byref(e))
        got = (e.contents.id, EVENTS[e.contents.event], e.contents.status)
        call("rdma_ack_cm_event", e)
        return got


def param(qpn):
    return ctypes.byref(ConnParam(responder=1, initiator=1, retry=7, rnr=7, qpn=qpn))


def count(which):
    return int(open("/sys/class/infiniband/mlx5_0/ports/1/" + which).read())


host, requests, lives = sys.argv[1], int(sys.argv[2]), int((sys.argv[3:] or ["1"])[0])
server, client = Channel(), Channel()
listener = server.id()
call("rdma_bind_addr", listener, address(host, PORT))
call("rdma_listen", listener, 64)


def ready():
    """an id with address and route"""
    i = client.id()
    call("rdma_resolve_addr", i, None, address(host, PORT), TIMEOUT_MS)
    assert client.get()[1] == "ADDR_RESOLVED"
    call("rdma_resolve_route", i, TIMEOUT_MS)
    assert client.get()[1] == "ROUTE_RESOLVED"
    return i


accepted = 0


def serve():
    global accepted
    i, what, _ = server.get()
    if what == "CONNECT_REQUEST":
        accepted += 1
        call("rdma_accept", ctypes.c_void_p(i), param(SERVER + accepted))


def turn(ends, want, seconds):
    """handles events until want ids have ended"""
    limit = time.monotonic() + seconds
    while len(ends) < want:
        r, _, _ = select.select([server.fd, client.fd], [], [], max(0, limit - time.monotonic()))
        if not r:
            break
        if server.fd in r:
            serve()
        if client.fd in r:
            i, what, status = client.get()
            if what == "CONNECT_RESPONSE":
                call("rdma_establish", ctypes.c_void_p(i))
                what = "ESTABLISHED"
            if what != "DISCONNECTED":  # of the live one, whose peer is told to go: it does not answer
                ends[i] = (what, status, time.monotonic())


for n in range(lives):
    live, ends = ready(), {}
    call("rdma_connect", live, param(LIVE + n))
    turn(ends, 1, 10)
    assert ends[live.value][0] == "ESTABLISHED", ends

storm, other = [ready() for _ in range(lives * requests)], ready()
before = {w: count(w) for w in ("cm_tx_msgs/rej", "cm_tx_msgs/dreq", "cm_tx_retries/req")}
start, ends, was = time.monotonic(), {}, accepted
for n, i in enumerate(storm):
    call("rdma_connect", i, param(LIVE + n % lives))
call("rdma_connect", other, param(OTHER))
turn(ends, len(storm) + 1, 60)
print(json.dumps({
    "refused": sum(ends.get(i.value, ("", 0))[:2] == ("REJECTED", 10) for i in storm),
    "accepted": accepted - was,
    "other": ends.get(other.value, ("nothing",))[0],
    "other_ms": round(1000 * (ends[other.value][2] - start)) if other.value in ends else -1,
    "ms": sorted(round(1000 * (ends[i.value][2] - start)) for i in storm if i.value in ends),
    **{w.split("/")[0] + "_" + w.split("/")[1]: count(w) - n for w, n in before.items()},
}))
