# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034
# To be sourced: network namespaces joined by a link, hosts as far as the network is concerned, and
# MPICH's mpiexec started inside the first one. Traffic goes between them alone.
#
#   two_namespaces_make            makes "${spaces[@]}", of which $space_a and $space_b are the first,
#                                  $link in each, and $folder, all of which go when the shell exits;
#                                  fails with 77 where that is impossible
#   two_namespaces_run COMMAND...  in the first one; an mpiexec with "${hosts[@]}" among its options
#                                  starts ranks in all
#
# RONDE_HOSTS          how many (default: 2); more than two are at a switch
# RONDE_LINK_DELAY_MS  of the link, one way: RONDE_FAR_LINK, the tests' far_link, then carries it
# RONDE_LINK_BETWEEN   two hosts, such as 0,2: the delay is between these alone

spaces=()
for ((host = 0; host < ${RONDE_HOSTS:-2}; ++host)); do spaces+=("rt$$-$host"); done
space_a=${spaces[0]} space_b=${spaces[1]} space_switch=rt$$-s link=ronde0 far_link=
readonly address_a=10.213.77.1 address_b=10.213.77.2

two_namespaces_skip() {
  echo "skipped: $1"
  return 77
}

two_namespaces_remove() {
  local space
  [[ -z $far_link ]] || kill "$far_link" 2>/dev/null
  for space in "${spaces[@]}" "$space_switch"; do ip netns del "$space" 2>/dev/null; done
  rm -rf "$folder"
}

# Gives each namespace its end of $link.
two_namespaces_join() {
  local host ready=
  if [[ -n ${RONDE_LINK_DELAY_MS:-} ]]; then
    exec {far_link_output}< <(exec "${RONDE_FAR_LINK:?}" --delay-ms "$RONDE_LINK_DELAY_MS" \
      ${RONDE_LINK_BETWEEN:+--between "$RONDE_LINK_BETWEEN"} --device "$link" "${spaces[@]}")
    far_link=$!
    read -ru "$far_link_output" ready
    [[ $ready == ready ]] || two_namespaces_skip "tap devices cannot be made here"
  elif ((${#spaces[@]} == 2)); then
    ip link add "$link" netns "$space_a" type veth peer name "$link" netns "$space_b" ||
      two_namespaces_skip "veth pairs cannot be made here"
  else
    ip netns add "$space_switch" && ip -n "$space_switch" link add switch up type bridge ||
      two_namespaces_skip "bridges cannot be made here" || return
    for host in "${!spaces[@]}"; do
      ip link add "$link" netns "${spaces[host]}" type veth peer name "port$host" netns "$space_switch" &&
        ip -n "$space_switch" link set dev "port$host" up master switch || return
    done
  fi
}

two_namespaces_make() {
  ((EUID == 0)) || two_namespaces_skip "network namespaces need root" || return
  command -v ip >/dev/null || two_namespaces_skip "no ip command" || return
  local host space addresses=()
  folder=$(mktemp -d) || return
  trap two_namespaces_remove EXIT
  for space in "${spaces[@]}"; do
    ip netns add "$space" || two_namespaces_skip "network namespaces cannot be made here" || return
  done
  two_namespaces_join || return
  unset RONDE_HOSTS RONDE_LINK_DELAY_MS RONDE_LINK_BETWEEN RONDE_FAR_LINK  # Ronde would warn of them
  for host in "${!spaces[@]}"; do
    space=${spaces[host]}
    addresses+=("10.213.77.$((host + 1))")
    ip -n "$space" addr add "${addresses[host]}/24" dev "$link" || return
    ip -n "$space" link set dev "$link" up || return
    ip -n "$space" link set dev lo up || return
  done

  # UCX leaves out a link that the kernel does not call running yet: one without a carrier. The state of a tap
  # device is never UP.
  local i links
  for ((i = 0; i < 100; ++i)); do
    links=$(for space in "${spaces[@]}"; do ip -n "$space" link show dev "$link"; done)
    [[ $links == *NO-CARRIER* ]] || break
    sleep 0.05
  done

  # What Hydra takes for ssh: drops the options, and enters the namespace of the host's address.
  cat >"$folder/enter" <<EOF
#!/bin/bash
while [[ \$1 == -* ]]; do shift; done
spaces=(${spaces[*]})
[[ \$1 == 10.213.77.* ]] || exit 1
space=\${spaces[\${1##*.} - 1]}
shift
exec ip netns exec "\$space" unshare -u bash -c "hostname \$space; \$*"
EOF
  chmod +x "$folder/enter"
  hosts=(-launcher ssh -launcher-exec "$folder/enter" -hosts "$(IFS=,; echo "${addresses[*]}")")
}

two_namespaces_run() {
  UCX_TLS=tcp,self UCX_NET_DEVICES=$link ip netns exec "$space_a" \
    unshare -u bash -c 'hostname "$0"; exec "$@"' "$space_a" "$@" </dev/null
}
