# SPDX-License-Identifier: BSD-2-Clause
#
# The batch ioctl of a patched kernel, on a device whose commands take 50 ms: killed
# in mid-batch, and two processes at once. Packets go over its network device
# meanwhile, to the second card and back, and the device is set up anew.

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
flood="ping -A -q -c 1000 -I 192.168.7.1 192.168.7.2"
cd /sys/kernel/debug/mlx5/$(basename "$(readlink -f /sys/class/infiniband/mlx5_0/device)")/commands
sent() { cat RST2INIT_QP/n; }

$batch --rounds 10000 mlx5_0 & killed=$!
while kill -0 $killed && test "$(sent)" -lt 64; do sleep 0.1; done # it is at work
$flood > /tmp/ping & ping=$!
until kill -0 $ping; do :; done
kill -9 $killed
kill -0 $ping && echo "packets while it is killed"
wait $killed || echo "killed $?"
wait $ping
grep -o '.* packet loss' /tmp/ping
$batch mlx5_0 | grep '"done"'

$batch --rounds 8 mlx5_0 > /tmp/one & one=$!
$batch --rounds 8 mlx5_0 > /tmp/two & two=$!
before=$(sent)
while kill -0 $one && test "$(sent)" -le "$before"; do sleep 0.1; done # one of them is at work
$flood | grep -o '.* packet loss'
ip link set $near mtu 1400
kill -0 $one && kill -0 $two && echo "mtu $(cat /sys/class/net/$near/mtu) meanwhile"
wait $one
wait $two
grep '"done"' /tmp/one /tmp/two
