#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: two_hosts.sh MPIEXEC PROGRAM CASE [cuts]
# Runs CASE on two ranks in two network namespaces joined by a veth pair: two hosts, as far as the
# network is concerned. The program finds the link's name in RONDE_TEST_LINK. With "cuts", the case cuts
# it, which mpiexec's own connections may not survive: the ranks' verdicts alone count then.
set -u
mpiexec=$(command -v "$1") program=$(realpath "$2") case=$3 cuts=${4:-}
source "$(dirname "$0")/../../support/processes/two_namespaces.sh"

"$mpiexec" -help 2>&1 | grep -q launcher-exec || { echo "skipped: $mpiexec is not Hydra"; exit 77; }
two_namespaces_make || exit
export RONDE_TEST_LINK=$link RONDE_TEST_VERDICTS=$folder
two_namespaces_run timeout 150 "$mpiexec" -disable-auto-cleanup "${hosts[@]}" -n 2 \
  "$program" "$case"
status=$?
if [[ -n $cuts ]]; then
  echo "mpiexec's status: $status"
  status=0
fi
for rank in 0 1; do
  verdict=$(cat "$folder/rank$rank" 2>/dev/null || echo "no verdict")
  echo "rank $rank: $verdict"
  [[ $verdict == ok ]] || status=1
done
exit $status
