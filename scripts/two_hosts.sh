#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a program as ranks of two hosts that one machine plays: two network namespaces, joined by a
# link of limited rate. At the end it says how many bytes each host has sent. Needs root and MPICH,
# and leaves nothing behind.
#
#   scripts/two_hosts.sh RANKS_A_HOST PROGRAM [arguments]
#   scripts/two_hosts.sh 2 build/bin/ronde bench allreduce --min 1MiB --max 64MiB
#
# RONDE_LINK_RATE      of the link, in both directions, as tc writes it (default: 1gbit)
# RONDE_LINK_DELAY_MS  of the link, one way (default: none), by the tests' far_link
# RONDE_LINK_BETWEEN   two hosts, such as 0,2: the delay is between these alone
# RONDE_FAR_LINK       where far_link is (default: beside PROGRAM)
# RONDE_HOSTS          how many hosts, all at one switch (default: 2)
# RONDE_MPIEXEC        MPICH's launcher (default: mpiexec)
set -u
if (($# < 2)); then
  sed -n '3,16s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
ranks=$1 program=$(realpath "$2")
shift 2
export RONDE_FAR_LINK=${RONDE_FAR_LINK:-$(dirname "$program")/far_link}
source "$(dirname "$0")/../tests/support/processes/two_namespaces.sh"

two_namespaces_make || exit
for space in "${spaces[@]}"; do
  tc -n "$space" qdisc add dev "$link" root tbf rate "${RONDE_LINK_RATE:-1gbit}" burst 256kb \
    latency 50ms || exit 1
done
unset RONDE_LINK_RATE

sent_bytes() {
  ip netns exec "$1" cat "/sys/class/net/$link/statistics/tx_bytes"
}

two_namespaces_run "$(command -v "${RONDE_MPIEXEC:-mpiexec}")" "${hosts[@]}" -ppn "$ranks" \
  -n "$((${#spaces[@]} * ranks))" "$program" "$@"
status=$?
sent=
for space in "${spaces[@]}"; do sent+=" $(sent_bytes "$space")"; done
echo "sent, in bytes by each host:$sent"
exit $status
