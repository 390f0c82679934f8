# SPDX-License-Identifier: BSD-2-Clause
#
# Pairs of runs that set up connections, rdma-core's cmtime and devxlab cm bench in
# turns that begin with either; each has a server of its own kind. Each line is: pair,
# what was measured, program, figure. cmtime's "create qp" is devxlab's create and INIT,
# its "connect" devxlab's REQ→REP, RTR, RTS and RTU, its "disconnect" and "destroy" are
# devxlab's end.
#   cmtime.sh PAIRS CONNECTIONS
sh "${0%/*}/apart.sh" || exit
far() { /bin/ip netns exec far "$@"; }
serve() {
  /bin/ip netns exec far "$@" >/tmp/far 2>&1 & # not by a function: that would be a shell of its own
  server=$!
  for _ in $(seq 600); do far rdma resource show cm_id | grep -q LISTEN && break; sleep 0.1; done
}
stop() {
  kill $server
  wait $server 2>/dev/null
  for _ in $(seq 600); do far rdma resource show cm_id | grep -q . || break; sleep 0.1; done
}
theirs() {
  serve cmtime -c $n
  timeout 300 cmtime -c $n -s 192.168.7.2 >/tmp/near 2>&1 || cat /tmp/near /tmp/far >&2
  stop
  awk -F: -v pair=$pair '/:/ { gsub(/ +$/, "", $1); split($2, f, " "); us[$1] = f[4] }
    function say(what, v) { print pair "|" what ", µs a connection|cmtime|" v }
    END {
      say("create id", us["create id"]); say("resolve address", us["resolve addr"]); say("resolve route", us["resolve route"])
      say("create queue pair", us["create qp"]); say("connect", us["connect"]); say("end", us["disconnect"] + us["destroy"])
      say("set-up", us["create id"] + us["resolve addr"] + us["resolve route"] + us["create qp"] + us["connect"])
    }' /tmp/near
}
ours() {
  serve devxlab cm server 192.168.7.2 --backlog $n
  timeout 300 devxlab cm bench --together --workers 1 --connections $n --timeout 60s -o json 192.168.7.2 >/tmp/near 2>/tmp/err || cat /tmp/near /tmp/err /tmp/far >&2
  stop
  sed -n '/"phases_ns"/,/}/p' /tmp/near | tr -d ' ",' | awk -F: -v pair=$pair -v n=$n '{ us[$1] = $2 / 1000 / n }
    function say(what, v) { print pair "|" what ", µs a connection|devxlab|" v }
    END {
      say("create id", us["id"]); say("resolve address", us["address"]); say("resolve route", us["route"])
      say("create queue pair", us["create"] + us["INIT"]); connect = us["REQ→REP"] + us["RTR"] + us["RTS"] + us["RTU"]
      say("connect", connect); say("end", us["end"])
      say("set-up", us["id"] + us["address"] + us["route"] + us["create"] + us["INIT"] + connect)
    }'
}
n=$2
for pair in $(seq $1); do
  if [ $(($pair % 2)) = 0 ]; then theirs; ours; else ours; theirs; fi
done
