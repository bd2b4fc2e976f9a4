#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# On a machine with a GPU: builds what needs one, runs its tests, also on several ranks that share it and
# under compute-sanitizer where there is one, then the measurements, and writes all that into a report.
# Goes on with what can run, and says what was left out and why. Fails if a test failed.
#
#   scripts/gpu_check.sh [FOLDER]      FOLDER: what scripts/gpu_deps.sh made, if packages are missing here
#
# LibTorch is that of the Python on PATH, if it has one: without it, tensors and training are left out.
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

if [[ -n $deps ]]; then
  export PATH="$deps/mpich/bin:$PATH"
  export LD_LIBRARY_PATH="$deps/usr/lib/x86_64-linux-gnu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
fi
has_mpi() { command -v mpiexec >/dev/null && command -v mpicc >/dev/null; }
has_torch() { python3 -c 'import torch' 2>/dev/null; }
on_off() { if "$@"; then echo ON; else echo OFF; fi; }

build() {
  local options=("-DRONDE_WITH_MPI=$(on_off has_mpi)" "-DRONDE_WITH_TORCH=$(on_off has_torch)")
  local targets=(gpu_tests gpu_pack cuda_tests ronde_tool)
  if has_mpi; then targets+=(gpu_mp_tests); fi
  if has_torch; then
    options+=("-DPython3_EXECUTABLE=$(command -v python3)" -DRONDE_UNITY=ON)
    if has_mpi; then targets+=(gpu_torch_tests edsr resnet_synthetic); fi
  fi
  if [[ -n $deps ]]; then
    options+=("-DCMAKE_PREFIX_PATH=$deps/usr;$deps/usr/lib/x86_64-linux-gnu/cmake")
    # The library says itself where its own are; an installed MPI must not be mixed in.
    options+=("-DMPI_HOME=$deps/mpich" "-DMPIEXEC_EXECUTABLE=$deps/mpich/bin/mpiexec")
  fi
  cmake --preset release -B "$kBuild" "${options[@]}" &&
    cmake --build "$kBuild" --parallel "$kJobs" --target "${targets[@]}"
}

ranks() { mpiexec -n "$@"; }

# Steps a second of EDSR: two ranks that share the GPU, and two processes that know nothing of each other.
training() {
  local steps=(--device cuda --synthetic --steps 60)
  echo "-- two ranks"
  ranks 2 "$kBuild/bin/edsr" "${steps[@]}" || return
  echo "-- two processes, unconnected"
  "$kBuild/bin/edsr" "${steps[@]}" >"$kBuild/alone.log" 2>&1 &
  local other=$! status=0
  "$kBuild/bin/edsr" "${steps[@]}" || status=$?
  wait "$other" || status=$?
  tail -3 "$kBuild/alone.log"
  return "$status"
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
part "ronde info" "$kBuild/bin/ronde" info
part "tests without a GPU" ctest --test-dir "$kBuild" -R '^cuda\.' --output-on-failure --no-tests=error
part "tests on the GPU, also whether memory opens in another process, and of ranks that share it" \
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
  if has_mpi; then
    for number in 2 4; do
      part "set-ups, $number ranks on one GPU" ranks "$number" "$kBuild/bin/ronde" bench setups \
        --min 32KiB --max 64MiB --model edsr-full
      part "allreduce through the engine, $number ranks on one GPU" ranks "$number" "$kBuild/bin/ronde" \
        bench allreduce --device cuda --backend mpi --min 32KiB --max 64MiB
    done
  else
    say "left out: several ranks, as there is no MPI (scripts/gpu_deps.sh brings one)"
  fi
  if has_mpi && has_torch; then
    part "training" training
  else
    say "left out: training, which needs MPI and LibTorch"
  fi
fi
if ((failures > 0)); then
  say "$failures parts failed; the report is $kReport"
  exit 1
fi
say "nothing failed; the report is $kReport"
