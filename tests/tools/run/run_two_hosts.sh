#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: run_two_hosts.sh RONDE RUN_JOB EXPECTED
# `ronde run` starts two ranks in each of two network namespaces joined by a veth pair: two hosts, as far
# as the network is concerned. A rank of the second one is killed; the job goes on from its checkpoint.
set -u
ronde=$1 job=$2 expected=$3
source "$(dirname "$0")/../../support/processes/two_namespaces.sh"

two_namespaces_make || exit

two_namespaces_run "$ronde" run --rsh "$folder/enter" --hosts "$address_a:2,$address_b:2" \
  --max-restarts 1 --backoff 0.1 --env OMP_NUM_THREADS=1 -- "$job" "$folder" 12 3 kill \
  >"$folder/out" 2>&1
status=$?
failed=0
((status == 0)) || { echo "ronde run ended with $status"; failed=1; }
for rank in 0 1 2 3; do
  for step in 0 6; do
    grep -E "\[$rank\] rank $rank of 4 from step $step, $expected" "$folder/out" || failed=1
  done
done
grep -F "rank 3 on $address_b: signal 9 (Killed)" "$folder/out" || failed=1
[[ $(cat "$folder/checkpoint") == 12 ]] || { echo "no checkpoint of step 12"; failed=1; }
if ((failed)); then cat "$folder/out"; fi
exit $failed
