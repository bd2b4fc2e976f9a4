#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compares what RONDE_AUTOTUNE finds with a sweep, over a link of 1 Gbit/s between two namespaces:
# from 1 MiB and 50 ms, and how many steps the search took. Needs root and MPICH.
#
#   tests/perf/tune_link.sh BUILD [FUSION_MIB...]
set -u
build=$1
shift
fusions=("${@:-1 2 4 8 16 32 64 128 256}")
root=$(cd "$(dirname "$0")/../.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# COUNT: with the variables of the environment; 256 tensors of 64 KiB, in 100 ms.
steps() {
  "$root/scripts/two_hosts.sh" 1 "$build/bin/tuned_steps" "$1" 256 64 100000 | sed -n 's/.*steps: //p'
}
for fusion in ${fusions[*]}; do
  for cycle in 0 0.5 1 2.5 5 10 25 50; do
    printf '%s MiB, %s ms: ' "$fusion" "$cycle"
    RONDE_FUSION_BYTES=${fusion}MiB RONDE_CYCLE_TIME_MS=$cycle steps 15
  done
done
version=$("$build/bin/ronde" --version)
cat >"$folder/tuned.json" <<JSON
{"ronde_tuned": 1, "version": "$version", "finished": false, "model": "", "ranks": 0, "hosts": 0,
 "step_us": 0, "start_step_us": 0,
 "values": {"RONDE_FUSION_BYTES": "1MiB", "RONDE_CYCLE_TIME_MS": "50"}}
JSON
printf 'tuned from 1 MiB, 50 ms: '
RONDE_AUTOTUNE=1 RONDE_TUNED=$folder/tuned.json RONDE_AUTOTUNE_LOG=$folder/log.csv steps 250
cat "$folder/log.csv" "$folder/tuned.json"
