#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: death.sh MPIEXEC PROGRAM CASE RANKS VICTIM EXPECTED
# Starts a helper case of mpi_death_test.cc in which rank VICTIM dies. Every survivor must write a
# verdict in time: whoever watches the victim, that it was lost, with EXPECTED (a regular
# expression) as the reason; the others, that rank 0 told them.
set -u
mpiexec=$1 program=$2 case=$3 ranks=$4 victim=$5 expected=$6
own_session=$(dirname "$0")/../support/mpi_own_session.sh

"$mpiexec" -help 2>&1 | grep -q disable-auto-cleanup || {
  echo "skipped: $mpiexec has no -disable-auto-cleanup (only Hydra lets survivors live)"
  exit 77
}
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
mkfifo "$folder/pipe" || exit 1
export RONDE_TEST_VERDICTS=$folder
timeout 40 "$mpiexec" -disable-auto-cleanup -n "$ranks" "$own_session" "$program" "$case" \
  >"$folder/log" 2>&1 </dev/null

# mpiexec may be back before the survivors have finished.
missing() {
  for ((rank = 0; rank < ranks; ++rank)); do
    ((rank == victim)) || [[ -e $folder/rank$rank ]] || return 0
  done
  return 1
}
for ((i = 0; i < 200; ++i)); do
  missing || break
  sleep 0.1
done

status=0
for ((rank = 0; rank < ranks; ++rank)); do
  ((rank == victim)) && continue
  verdict=$(cat "$folder/rank$rank" 2>/dev/null || echo "no verdict")
  if ((rank == 0 || victim == 0)); then
    wanted="^lost $victim: $expected\$"
  else
    wanted="^told: rank $victim died\$"
  fi
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
