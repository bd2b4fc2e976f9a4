#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: two_hosts.sh RANKS PROGRAM [arguments]
# Starts ranks of PROGRAM as torchrun does, without MPI, half of them in each of two network namespaces
# joined by a veth pair: two hosts, as far as the network is concerned. PROGRAM finds the name of the
# link in RONDE_TEST_LINK. Ends with 1 if a rank fails, with 77 where namespaces cannot be made.
set -u
ranks=$1
shift
source "$(dirname "$0")/../../support/processes/two_namespaces.sh"

two_namespaces_make || exit

export RONDE_TEST_LINK=$link OMP_NUM_THREADS=1
export MASTER_ADDR=$address_a MASTER_PORT=29500 WORLD_SIZE=$ranks
started=()
for ((rank = 0; rank < ranks; ++rank)); do
  space=${spaces[rank * 2 / ranks]}
  RANK=$rank LOCAL_RANK=$((rank % (ranks / 2))) ip netns exec "$space" \
    unshare -u bash -c 'hostname "$0"; exec "$@"' "$space" "$@" </dev/null &
  started+=("$!")
done
failed=0
for process in "${started[@]}"; do
  wait "$process" || failed=1
done
exit $failed
