# SPDX-License-Identifier: Apache-2.0
# To be sourced: two network namespaces joined by a veth pair, two hosts as far as the network is
# concerned, and MPICH's mpiexec started inside the first one. Traffic goes between the two alone.
#
#   two_namespaces_make FOLDER     makes $space_a, $space_b and $link, and a helper in FOLDER; fails
#                                  with 77 where that is impossible
#   two_namespaces_run COMMAND...  in the first one; an mpiexec with "${hosts[@]}" among its options
#                                  starts ranks in both
#   two_namespaces_remove

space_a=rt$$-a space_b=rt$$-b link=ronde0
readonly address_a=10.213.77.1 address_b=10.213.77.2

two_namespaces_skip() {
  echo "skipped: $1"
  return 77
}

two_namespaces_remove() {
  ip netns del "$space_a" 2>/dev/null
  ip netns del "$space_b" 2>/dev/null
}

two_namespaces_make() {
  local folder=$1
  ((EUID == 0)) || two_namespaces_skip "network namespaces need root" || return
  command -v ip >/dev/null || two_namespaces_skip "no ip command" || return
  ip netns add "$space_a" ||
    two_namespaces_skip "network namespaces cannot be made here" || return
  ip netns add "$space_b" || return
  ip link add "$link" netns "$space_a" type veth peer name "$link" netns "$space_b" ||
    two_namespaces_skip "veth pairs cannot be made here" || return
  local side space address
  for side in a b; do
    space=space_$side address=address_$side
    ip -n "${!space}" addr add "${!address}/24" dev "$link" || return
    ip -n "${!space}" link set dev "$link" up || return
    ip -n "${!space}" link set dev lo up || return
  done

  # UCX leaves out a link that the kernel does not call running yet.
  local i running
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
  hosts=(-launcher ssh -launcher-exec "$folder/enter" -hosts "$address_a,$address_b")
}

two_namespaces_run() {
  UCX_TLS=tcp,self UCX_NET_DEVICES=$link ip netns exec "$space_a" \
    unshare -u bash -c 'hostname "$0"; exec "$@"' "$space_a" "$@" </dev/null
}
