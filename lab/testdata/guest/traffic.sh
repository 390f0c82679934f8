# SPDX-License-Identifier: BSD-2-Clause
#
# Unmodified programs between two cards on one wire.
#   traffic.sh netns          both are in this guest, the second one in a network namespace: see apart.sh
#   traffic.sh serve          the other guest, until the first one is done
#   traffic.sh guest ADDRESS  the first guest
# Each program that went well is a line "ok NAME"; of others there is their output.

case $1 in
netns)
  sh "${0%/*}/apart.sh" || exit
  address=192.168.7.2
  device=mlx5_1
  far() { /bin/ip netns exec far sh -c "$1"; } ;;
guest)
  address=$2
  device=mlx5_0
  far() { echo "$1" | nc "$address" 9999; } ;;
serve)
  nc -ll -p 9999 -e sh &
  while ! [ -e /tmp/done ]; do sleep 0.2; done
  kill $!
  exit ;;
esac

# until_true waits until a command succeeds, for 60 s at most.
until_true() {
  for _ in $(seq 300); do "$@" >/dev/null 2>&1 && return; sleep 0.2; done
  echo "never: $*"
}
up() { ping -c 1 -W 1 $address && far "cat /sys/class/infiniband/$device/ports/1/gids/3" | grep -q ':c0a8:' ; }
tcp() { far "netstat -ltn" | grep -q ":18515 "; }
cm() { far "rdma resource show cm_id" | grep -q LISTEN; }

# pair NAME LISTENS SERVER CLIENT [KILL] runs a program on both sides. One whose
# server serves for ever has KILL for it.
pair() {
  far "sh -c 'echo \$\$ >/tmp/pid; exec $3' >/tmp/server 2>&1; echo \$? >>/tmp/server; tail -n 20 /tmp/server" >/tmp/far &
  until_true "$2"
  timeout ${LIMIT:-60} $4 >/tmp/near 2>&1
  status=$?
  good=0
  if [ -n "$5" ]; then
    good=143 # of SIGTERM
  fi
  if [ -n "$5" ] || [ $status != 0 ]; then
    far 'kill $(cat /tmp/pid)'
  fi
  wait $!
  if [ $status = 0 ] && [ "$(tail -n 1 /tmp/far)" = $good ]; then
    echo "ok $1"
    echo "# $(($(date +%s) - began)) s"
  else
    echo "failed $1: exit $status"
    tail -n 20 /tmp/near
    echo "the other side:"
    cat /tmp/far
  fi
}

began=$(date +%s)
until_true up
echo ok ping
N=${ITERATIONS:-100}
for t in rc uc ud srq; do
  pair ibv_${t}_pingpong tcp "ibv_${t}_pingpong -d $device -g 3 -e -n $N" "ibv_${t}_pingpong -d mlx5_0 -g 3 -e -n $N $address"
done
pair rping cm "rping -s -a $address -C 10 -V" "rping -c -a $address -C 10 -V"
pair ucmatose cm "ucmatose -C 10 -S 4096" "ucmatose -s $address -C 10 -S 4096"
pair udaddy cm "udaddy -C 10" "udaddy -s $address -C 10"
pair cmtime cm "cmtime -c ${CONNECTIONS:-1000}" "cmtime -c ${CONNECTIONS:-1000} -s $address" kill
for p in "ib_send_lat -n $N" "ib_write_bw -n $N" "ib_read_lat -n $N" "ib_atomic_lat -n $N"; do
  pair "${p%% *}" tcp "$p -F -x 3 -d $device" "$p -F -x 3 -d mlx5_0 $address"
done
[ "$1" = netns ] || far "touch /tmp/done"
