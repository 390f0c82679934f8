# SPDX-License-Identifier: BSD-2-Clause
#
# Incast: the third card writes to the second one as fast as the wire takes it, for
# as long as this runs. It says a line when data comes. apart.sh comes first.
trap 'wait; exit' TERM # which the whole process group gets
/bin/ip netns exec far ib_write_bw -d mlx5_1 -x 3 -F -e -s 65536 --run_infinitely >/dev/null 2>&1 &
until /bin/ip netns exec far netstat -ltn | grep -q :18515; do sleep 0.1; done
written() { /bin/ip netns exec far cat /sys/class/infiniband/mlx5_1/ports/1/hw_counters/rx_write_requests; }
before=$(written)
/bin/ip netns exec third ib_write_bw -d mlx5_2 -x 3 -F -e -s 65536 --run_infinitely 192.168.7.2 >/dev/null 2>&1 &
until [ $(written) -gt $((before + 10)) ]; do sleep 0.1; done
echo busy
wait
