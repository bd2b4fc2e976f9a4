#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# On a machine with a GPU: builds what needs one, runs its tests, also under compute-sanitizer where
# there is one, then the measurements, and writes all that into a report. Goes on with what can run, and
# says what was left out and why. Fails if a test failed.
#
#   scripts/gpu_check.sh [FOLDER]      FOLDER: what scripts/gpu_deps.sh made, if packages are missing here
#
# RONDE_BUILD   the build folder (default: build-gpu); the report is its gpu_report.txt
# RONDE_JOBS    how many to compile at once (default: the number of cores)
set -euo pipefail
deps=
if (($# > 0)); then deps=$(realpath "$1"); fi
cd "$(dirname "$0")/.."

readonly kBuild="${RONDE_BUILD:-build-gpu}"
readonly kReport="$kBuild/gpu_report.txt"
readonly kJobs="${RONDE_JOBS:-$(nproc)}"
mkdir -p "$kBuild"
: >"$kReport"
failures=0

say() { printf 'gpu_check: %s\n' "$*" | tee -a "$kReport"; }

# part TITLE COMMAND...: what it prints goes into the report; a failure is noted, and the rest goes on.
part() {
  local title=$1
  shift
  say "== $title"
  if "$@" 2>&1 | tee -a "$kReport"; then return; fi
  failures=$((failures + 1))
  say "failed: $title"
}

machine() {
  date -u '+%Y-%m-%d %H:%M UTC'
  uname -srm
  if command -v nvidia-smi >/dev/null; then
    nvidia-smi --query-gpu=name,driver_version,memory.total,pci.bus_id,mig.mode.current --format=csv
  else
    echo "there is no nvidia-smi"
  fi
  if command -v nvcc >/dev/null; then nvcc --version | tail -2; else echo "there is no nvcc"; fi
}

build() {
  local options=(-DRONDE_WITH_TORCH=OFF -DRONDE_WITH_MPI=OFF)
  if [[ -n $deps ]]; then
    options+=("-DCMAKE_PREFIX_PATH=$deps/usr;$deps/usr/lib/x86_64-linux-gnu/cmake")
    export LD_LIBRARY_PATH="$deps/usr/lib/x86_64-linux-gnu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
  fi
  cmake --preset release -B "$kBuild" "${options[@]}" &&
    cmake --build "$kBuild" --parallel "$kJobs" --target gpu_tests gpu_pack cuda_tests ronde_tool
}

sanitized() {
  local tool
  for tool in memcheck racecheck synccheck; do
    echo "-- compute-sanitizer --tool $tool"
    compute-sanitizer --tool "$tool" --error-exitcode 1 --kernel-name regex=ronde_ \
      "$kBuild/bin/gpu_tests" '~[.]~gpu: ipc*' || return
  done
}

part "the machine" machine
# Without that there is nothing to run.
say "== the build"
if ! build >"$kBuild/build.log" 2>&1; then
  tail -30 "$kBuild/build.log" | tee -a "$kReport"
  say "the build failed: $kBuild/build.log"
  exit 1
fi
if [[ -n $deps ]]; then
  export LD_LIBRARY_PATH="$deps/usr/lib/x86_64-linux-gnu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
fi
part "ronde info" "$kBuild/bin/ronde" info
part "tests without a GPU" ctest --test-dir "$kBuild" -R '^cuda\.' --output-on-failure --no-tests=error
part "tests on the GPU, also whether memory opens in another process" \
  ctest --test-dir "$kBuild" -L gpu --output-on-failure --no-tests=error
if ! "$kBuild/bin/gpu_tests" "a cuda move that follows*" >/dev/null 2>&1; then
  say "left out: compute-sanitizer and measurements, as no test runs on a GPU here"
else
  if command -v compute-sanitizer >/dev/null; then
    part "tests under compute-sanitizer" sanitized
  else
    say "left out: compute-sanitizer, which is not on the PATH"
  fi
  part "packing" "$kBuild/bin/gpu_pack" resnet50
  part "packing" "$kBuild/bin/gpu_pack" edsr-full
fi
say "left out, as Ronde has no GPU backend yet: collectives, training, benches of device buffers"
if ((failures > 0)); then
  say "$failures parts failed; the report is $kReport"
  exit 1
fi
say "nothing failed; the report is $kReport"
