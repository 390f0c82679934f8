# SPDX-License-Identifier: BSD-2-Clause
#
# Connections over a wire that loses messages of their managers and doubles others:
# each of those is repeated after seconds, and all end well.
cd "${0%/*}"
sh apart.sh || exit
/bin/ip netns exec far cmtime -b 192.168.7.2 >/dev/null 2>&1 &
until /bin/ip netns exec far rdma resource show cm_id | grep -q LISTEN; do sleep 0.1; done
timeout 200 cmtime -c ${CONNECTIONS:-50} -s 192.168.7.2 >/tmp/near.log 2>&1 && echo cmtime || tail /tmp/near.log
kill $!
