#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# How many lines of torch_ext its tests reach: builds it with counters in a folder of its own, runs the
# tests of LibTorch on 1 to 4 ranks, and prints a table by file with the lines that no test has reached.
#
#   scripts/coverage.sh [further options of gcovr]     for example: --html-details build-coverage/lines.html
#
# RONDE_JOBS      how many to compile and to test at once (default: the number of cores)
set -euo pipefail
cd "$(dirname "$0")/.."

readonly kBuild=build-coverage
readonly kJobs="${RONDE_JOBS:-$(nproc)}"

say() { printf 'coverage: %s\n' "$*"; }
fail() { printf 'coverage: error: %s\n' "$*" >&2; exit 1; }

scripts/deps.sh
if ! command -v gcovr >/dev/null; then
  [[ $(id -u) == 0 ]] || fail "gcovr is missing. Install it: apt-get install gcovr"
  apt-get install -y --no-install-recommends gcovr
fi

say "building in $kBuild"
# Without optimisation: a line is a line.
cmake --preset release -B "$kBuild" -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS=--coverage \
  -DRONDE_WITH_TORCH=ON -DRONDE_WITH_MPI=ON -DRONDE_UNITY=OFF -DRONDE_WERROR=OFF >/dev/null
cmake --build "$kBuild" --parallel "$kJobs" --target tests/torch/all

say "running the tests"
find "$kBuild" -name '*.gcda' -delete
ctest --test-dir "$kBuild/tests/torch" --parallel "$((kJobs < 2 ? kJobs : 2))" --output-on-failure \
  --no-tests=error

gcovr --root . --object-directory "$kBuild" --exclude-directories '.*CompilerId.*' \
  --filter torch_ext/ --fail-under-line 90 --print-summary "$@"
