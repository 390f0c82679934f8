# SPDX-License-Identifier: BSD-2-Clause
#
# Moves the second card, its netdev and its RDMA device, into the network
# namespace "far": ip netns exec far CMD runs a program there. In one namespace
# the kernel would route what is for the other card over lo, and resolve its GID
# to a MAC address of zeros.
set -e
ip() { /bin/ip "$@"; } # busybox's shell would take its own, which has no netns

netdev=$(ls /sys/class/infiniband/mlx5_1/device/net)
rdma system set netns exclusive
ip netns add far
rdma dev set mlx5_1 netns far
ip link set "$netdev" netns far
ip -n far addr add 192.168.7.2/24 dev "$netdev"
ip -n far link set lo up
ip -n far link set "$netdev" up
for _ in $(seq 300); do
  ping -c 1 -W 1 192.168.7.2 >/dev/null && ip netns exec far grep -q c0a8 /sys/class/infiniband/mlx5_1/ports/1/gids/3 && exit
  sleep 0.1
done
echo "no way to the second card"
exit 1
