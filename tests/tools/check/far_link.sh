#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: far_link.sh FAR_LINK MPIEXEC RONDE
# Of three hosts at a switch, 0 and 2 are 10 ms from each other: `ronde check` names these two links. Ranks spin in
# MPI: at normal priority they would wait for a core longer than the link's delay.
set -u
export RONDE_HOSTS=3 RONDE_LINK_DELAY_MS=10 RONDE_LINK_BETWEEN=0,2 RONDE_FAR_LINK=$1
mpiexec=$2 ronde=$3
source "$(dirname "$0")/../../support/processes/two_namespaces.sh"

two_namespaces_make || exit
two_namespaces_run nice -n -15 timeout 60 "$mpiexec" "${hosts[@]}" -ppn 1 -n 3 "$ronde" check --max 33 \
  >"$folder/out" 2>&1
status=$?
cat "$folder/out"
((status == 0)) || { echo "ronde check ended with $status"; exit 1; }

failed=0
for link in "0 2" "2 0"; do
  read -r from to <<<"$link"
  text="warning: slow link: rank $from \(rt[0-9]+-$from\) -> rank $to \(rt[0-9]+-$to\) over mpi: latency [0-9]{5}"
  grep -qE "$text" "$folder/out" || { echo "no line matches '$text'"; failed=1; }
done
# A half of the round trip takes as long as the link delays it, on the other links less.
slow=$(grep -cE "over mpi: latency [0-9]{5}" "$folder/out")
((slow == 2)) || { echo "$slow links over mpi took 10 ms"; failed=1; }
exit $failed
