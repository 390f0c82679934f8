# SPDX-License-Identifier: BSD-2-Clause
#
# Incast: the third card sends to the second one as fast as the wire takes it, for as
# long as this runs. It says a line when data comes. apart.sh comes first. Both ends
# sleep between completions: ib_write_bw would poll, and take a processor.
trap 'wait; exit' TERM # which the whole process group gets
/bin/ip netns exec far ib_send_bw -d mlx5_1 -x 3 -F -e -s 65536 -n 1000000 >/dev/null 2>&1 &
until /bin/ip netns exec far netstat -ltn | grep -q :18515; do sleep 0.1; done
came() { /bin/ip netns exec far cat /sys/class/infiniband/mlx5_1/ports/1/counters/port_rcv_packets; }
before=$(came)
/bin/ip netns exec third ib_send_bw -d mlx5_2 -x 3 -F -e -s 65536 -n 1000000 192.168.7.2 >/dev/null 2>&1 &
until [ $(came) -gt $((before + 500)) ]; do sleep 0.1; done
echo busy
wait
