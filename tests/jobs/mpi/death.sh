#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: death.sh MPIEXEC PROGRAM CASE EXPECTED
# Starts a helper case of mpi_death_test.cc in which rank 1 of 3 dies. Every survivor must write a
# verdict in time: rank 0, that it was lost, with EXPECTED (a regular expression) as the reason;
# rank 2, that rank 0 told it.
set -u
mpiexec=$1 program=$2 case=$3 expected=$4
own_session=$(dirname "$0")/../../support/processes/mpi_own_session.sh

"$mpiexec" -help 2>&1 | grep -q disable-auto-cleanup || {
  echo "skipped: $mpiexec has no -disable-auto-cleanup (only Hydra lets survivors live)"
  exit 77
}
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
mkfifo "$folder/pipe" || exit 1
export RONDE_TEST_VERDICTS=$folder
timeout 40 "$mpiexec" -disable-auto-cleanup -n 3 "$own_session" "$program" "$case" \
  >"$folder/log" 2>&1 </dev/null

# mpiexec may be back before the survivors have finished.
for ((i = 0; i < 200; ++i)); do
  [[ -e $folder/rank0 && -e $folder/rank2 ]] && break
  sleep 0.1
done

status=0
for rank in 0 2; do
  verdict=$(cat "$folder/rank$rank" 2>/dev/null || echo "no verdict")
  wanted="^told: rank 1 died\$"
  ((rank == 0)) && wanted="^lost 1: $expected\$"
  if grep -Eq "$wanted" <<<"$verdict"; then
    echo "rank $rank: $verdict"
  else
    echo "FAILED: rank $rank: '$verdict', expected '$wanted'"
    status=1
  fi
done
((status == 0)) || cat "$folder/log"
# Releases a child that waits at the other end; without one, opening for both ends does not block.
exec 9<>"$folder/pipe"
exit $status
