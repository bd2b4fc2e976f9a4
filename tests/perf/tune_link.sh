#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compares what RONDE_AUTOTUNE finds with the best of a sweep, over a link of 1 Gbit/s between two
# namespaces: from each of the starts, and how many steps the search took. The two take turns, as the
# machine's speed swings. Needs root and MPICH.
#
#   tests/perf/tune_link.sh BUILD [FUSION_MIB/CYCLE_MS...]      for example: tune_link.sh build 1/50 64/50
set -u
build=$1
shift
starts=("${@:-1/50}")
root=$(cd "$(dirname "$0")/../.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export RONDE_LOG_LEVEL=error
version=$("$build/bin/ronde" --version)

# COUNT: the median step in ms, with the variables of the environment; 256 tensors of 64 KiB, in 100 ms.
steps() {
  "$root/scripts/two_hosts.sh" 1 "$build/bin/tuned_steps" "$1" 256 64 100000 | sed -n 's/.*steps: \(.*\) ms/\1/p'
}
median() { sort -n | sed -n "$(($1 / 2 + 1))p"; }

for fusion in 1 2 4 8 16 32 64 128 256; do
  for cycle in 0 0.5 1 2.5 5 10 25 50; do
    ms=$(RONDE_FUSION_BYTES=${fusion}MiB RONDE_CYCLE_TIME_MS=$cycle steps 15)
    [[ -n $ms ]] || { echo "no result of $fusion MiB, $cycle ms" >&2; exit 1; }
    echo "$ms $fusion $cycle" | tee -a "$folder/sweep"
  done
done
read -r _ fusion cycle <<<"$(sort -n "$folder/sweep" | head -1)"
echo "best of the sweep: $fusion MiB, $cycle ms"

for start in "${starts[@]}"; do
  cat >"$folder/tuned.json" <<JSON
{"ronde_tuned": 1, "version": "$version", "finished": false, "model": "", "ranks": 0, "hosts": 0,
 "step_us": 0, "start_step_us": 0,
 "values": {"RONDE_FUSION_BYTES": "${start%/*}MiB", "RONDE_CYCLE_TIME_MS": "${start#*/}"}}
JSON
  RONDE_AUTOTUNE=1 RONDE_TUNED=$folder/tuned.json RONDE_AUTOTUNE_LOG=$folder/log.csv steps 250 >/dev/null
  echo "from ${start%/*} MiB, ${start#*/} ms, after $(tail -1 "$folder/log.csv" | cut -d, -f2) steps:" \
    "$(grep -o '"RONDE_[^,]*' "$folder/tuned.json" | tr -d '\n')"
  for _ in 1 2 3 4 5 6 7; do
    RONDE_TUNED=$folder/tuned.json steps 30 >>"$folder/tuned"
    RONDE_FUSION_BYTES=${fusion}MiB RONDE_CYCLE_TIME_MS=$cycle steps 30 >>"$folder/best"
    RONDE_FUSION_BYTES=${start%/*}MiB RONDE_CYCLE_TIME_MS=${start#*/} steps 30 >>"$folder/start"
  done
  echo "  ms a step, medians of 7 runs in turns: tuned $(median 7 <"$folder/tuned")," \
    "the sweep's best $(median 7 <"$folder/best"), the start $(median 7 <"$folder/start")"
  rm "$folder"/{tuned,best,start,log.csv}
done
