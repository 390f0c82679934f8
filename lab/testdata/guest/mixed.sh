# SPDX-License-Identifier: BSD-2-Clause
#
# Some of everything that can be on a wire of RoCE: what mixed.py sends, and the
# messages of connection managers, also slow ones and refusals. Each step that went
# well is a line.
ip() { /bin/ip "$@"; }
cd "${0%/*}"
sh apart.sh || exit
python3 mixed.py ${ROUNDS:-8} || exit

near=$(ls /sys/class/infiniband/mlx5_0/device/net)
far=$(ip netns exec far ls /sys/class/infiniband/mlx5_1/device/net)
ip addr add fd00:7::1/64 dev $near nodad
ip -n far addr add fd00:7::2/64 dev $far nodad

# both NAME SERVER CLIENT [STATUS] runs programs that find each other by a connection
# manager, or by TCP.
both() {
  /bin/ip netns exec far timeout 60 $2 >/tmp/far.log 2>&1 &
  until ip netns exec far sh -c "netstat -ltn | grep -q :18515 || rdma resource show cm_id | grep -q LISTEN"; do sleep 0.1; done
  timeout 60 $3 >/tmp/near.log 2>&1
  status=$?
  if [ $status = ${4:-0} ]; then
    echo "$1"
  else
    echo "$1: exit $status"
    tail -n 5 /tmp/near.log /tmp/far.log
  fi
  kill $! 2>/dev/null
  wait $! 2>/dev/null
}
managers() {
  both "rping over $1" "rping -s -a $2 -C 5" "rping -c -a $2 -C 5"
  both "cmtime over $1" "cmtime -b $2" "cmtime -c ${CONNECTIONS:-50} -s $2"
  both "ucmatose over $1" "ucmatose -b $2 -C 5" "ucmatose -s $2 -C 5 -S 3000"
  both "udaddy over $1" "udaddy -b $2 -C 5" "udaddy -s $2 -C 5"
  rping -c -a $2 -p 9 >/dev/null 2>&1 || echo "nobody listens over $1"
}
managers IPv4 192.168.7.2
managers IPv6 fd00:7::2
both "XRC: SEND" "ib_send_lat -c XRC -F -x 3 -n 20 -d mlx5_1" "ib_send_lat -c XRC -F -x 3 -n 20 -d mlx5_0 192.168.7.2"
both "XRC: WRITE" "ib_write_bw -c XRC -s 5000 -F -x 3 -n 20 -d mlx5_1" "ib_write_bw -c XRC -s 5000 -F -x 3 -n 20 -d mlx5_0 192.168.7.2"
for card in mlx5_0 mlx5_1; do
  mkdir /sys/kernel/config/rdma_cm/$card
  echo "IB/RoCE v1" >/sys/kernel/config/rdma_cm/$card/ports/1/default_roce_mode || echo "no RoCEv1 for connection managers"
  rmdir /sys/kernel/config/rdma_cm/$card # the mode stays
done
managers RoCEv1 192.168.7.2
both "a slow server refuses" "python3 refuse.py 192.168.7.2 9" "rping -c -a 192.168.7.2 -p 7471" 255
