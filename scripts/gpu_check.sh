#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# On a machine with a GPU: builds what needs one, runs its tests, also on several ranks that share it, then
# the measurements, then tests under compute-sanitizer, and writes all that into a report.
# Goes on with what can run, and says what was left out and why. Fails if a part failed.
#
#   scripts/gpu_check.sh [FOLDER] [STAGE...]
#
# FOLDER   what scripts/gpu_deps.sh made, if packages are missing here
# STAGE    machine, build, ipc (whether memory opens in another process), tests, bench, train, sanitize;
#          all of them by default, always in this order. Without `build`, what was built before is used.
# --commands   prints the command lines of the measurements instead
#
# LibTorch is that of the Python on PATH, if it has one: without it, tensors and training are left out.
#
# RONDE_BUILD       the build folder (default: build-gpu)
# RONDE_JOBS        how many to compile at once (default: the number of cores)
# RONDE_MINUTES     ends the parts in time for all to be over by then (default: no bound but those of
#                   the parts)
# GPU_CHECK_REPORT  the report (default: gpu_report.txt in the build folder); beside it go the logs of
#                   the build and the measurements as JSON. Where only a folder $OUT comes back:
#                   $OUT/gpu_report.txt
set -euo pipefail

readonly kStages=(machine build ipc tests bench train sanitize)
is_stage() { [[ " ${kStages[*]} " == *" $1 "* ]]; }

# It runs itself for each part, so that `timeout` can end it.
self=$(realpath "${BASH_SOURCE[0]}")
readonly self

if [[ ${1:-} == --part ]]; then
  # The report, the paths and the PATH are those of the caller.
  shift
  part_of_it=yes
else
  deps=
  if (($# > 0)) && [[ $1 != --commands ]] && ! is_stage "$1"; then
    if [[ ! -d $1 ]]; then
      printf 'gpu_check: error: "%s" is neither a folder nor a stage (%s)\n' "$1" "${kStages[*]}" >&2
      exit 2
    fi
    deps=$(realpath "$1")
    shift
  fi
  build=${RONDE_BUILD:-$(dirname "$self")/../build-gpu}
  GPU_CHECK_BUILD=$(realpath -m "$build")
  GPU_CHECK_REPORT=$(realpath -m "${GPU_CHECK_REPORT:-$GPU_CHECK_BUILD/gpu_report.txt}")
  GPU_CHECK_JOBS=${RONDE_JOBS:-$(nproc)}
  GPU_CHECK_DEPS=$deps
  seconds=${RONDE_MINUTES:+$((RONDE_MINUTES * 60))}
  export GPU_CHECK_BUILD GPU_CHECK_REPORT GPU_CHECK_JOBS GPU_CHECK_DEPS
  for folder in /usr/local/cuda/bin ${deps:+"$deps/mpich/bin"}; do
    if [[ -d $folder ]]; then PATH="$folder:$PATH"; fi
  done
  # In a container all is root's, and ranks may outnumber cores: Open MPI wants to be told.
  export PATH OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  export OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
fi
cd "$(dirname "$self")/.."

readonly kBin="$GPU_CHECK_BUILD/bin"
readonly kResults="${GPU_CHECK_REPORT%/*}"
readonly kJobs="$GPU_CHECK_JOBS"
failures=0

say() { printf 'gpu_check: %s\n' "$*" | tee -a "$GPU_CHECK_REPORT"; }

# part LIMIT TITLE FUNCTION [ARGUMENT...]: what it prints goes into the report; a failure, or more than
# LIMIT seconds, is noted, and the rest goes on.
part() {
  local limit=$1 title=$2 status=0
  shift 2
  if [[ -n $seconds ]]; then
    local left=$((seconds - SECONDS - 15))
    if ((left <= 0)); then
      say "left out: $title, as RONDE_MINUTES=$RONDE_MINUTES are over"
      return
    fi
    limit=$((left < limit ? left : limit))
  fi
  say "== $title"
  # Not through a pipe, which a process that is left over would keep open.
  local begin
  begin=$(stat -c %s "$GPU_CHECK_REPORT")
  timeout -k 10 "$limit" "$self" --part "$@" >>"$GPU_CHECK_REPORT" 2>&1 </dev/null || status=$?
  tail -c "+$((begin + 1))" "$GPU_CHECK_REPORT"
  if ((status == 0)); then return; fi
  failures=$((failures + 1))
  case $status in
    124 | 137) say "failed: $title: ended after $limit seconds" ;;
    *) say "failed: $title (status $status)" ;;
  esac
}

has_mpi() { command -v mpiexec >/dev/null && command -v mpicc >/dev/null; }
has_torch() {
  python3 -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)' 2>/dev/null
}
is_built() { [[ -x $kBin/$1 ]]; }
on_off() { if "$@"; then echo ON; else echo OFF; fi; }

# --- machine

machine() {
  date -u '+%Y-%m-%d %H:%M UTC'
  uname -srm
  echo "$(nproc) cores"
  if command -v nvidia-smi >/dev/null; then
    nvidia-smi --query-gpu=name,driver_version,memory.total,pci.bus_id,mig.mode.current,compute_mode \
      --format=csv || echo "nvidia-smi failed"
  else
    echo "there is no nvidia-smi"
  fi
  if command -v nvcc >/dev/null; then nvcc --version | tail -2; else echo "there is no nvcc"; fi
  if has_mpi; then mpiexec --version 2>&1 | head -3; else echo "there is no MPI"; fi
  if has_torch; then
    # In some containers it takes long to import.
    timeout 120 python3 -c 'import torch; print("LibTorch", torch.__version__, "CUDA", torch.version.cuda)' ||
      echo "Python finds torch, but cannot import it"
  else
    echo "the Python on PATH has no torch"
  fi
}

# --- build

# The libraries of FOLDER, and NCCL of the Python that has LibTorch, for Ronde's own programs alone: in
# LD_LIBRARY_PATH they would come before those of cmake, ctest and python as well.
library_folders() {
  local -a folders=()
  if [[ -n $GPU_CHECK_DEPS ]]; then
    folders+=("$GPU_CHECK_DEPS/usr/lib/x86_64-linux-gnu" "$GPU_CHECK_DEPS/mpich/lib")
  fi
  local nccl
  nccl=$(python3 -c '
import importlib.util
spec = importlib.util.find_spec("nvidia.nccl")
print(list(spec.submodule_search_locations)[0] if spec else "")' 2>/dev/null || true)
  if [[ -n $nccl && -d $nccl/lib ]]; then folders+=("$nccl/lib"); fi
  (IFS=';' && echo "${folders[*]}")
}

# configure MPI TORCH: each ON or OFF.
configure() {
  local -a options=("-DRONDE_WITH_MPI=$1" "-DRONDE_WITH_TORCH=$2" -DRONDE_WERROR=OFF)
  if [[ $2 == ON ]]; then
    options+=("-DPython3_EXECUTABLE=$(command -v python3)" -DRONDE_UNITY=ON)
  fi
  if [[ -n $GPU_CHECK_DEPS ]]; then
    options+=("-DCMAKE_PREFIX_PATH=$GPU_CHECK_DEPS/usr;$GPU_CHECK_DEPS/usr/lib/x86_64-linux-gnu/cmake")
  fi
  if [[ -n $GPU_CHECK_DEPS && $1 == ON ]]; then
    # The library says itself where its own are; an installed MPI must not be mixed in.
    options+=("-DMPI_HOME=$GPU_CHECK_DEPS/mpich" "-DMPIEXEC_EXECUTABLE=$GPU_CHECK_DEPS/mpich/bin/mpiexec")
  fi
  local folders
  folders=$(library_folders)
  if [[ -n $folders ]]; then
    # DT_RPATH, which also counts for what libraries need and for what is opened at run time.
    local flags=-Wl,--disable-new-dtags
    options+=("-DCMAKE_BUILD_RPATH=$folders" "-DCMAKE_EXE_LINKER_FLAGS=$flags"
      "-DCMAKE_SHARED_LINKER_FLAGS=$flags" "-DCMAKE_MODULE_LINKER_FLAGS=$flags")
  fi
  cmake --preset release -B "$GPU_CHECK_BUILD" "${options[@]}"
}

# With less if it cannot be with all.
configure_what_can_be() {
  local mpi torch
  mpi=$(on_off has_mpi)
  torch=$(on_off has_torch)
  if configure "$mpi" "$torch" >"$kResults/configure.log" 2>&1; then return; fi
  tail -20 "$kResults/configure.log"
  if [[ $torch == ON ]]; then
    echo "left out: tensors and training, as Ronde could not be configured with LibTorch"
    if configure "$mpi" OFF >"$kResults/configure.log" 2>&1; then return; fi
    tail -20 "$kResults/configure.log"
  fi
  if [[ $mpi == ON ]]; then
    echo "left out: several ranks, as Ronde could not be configured with MPI"
    if configure OFF OFF >"$kResults/configure.log" 2>&1; then return; fi
    tail -20 "$kResults/configure.log"
  fi
  return 1
}

# build_targets TARGET...: those of them that there are.
build_targets() {
  local log="$kResults/build.$1.log" known target
  local -a targets=()
  known=$(cmake --build "$GPU_CHECK_BUILD" --target help)
  for target; do
    if grep -q "^$target: phony" <<<"$known"; then
      targets+=("$target")
    else
      echo "left out: $target, which this configuration does not have"
    fi
  done
  if ((${#targets[@]} == 0)); then return; fi
  if ! cmake --build "$GPU_CHECK_BUILD" --parallel "$kJobs" --target "${targets[@]}" >"$log" 2>&1; then
    grep -m 5 -A 10 -E 'error:|FAILED|undefined reference' "$log" || tail -30 "$log"
    echo "the whole log: $log"
    return 1
  fi
}

# --- ipc

# Where a test could not be run; a launcher's variables change its exit status.
readonly kSkipped='skipped: no GPU'

# The verdict on which all else about ranks that share a GPU hangs. A "no" is no failure of this part.
ipc() {
  local output status=0
  output=$("$kBin/gpu_tests" "gpu: ipc shows memory to another process*" 2>&1) || status=$?
  if [[ $output == *"$kSkipped"* ]]; then
    echo "left out: CUDA IPC between two processes: no GPU${output#*"$kSkipped"}"
  elif ((status == 0)); then
    echo "CUDA IPC between two processes: yes"
  else
    echo "$output"
    echo "CUDA IPC between two processes: no (status $status)"
  fi
}

# --- tests

tests() { ctest --test-dir "$GPU_CHECK_BUILD" --output-on-failure --no-tests=error "$@"; }
tests_without_gpu() { tests -R '^cuda\.' -E '_is_not_built$' -j "$kJobs"; }
# Each has a limit of its own; that of ctest is for those that have none.
tests_on_gpu() { tests -L gpu --timeout 120 "$@"; }
tests_alone() { tests_on_gpu -E '@n|^gpu\.torch'; }
tests_of_ranks() { tests_on_gpu -R '@n' -E '^gpu\.torch'; }
tests_of_tensors() { tests_on_gpu -R '^gpu\.torch'; }

runs_on_gpu() {
  local output
  output=$("$kBin/gpu_tests" "a cuda move that follows*" 2>&1) && [[ $output != *"$kSkipped"* ]]
}

# --- measurements

# What is measured, a line each: TITLE, RANKS (0: without a launcher), PROGRAM, ARGUMENTS; separated by |.
# tests/tools, tests/edsr and tests/resnet try these lines without a GPU.
measurements_bench() {
  local ranks host
  for ranks in 2 4; do
    for host in mpi shm; do
      echo "set-ups, staged for $host|$ranks|ronde|bench setups --backend $host --min 32KiB --max 64MiB" \
        "--model edsr-full --json $kResults/setups.$host.$ranks.json"
    done
  done
  for ranks in 2 4; do
    echo "ways to hand over|$ranks|ronde|bench setups --setup mpi-opt-flags,mpi-opt-kernels" \
      "--min 32KiB --max 64MiB --model edsr --json $kResults/hand_overs.$ranks.json"
  done
  echo "packing|0|gpu_pack|resnet50"
  echo "packing|0|gpu_pack|edsr-full"
  for ranks in 2 4; do
    echo "allreduce through the engine|$ranks|ronde|bench allreduce --device cuda --backend mpi" \
      "--min 32KiB --max 64MiB --json $kResults/allreduce.$ranks.json"
  done
}
# Connected and unconnected ranks take turns on the GPU that they share.
measurements_train() {
  local steps="--num-warmup-batches 3 --num-batches-per-iter 10 --num-iters 6"
  local full="--device cuda --efficiency --preset full --batch-size 8 $steps"
  echo "training EDSR, connected over unconnected ranks|2|edsr|$full --json $kResults/edsr.json"
  echo "training EDSR in bf16, connected over unconnected ranks|2|edsr|$full --amp" \
    "--json $kResults/edsr.amp.json"
  echo "training EDSR, steps as CUDA graphs|2|edsr|$full --cuda-graph --json $kResults/edsr.graph.json"
  echo "training ResNet-50, connected over unconnected ranks|2|resnet_synthetic|--device cuda --efficiency" \
    "--model resnet50 --batch-size 16 $steps --json $kResults/resnet50.json"
}

# program RANKS PROGRAM ARGUMENT...
program() {
  local ranks=$1 name=$2
  shift 2
  if ((ranks == 0)); then
    "$kBin/$name" "$@"
  else
    mpiexec -n "$ranks" "$kBin/$name" "$@"
  fi
}

# run_measurements LIMIT, each, of the lines on standard input.
run_measurements() {
  local limit=$1 line title ranks name arguments
  local -a lines words
  mapfile -t lines
  for line in "${lines[@]}"; do
    IFS='|' read -r title ranks name arguments <<<"$line"
    if ((ranks > 0)); then title+=", $ranks ranks on one GPU"; else title+=": $arguments"; fi
    if ! is_built "$name"; then
      say "left out: $title, as $name is not built"
    elif ((ranks > 0)) && ! has_mpi; then
      say "left out: $title, as there is no MPI (scripts/gpu_deps.sh brings one)"
    elif [[ $arguments == *--cuda-graph* ]] && ! is_built example_cuda_graph.so; then
      say "left out: $title, as example_cuda_graph.so is not built"
    else
      read -ra words <<<"$arguments"
      part "$limit" "$title" program "$ranks" "$name" "${words[@]}"
    fi
  done
}

# --- sanitize

# Not the case that registers memory twice on purpose, nor those of several processes and of NCCL.
sanitized() {
  compute-sanitizer --tool "$1" --error-exitcode 1 --report-api-errors no \
    --kernel-name regex=ronde_ "$kBin/gpu_tests" "${@:2}"
}
readonly kNotSanitized=('~[.]' '~gpu: ipc*' '~gpu: nccl*' '~gpu: host memory of the program*')

probe_sanitizer() { sanitized memcheck "a cuda move that follows*"; }

sanitize() {
  local output tool
  if ! command -v compute-sanitizer >/dev/null; then
    say "left out: compute-sanitizer, which is not on the PATH"
    return
  fi
  # Where calls of the driver go through a sandbox it finds no device.
  if ! output=$(timeout -k 10 120 "$self" --part probe_sanitizer 2>&1); then
    tail -15 <<<"$output" | tee -a "$GPU_CHECK_REPORT"
    say "left out: compute-sanitizer, which does not work here, not even for one case"
    return
  fi
  for tool in memcheck racecheck synccheck; do
    part 150 "tests under compute-sanitizer --tool $tool" sanitized "$tool" "${kNotSanitized[@]}"
  done
}

# --- the stages

wants() { [[ " ${stages[*]} " == *" $1 "* ]]; }

build_all() {
  part 120 "configuring" configure_what_can_be
  # The most important first: each may fail without the others.
  part 420 "building the core and its tests on GPUs" build_targets gpu_tests gpu_pack ronde_tool
  part 300 "building the tests of several ranks" build_targets gpu_mp_tests gpu_death_tests
  part 300 "building the tests without a GPU" build_targets cuda_tests
  part 500 "building the tests of tensors" build_targets gpu_torch_tests
  part 500 "building the examples" build_targets edsr resnet_synthetic
}

test_all() {
  part 240 "tests on the GPU" tests_alone
  if is_built gpu_mp_tests; then
    part 500 "tests of ranks that share the GPU" tests_of_ranks
  else
    say "left out: tests of ranks that share the GPU, as gpu_mp_tests is not built"
  fi
  if is_built gpu_torch_tests; then
    part 300 "tests of tensors on the GPU" tests_of_tensors
  else
    say "left out: tests of tensors on the GPU, as gpu_torch_tests is not built"
  fi
  if is_built cuda_tests; then
    part 300 "tests without a GPU" tests_without_gpu
  else
    say "left out: tests without a GPU, as cuda_tests is not built"
  fi
}

check() {
  local stage
  if wants machine; then part 150 "the machine" machine; fi
  if wants build; then build_all; fi
  if ! is_built gpu_tests; then
    say "left out: all that runs, as there is no $kBin/gpu_tests (the stage \"build\" makes it)"
    return
  fi
  if is_built ronde && wants machine; then part 60 "ronde info" program 0 ronde info; fi
  if wants ipc; then part 90 "whether memory opens in another process" ipc; fi
  if wants tests; then test_all; fi
  if ! wants bench && ! wants train && ! wants sanitize; then return; fi
  if ! timeout -k 10 60 "$self" --part runs_on_gpu; then
    for stage in bench train sanitize; do
      if wants "$stage"; then say "left out: $stage, as no test runs on a GPU here"; fi
    done
    return
  fi
  if wants bench; then run_measurements 240 < <(measurements_bench); fi
  if wants train; then run_measurements 300 < <(measurements_train); fi
  if wants sanitize; then sanitize; fi
}

if [[ ${part_of_it:-} == yes ]]; then
  "$@"
  exit
fi
if [[ ${1:-} == --commands ]]; then
  measurements_bench
  measurements_train
  exit
fi
stages=("$@")
for stage in "${stages[@]}"; do
  is_stage "$stage" && continue
  printf 'gpu_check: error: there is no stage "%s"; there are: %s\n' "$stage" "${kStages[*]}" >&2
  exit 2
done
if ((${#stages[@]} == 0)); then stages=("${kStages[@]}"); fi
mkdir -p "$GPU_CHECK_BUILD" "$kResults"
# What another call has begun is added to.
if wants machine; then : >"$GPU_CHECK_REPORT"; fi
touch "$GPU_CHECK_REPORT"
say "stages: ${stages[*]}"
check
if ((failures > 0)); then
  say "$failures parts failed; the report is $GPU_CHECK_REPORT"
  exit 1
fi
say "nothing failed; the report is $GPU_CHECK_REPORT"
