# SPDX-License-Identifier: BSD-2-Clause
#
# The batch ioctl of a patched kernel, on a device whose commands take 50 ms:
# killed in mid-batch, two processes at once, and the network device meanwhile.

set -e
batch="devxlab qp batch --kernel-batch --qps 32 -o json"

$batch --rounds 10000 mlx5_0 & killed=$!
probe=/sys/kernel/debug/mlx5/*/commands/RST2INIT_QP/n
while test "$(cat $probe)" -lt 64; do sleep 0.1; done # it is at work
kill -9 $killed
wait $killed || echo "killed $?"
$batch mlx5_0 | grep '"done"'

$batch --rounds 4 mlx5_0 > /tmp/one & one=$!
$batch --rounds 4 mlx5_0 > /tmp/two & two=$!
before=$(cat $probe)
while test "$(cat $probe)" -le "$before"; do sleep 0.1; done # one of them is at work
ip link set eth0 mtu 1400
kill -0 $one && kill -0 $two && echo "mtu $(cat /sys/class/net/eth0/mtu) meanwhile"
wait $one
wait $two
grep '"done"' /tmp/one /tmp/two
