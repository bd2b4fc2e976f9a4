#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Sets up, builds everything with warnings as errors, and runs every test: unit (also under TSan and
# ASan+UBSan), mp under mpiexec, LibTorch, the examples, packaging and style. Ends with ctest's summary.
#
#   scripts/test.sh [ctest arguments]        for example: scripts/test.sh -R '^unit\.'
#
# RONDE_BUILD   the build folder (default: build)
# RONDE_JOBS    how many to compile and to test at once (default: the number of cores)
set -euo pipefail
cd "$(dirname "$0")/.."

readonly kBuild="${RONDE_BUILD:-build}"
readonly kJobs="${RONDE_JOBS:-$(nproc)}"

scripts/deps.sh
cmake --preset release -B "$kBuild" -DRONDE_WERROR=ON -DRONDE_SANITIZED_TESTS=ON \
  -DRONDE_WITH_TORCH=ON -DRONDE_WITH_MPI=ON
cmake --build "$kBuild" --parallel "$kJobs"
# The tests time out by themselves: two at once also on a large machine, since ranks need cores.
ctest --test-dir "$kBuild" --parallel "$((kJobs < 2 ? kJobs : 2))" --output-on-failure \
  --no-tests=error "$@"
