#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Sets up, builds everything with warnings as errors, and runs every test: unit (also under TSan and
# ASan+UBSan), mp under mpiexec, LibTorch, the examples, packaging and style. Ends with ctest's summary
# and the time that each part took.
#
#   scripts/test.sh [ctest arguments]        for example: scripts/test.sh -R '^unit\.'
#
# RONDE_BUILD   the build folder (default: build)
# RONDE_JOBS    how many to compile and to test at once (default: the number of cores)
set -euo pipefail
cd "$(dirname "$0")/.."

readonly kBuild="${RONDE_BUILD:-build}"
readonly kJobs="${RONDE_JOBS:-$(nproc)}"

# The objects that carry debug information, too, are found again by a clone in another folder.
export CCACHE_NOHASHDIR=1

times=
# part NAME COMMAND...: runs a part and notes how long it took, also when it fails.
part() {
  local name=$1 begun=$SECONDS status=0
  shift
  "$@" || status=$?
  times+=" $name $((SECONDS - begun)) s,"
  return "$status"
}
trap 'printf "test.sh:%s all %d s\n" "$times" "$SECONDS"' EXIT

build() {
  cmake --preset release -B "$kBuild" -DRONDE_WERROR=ON -DRONDE_SANITIZED_TESTS=ON \
    -DRONDE_UNITY=ON -DRONDE_WITH_TORCH=ON -DRONDE_WITH_MPI=ON &&
    cmake --build "$kBuild" --parallel "$kJobs"
}

part dependencies scripts/deps.sh
part build build
# The tests time out by themselves: two at once also on a large machine, since ranks need cores.
part tests ctest --test-dir "$kBuild" --parallel "$((kJobs < 2 ? kJobs : 2))" --output-on-failure \
  --no-tests=error "$@"
