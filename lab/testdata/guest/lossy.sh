# SPDX-License-Identifier: BSD-2-Clause
#
# Programs of rdma-core over a long wire that loses: they are slow, and end well.
# Of the counters at either side those that must move are printed, if they did.
ip() { /bin/ip "$@"; }
counters() {
  cd /sys/class/infiniband/$1/ports/1/hw_counters
  for c in local_ack_timeout_err duplicate_request; do # each request is repeated before it can be answered
    [ $(cat $c) = 0 ] || echo "$1 $c"
  done
  for c in packet_seq_err implied_nak_seq_err out_of_sequence rnr_nak_retry_err req_cqe_error resp_cqe_error; do
    echo "# $1 $c $(cat $c)"
  done
}
[ "$1" = counters ] && counters $2 && exit

sh "${0%/*}/apart.sh" || exit

# A lost ARP request is repeated after 1 s, which is all the time that the kernel
# takes to resolve an address for RTR: see docs/wire.md.
near=$(ls /sys/class/infiniband/mlx5_0/device/net)
far=$(ip netns exec far ls /sys/class/infiniband/mlx5_1/device/net)
ip neigh replace 192.168.7.2 lladdr $(ip netns exec far cat /sys/class/net/$far/address) nud permanent dev $near
ip -n far neigh replace 192.168.7.1 lladdr $(cat /sys/class/net/$near/address) nud permanent dev $far

echo "@fault wire ${WIRE:-loss=5%,delay=100ms,jitter=10ms}"
read -r answer
[ "$answer" = ok ] || exit 1
both() {
  name=$1
  ip netns exec far timeout 200 $2 >/tmp/far 2>&1 &
  until ip netns exec far sh -c "netstat -ltn | grep -q :18515 || rdma resource show cm_id | grep -q LISTEN"; do sleep 0.1; done
  timeout 200 $3 >/tmp/near 2>&1
  echo "$name $?"
  wait $!
  echo "$name server $?"
  tail -n 1 /tmp/near | sed 's/^/# /'
}
both ibv_rc_pingpong "ibv_rc_pingpong -g 3 -n 50" "ibv_rc_pingpong -g 3 -n 50 192.168.7.2"
both rping "rping -s -a 192.168.7.2 -C 3 -V" "rping -c -a 192.168.7.2 -C 3 -V"
counters mlx5_0
ip netns exec far sh "$0" counters mlx5_1
