# SPDX-License-Identifier: BSD-2-Clause
#
# The batch ioctl of a patched kernel, on a device whose commands take 50 ms: killed
# in mid-batch, and two processes at once. Packets go over its network device
# meanwhile, to the second card and back, and the device is set up anew. Batches and
# packets go on until they are told to end, and each step waits for what the one before
# has led to: how fast the machine is does not matter.

set -e

# What one card sends to the other goes over the wire, although both are local: only
# what came from there is looked up among the local addresses. A namespace would do,
# too, where the kernel has them.
near=$(ls /sys/class/infiniband/mlx5_0/device/net)
far=$(ls /sys/class/infiniband/mlx5_1/device/net)
for each in all $near $far; do
  echo 1 > /proc/sys/net/ipv4/conf/$each/accept_local
  echo 0 > /proc/sys/net/ipv4/conf/$each/rp_filter
done
ip rule add pref 1 iif $near lookup local
ip rule add pref 1 iif $far lookup local
ip rule add pref 2 to 192.168.7.2 lookup 102
ip rule add pref 2 to 192.168.7.1 lookup 101
ip route add 192.168.7.2 dev $near src 192.168.7.1 table 102
ip route add 192.168.7.1 dev $far src 192.168.7.2 table 101
ip rule add pref 3 lookup local
ip rule del pref 0

batch="devxlab qp batch --kernel-batch --qps 32 -o json"
endless="$batch --rounds 1000000 mlx5_0"
cd /sys/kernel/debug/mlx5/$(basename "$(readlink -f /sys/class/infiniband/mlx5_0/device)")/commands
created() { cat CREATE_QP/n; }
sent() { cat RST2INIT_QP/n; }
packets() { cat /sys/class/net/$near/statistics/tx_packets; }

# more COUNTER N PID...: waits until there are N more, and ends all if a process has.
more() {
  counter=$1 until=$(($($1) + $2))
  shift 2
  until test "$($counter)" -ge $until; do
    kill -0 "$@"
    sleep 0.1
  done
}

# Packets, each sent when the one before has come back; what became of them is said by
# 50, and shown as how often it was said.
flood() {
  rm -f /tmp/enough
  (until test -e /tmp/enough; do ping -A -q -c 50 -I 192.168.7.1 192.168.7.2 || true; done) > /tmp/ping & flood=$!
}
enough() {
  touch /tmp/enough
  wait $flood
  grep 'packet loss' /tmp/ping | uniq -c
}

$endless & killed=$!
more sent 64 $killed
flood
more packets 200 $flood $killed
kill -9 $killed
wait $killed || echo "killed $?"
more packets 200 $flood
enough
$batch mlx5_0 | grep '"done"'

all=$(($(created) + 64))
$endless > /tmp/one & one=$!
$endless > /tmp/two & two=$!
until test "$(created)" -ge $all; do kill -0 $one $two; sleep 0.1; done
more sent 64 $one $two
flood
more packets 200 $flood $one $two
enough
more sent 32 $one $two
ip link set $near mtu 1400
more sent 32 $one $two
echo "mtu $(cat /sys/class/net/$near/mtu) meanwhile"
kill $one $two
wait $one || echo "one ended $?"
wait $two || echo "two ended $?"
grep -E '"(done|failed|unknown|E[A-Z]+)"' /tmp/one /tmp/two
