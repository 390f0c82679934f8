# SPDX-License-Identifier: BSD-2-Clause
#
# Moves the second card, its netdev and its RDMA device, into the network
# namespace "far": ip netns exec far CMD runs a program there. In one namespace
# the kernel would route what is for the other card over lo, and resolve its GID
# to a MAC address of zeros. A third card, if there is one, goes into "third".
set -e
ip() { /bin/ip "$@"; } # busybox's shell would take its own, which has no netns

# move DEVICE NAMESPACE ADDRESS
move() {
  netdev=$(ls /sys/class/infiniband/$1/device/net)
  ip netns add $2
  rdma dev set $1 netns $2
  ip link set "$netdev" netns $2
  ip -n $2 addr add $3/24 dev "$netdev"
  ip -n $2 link set lo up
  ip -n $2 link set "$netdev" up
  for _ in $(seq 300); do
    ping -c 1 -W 1 $3 >/dev/null && ip netns exec $2 grep -q c0a8 /sys/class/infiniband/$1/ports/1/gids/3 && return
    sleep 0.1
  done
  echo "no way to $1"
  exit 1
}
rdma system set netns exclusive
[ ! -e /sys/class/infiniband/mlx5_2 ] || move mlx5_2 third 192.168.7.3
move mlx5_1 far 192.168.7.2
