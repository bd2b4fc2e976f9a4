#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: two_hosts.sh MPIEXEC PROGRAM CASE
# Runs CASE on two ranks in two network namespaces joined by a veth pair: two hosts, as far as the
# network is concerned.
set -u
mpiexec=$(command -v "$1") program=$(realpath "$2") case=$3
source "$(dirname "$0")/../../support/processes/two_namespaces.sh"

"$mpiexec" -help 2>&1 | grep -q launcher-exec || { echo "skipped: $mpiexec is not Hydra"; exit 77; }
two_namespaces_make || exit
two_namespaces_run timeout 150 "$mpiexec" "${hosts[@]}" -n 2 "$program" "$case"
