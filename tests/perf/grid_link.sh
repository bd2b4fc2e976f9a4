#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compares the times that `ronde grid` predicts with measured ones, for all divisions of two hosts of
# two ranks, and prints Spearman's rank correlation. Hosts are namespaces, and their link has 100
# Mbit/s. Needs root and MPICH.
#
#   tests/perf/grid_link.sh BUILD [MODEL [BATCH [MICRO_BATCHES [ROUNDS]]]]
set -eu
build=$1 model=${2:-mlp:512,2048,512,1024,256} batch=${3:-256} micro_batches=${4:-4} rounds=${5:-5}
root=$(cd "$(dirname "$0")/../.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export RONDE_LINK_RATE=100mbit RONDE_LOG_LEVEL=error

# The burst of two_hosts.sh makes the link look faster for smaller calls. From 1 MiB on all calls are of
# one size, which does not tell bytes from messages.
"$root/scripts/two_hosts.sh" 1 "$build/bin/ronde" bench allreduce --model --backend fabric \
  --min 512KiB --max 4MiB --iters 15 --warmup 5 --json "$folder/costs.json"
"$build/bin/ronde" grid --ranks 4 --ranks-per-host 2 --model "$model" --batch "$batch" \
  --micro-batches "$micro_batches" --costs "$folder/costs.json" >"$folder/predicted"
"$root/scripts/two_hosts.sh" 2 "$build/bin/grid_steps" "$model" "$batch" "$micro_batches" "$rounds" \
  >"$folder/measured"

python3 - "$folder" <<'PYTHON'
import sys
folder = sys.argv[1]

def times_of(file):  # by stages, data, rows and columns
    lines = [line.removeprefix("grid ").split() for line in open(folder + file)]
    return {tuple(line[:4]): float(line[-1]) for line in lines if line and line[0].isdigit()}

predicted, measured = times_of("/predicted"), times_of("/measured")
assert measured.keys() == predicted.keys()

def ranks(times):  # equal times share the mean of their places
    return {grid: sum((other < time) + (other == time) / 2 for other in times.values())
            for grid, time in times.items()}

print("stages  data  rows x columns  predicted ms  measured ms")
for grid in sorted(predicted, key=predicted.get):
    print("%6s %5s %5s x %-7s %13.1f %12.1f" % (*grid, predicted[grid], measured[grid]))
a, b = ranks(predicted), ranks(measured)
mean = len(a) / 2
product = lambda x, y: sum((x[grid] - mean) * (y[grid] - mean) for grid in a)
print("rank correlation of %d grids: %.3f"
      % (len(a), product(a, b) / (product(a, a) * product(b, b)) ** 0.5))
PYTHON
