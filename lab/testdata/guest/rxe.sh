# SPDX-License-Identifier: BSD-2-Clause
#
# Pairs of runs of perftest, one on the emulated HCA and one on the kernel's own
# software implementation of RoCE (rdma_rxe) on the same netdev, in turns that
# begin with either. Each line is: pair, what was measured, device, figure.
#   rxe.sh PAIRS
rdma link add rxe0 type rxe netdev "$(ls /sys/class/infiniband/mlx5_0/device/net)" || exit
address=192.168.7.1
gid() { grep -l ":c0a8:0701" /sys/class/infiniband/$1/ports/1/gids/* | sed 's,.*/,,' | sort -n | tail -n 1; }
mlx5=$(gid mlx5_0)
rxe=$(gid rxe0)

# measure DEVICE GID COLUMN PROGRAM... prints a column of the last line of figures.
# Both sides poll, so each wants a processor: on one they take turns of 4 ms.
measure() {
  device=$1 index=$2 column=$3
  shift 3
  timeout 60 "$@" -F -d $device -x $index >/dev/null 2>/tmp/server &
  for _ in $(seq 100); do
    netstat -ltn | grep -q ":18515 " && break
    sleep 0.05
  done
  timeout 60 "$@" -F -d $device -x $index $address >/tmp/client 2>&1 || cat /tmp/client /tmp/server >&2
  wait $!
  grep '^ [0-9]' /tmp/client | tail -n 1 | awk "{print \$$column}"
}
both() {
  what=$1
  shift
  if [ $(($pair % 2)) = 0 ]; then
    a=$(measure mlx5_0 $mlx5 "$@")
    b=$(measure rxe0 $rxe "$@")
  else
    b=$(measure rxe0 $rxe "$@")
    a=$(measure mlx5_0 $mlx5 "$@")
  fi
  echo "$pair|$what|mlx5_0|$a"
  echo "$pair|$what|rxe0|$b"
}
for pair in $(seq $1); do
  both "ib_send_lat, 64 bytes, median in µs" 5 ib_send_lat -s 64 -n 200
  both "ib_write_bw, 64 bytes, MB/s" 4 ib_write_bw -s 64 -n 500
  both "ib_write_bw, 4096 bytes, MB/s" 4 ib_write_bw -s 4096 -n 500
done
