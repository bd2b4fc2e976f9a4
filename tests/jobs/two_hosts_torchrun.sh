#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: two_hosts_torchrun.sh TORCHRUN STATUS EXPECTED PROGRAM [arguments]
# Starts PROGRAM by `torchrun --no-python --nnodes 2 --nproc-per-node 2` in two network namespaces joined
# by a veth pair: two hosts, as far as the network is concerned. Both agents must end with STATUS (0, or
# "fails"), and each of the four ranks must print a line that matches EXPECTED: where they fail, one of each
# host at least, as an agent ends the others.
set -u
torchrun=$1 wanted=$2 expected=$3
shift 3
source "$(dirname "$0")/../support/processes/two_namespaces.sh"

[[ -x $torchrun ]] || { echo "skipped: no torchrun"; exit 77; }
two_namespaces_make || exit

agent() {
  local space=$1 node=$2
  shift 2
  OMP_NUM_THREADS=1 timeout 300 ip netns exec "$space" unshare -u \
    bash -c 'hostname "$0"; exec "$@"' "$space" \
    "$torchrun" --no-python --nnodes 2 --nproc-per-node 2 --node-rank "$node" \
    --master-addr "$address_a" --master-port 29500 "$@" </dev/null >"$folder/node$node" 2>&1
}
agent "$space_a" 0 "$@" &
first=$!
agent "$space_b" 1 "$@"
status_b=$?
wait "$first"
status_a=$?

failed=0
least=2
[[ $wanted == 0 ]] || least=1
for node in 0 1; do
  lines=$(grep -cE "$expected" "$folder/node$node")
  grep -E "$expected" "$folder/node$node" | sed "s/^/node $node: /"
  ((lines >= least)) || { echo "node $node: $lines lines match '$expected'"; failed=1; }
done
for status in "$status_a" "$status_b"; do
  echo "an agent ended with $status"
  if [[ $wanted == 0 ]]; then ((status == 0)) || failed=1; else ((status != 0)) || failed=1; fi
done
if ((failed)); then cat "$folder/node0" "$folder/node1"; fi
exit $failed
