#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: two_hosts.sh MPIEXEC PROGRAM CASE
# Runs CASE on two ranks in two network namespaces joined by a veth pair: two hosts, as far as the
# network is concerned. The program finds the link's name in RONDE_TEST_LINK.
set -u
mpiexec=$(command -v "$1") program=$(realpath "$2") case=$3

skip() {
  echo "SKIPPED: $1"
  exit 77
}
((EUID == 0)) || skip "network namespaces need root"
command -v ip >/dev/null || skip "no ip command"
"$mpiexec" -help 2>&1 | grep -q launcher-exec || skip "$mpiexec is not Hydra"

tag=rt$$
space_a=$tag-a space_b=$tag-b link=ronde0
# Nobody else's: the namespaces are joined to each other alone.
address_a=10.213.77.1 address_b=10.213.77.2
folder=$(mktemp -d) || exit 1
cleanup() {
  ip netns del "$space_a" 2>/dev/null
  ip netns del "$space_b" 2>/dev/null
  rm -rf "$folder"
}
trap cleanup EXIT
ip netns add "$space_a" || skip "network namespaces cannot be made here"
ip netns add "$space_b" || exit 1
ip link add "$link" netns "$space_a" type veth peer name "$link" netns "$space_b" ||
  skip "veth pairs cannot be made here"
for side in a b; do
  space=space_$side address=address_$side
  ip -n "${!space}" addr add "${!address}/24" dev "$link" || exit 1
  ip -n "${!space}" link set dev "$link" up || exit 1
  ip -n "${!space}" link set dev lo up || exit 1
done

# UCX leaves out a link that the kernel does not call running yet.
for ((i = 0; i < 100; ++i)); do
  running=$(ip -n "$space_a" link show dev "$link"; ip -n "$space_b" link show dev "$link")
  (($(grep -c "state UP" <<<"$running") == 2)) && break
  sleep 0.05
done

# What Hydra takes for ssh: drops the options, and enters the namespace of the host's address.
cat >"$folder/enter" <<EOF
#!/bin/bash
while [[ \$1 == -* ]]; do shift; done
case \$1 in
  $address_a) space=$space_a ;;
  $address_b) space=$space_b ;;
  *) exit 1 ;;
esac
shift
exec ip netns exec "\$space" unshare -u bash -c "hostname \$space; \$*"
EOF
chmod +x "$folder/enter"
export UCX_TLS=tcp,self UCX_NET_DEVICES=$link RONDE_TEST_LINK=$link RONDE_TEST_VERDICTS=$folder
ip netns exec "$space_a" unshare -u bash -c 'hostname "$0"; exec timeout 80 "$@"' "$space_a" \
  "$mpiexec" -disable-auto-cleanup -launcher ssh -launcher-exec "$folder/enter" \
  -hosts "$address_a,$address_b" -n 2 "$program" "$case" </dev/null
status=$?
for rank in 0 1; do
  verdict=$(cat "$folder/rank$rank" 2>/dev/null || echo "no verdict")
  echo "rank $rank: $verdict"
  [[ $verdict == ok ]] || status=1
done
exit $status
