# SPDX-License-Identifier: BSD-2-Clause
#
# Connection set-ups from the first card to the second, idle and while the third one
# keeps the way to the second one busy. Arguments are those of devxlab bench c3.
dir=${0%/*}
sh "$dir/apart.sh" || exit
/bin/ip netns exec far devxlab cm server 192.168.7.2 --workers ${SERVERS:-16} &
server=$!
for _ in $(seq 600); do /bin/ip netns exec far rdma resource show cm_id | grep -q LISTEN && break; sleep 0.1; done
# Queue pairs of DevX, whose way to the peer this program finds itself; open loop.
devxlab cm bench --devx --connections 20 --workers 4 --rate 10 192.168.7.2 || exit
devxlab bench c3 --device mlx5_0 --peer 192.168.7.2 --congest "sh $dir/congest.sh" --dir /tmp/results "$@"
status=$?
kill $server
wait $server
/bin/ip netns exec far rdma resource show cm_id
rdma resource show cm_id
exit $status
