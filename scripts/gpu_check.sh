#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# On a machine with a GPU: runs what scripts/gpu_kit.sh has packed, in commands of minutes. Nothing is compiled
# there. Each part ends in time, and the report has its output once it has ended, with the backtraces of a test
# that hung; the rest goes on. Fails if a part failed.
#
#   scripts/gpu_check.sh first|second|nccl [KIT]
#
# first    6.5 minutes: whether the machine works, correctness in four lanes, then measurements alone
# second   3.5 minutes: what failed in `first` again, alone and with logs for debugging, then all else
# nccl     3.5 minutes: NCCL between ranks that share the GPU, with which `second` ends
# KIT      the kit (default: .cache/gpu_kit.tar.gz); LibTorch is that of the python3 on PATH
#
# GPU_CHECK_REPORT   the report (default: build-gpu/gpu_report.STAGE.txt); beside it, with .jsonl for .txt, a
#                    line of JSON for each measurement
# GPU_CHECK_FAKES    to try all this without a GPU: a folder of fakes of the driver and of NCCL, which all
#                    programs but LibTorch's load; sizes are small then
set -euo pipefail

# It runs itself for each part, so that `timeout` can end it.
self=$(realpath "${BASH_SOURCE[0]}")
readonly self
if [[ ${1:-} != --part ]]; then
  case ${1:-} in
    first) ends=390 ;;
    second | nccl) ends=210 ;;
    *) ends= ;;
  esac
  if [[ -z $ends ]] || (($# > 2)); then
    sed -n '3,19s/^# \{0,1\}//p' "$self" >&2
    exit 2
  fi
  kit=$(realpath -m "${2:-$(dirname "$self")/../.cache/gpu_kit.tar.gz}")
  if [[ ! -f $kit ]]; then
    printf 'gpu_check: error: there is no %s, which scripts/gpu_kit.sh makes\n' "$kit" >&2
    exit 2
  fi
  GPU_CHECK_REPORT=$(realpath -m "${GPU_CHECK_REPORT:-$(dirname "$self")/../build-gpu/gpu_report.$1.txt}")
  GPU_CHECK_KIT=$(mktemp -d)
  trap 'rm -rf "$GPU_CHECK_KIT"' EXIT
  tar xzf "$kit" -C "$GPU_CHECK_KIT"
  GPU_CHECK_LIBRARIES="${GPU_CHECK_FAKES:+$GPU_CHECK_FAKES:}$GPU_CHECK_KIT/lib"
  GPU_CHECK_TORCH="$GPU_CHECK_KIT/lib:$(python3 -c '
import glob, importlib.util
torch = importlib.util.find_spec("torch").submodule_search_locations[0]
print(":".join([torch + "/lib", *sorted(glob.glob(torch + "/../nvidia/*/lib"))]))' ||
    true)${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
  PATH="$PATH:/usr/local/cuda/bin"
  export PATH GPU_CHECK_KIT GPU_CHECK_REPORT GPU_CHECK_LIBRARIES GPU_CHECK_TORCH
fi
cd "$(dirname "$self")/.."
readonly kResults="${GPU_CHECK_REPORT%.txt}.jsonl"
readonly kFailed=build-gpu/gpu_check.failed  # what the next command repeats
readonly kMost="${GPU_CHECK_FAKES:+64KiB}" kModel="${GPU_CHECK_FAKES:+edsr}"

say() { printf 'gpu_check: %s\n' "$*" | tee -a "$GPU_CHECK_REPORT"; }

# part SECONDS TITLE COMMAND...: a function below, which `timeout` ends; its tests end themselves before. In
# the background, it is a lane.
part() {
  local wanted=$1 title=$2 begun=$SECONDS status=0 limit log words
  shift 2
  limit=$((ends - SECONDS < wanted ? ends - SECONDS : wanted))
  if ((limit < 5)); then
    echo "left out: $title: the time is over" >>"$GPU_CHECK_KIT/verdicts"
    return
  fi
  log=$(mktemp -p "$GPU_CHECK_KIT")
  RONDE_TEST_ENDS_AT=$(($(date +%s) + limit - (limit > 14 ? 5 : 2))) \
    timeout -k 5 "$limit" "$self" --part "$@" >"$log" 2>&1 </dev/null || status=$?
  # By these words a test that could not be run is known, whatever its status.
  words=$(grep -m1 -oE '^(\[[0-9]+\] )?(skipped: |left out: there is no ).*' "$log" || true)
  if [[ -n $words ]]; then
    words="left out: $title: ${words#*: }"
  elif ((status == 0)); then
    words="passed, $((SECONDS - begun)) s: $title"
  else
    words="failed, $((SECONDS - begun)) s: $title: status $status"
  fi
  # Lanes write one after the other.
  (
    flock 9
    say "== $words"
    cat "$log" >>"$GPU_CHECK_REPORT"
    if [[ $words == failed* ]]; then
      grep -vE '^[[:space:]]*$' "$log" | tail -8 || true  # it may have said nothing
      printf '%q ' part "$wanted" "again: ${title#again: }" "$@" >>"$GPU_CHECK_KIT/failed"
      echo >>"$GPU_CHECK_KIT/failed"
    fi
    echo "$words" >>"$GPU_CHECK_KIT/verdicts"
  ) 9>"$GPU_CHECK_KIT/lock"
}

# program RANKS NAME ARGUMENT...: 0 ranks: without a launcher.
program() {
  local -a launcher=()
  if (($1 > 0)); then launcher=("$GPU_CHECK_KIT/bin/ronde" run -n "$1" --grace 5 --); fi
  RONDE_TEST_RANKS=$(($1 > 1 ? $1 : 1)) with_libraries "$2" "${launcher[@]}" "$GPU_CHECK_KIT/bin/$2" "${@:3}"
}

# with_libraries NAME COMMAND...: those that the program NAME loads.
with_libraries() {
  local libraries="$GPU_CHECK_LIBRARIES:$GPU_CHECK_TORCH"
  if [[ $1 =~ torch|edsr ]]; then libraries=$GPU_CHECK_TORCH; fi
  LD_LIBRARY_PATH="$libraries" "${@:2}"
}

# measure RANKS NAME ARGUMENT...: a program with --json, whose results become one line.
measure() {
  local json status=0
  json=$(mktemp -p "$GPU_CHECK_KIT")
  RONDE_STALL_WARN_S=5 RONDE_STALL_ABORT_S=15 program "$@" --json "$json" || status=$?
  if [[ -s $json ]]; then
    python3 -c '
import json, sys
print(json.dumps({"ranks": int(sys.argv[2]), "command": " ".join(sys.argv[3:]), "results": json.load(open(sys.argv[1]))}))
' "$json" "$@" >>"$kResults"
  fi
  return "$status"
}

# --- the machine

machine() {
  local name missing=
  date -u '+%Y-%m-%d %H:%M UTC'
  uname -srm
  echo "$(nproc) cores, $(df -h --output=avail /dev/shm | tail -1) of /dev/shm"
  nvidia-smi --query-gpu=name,driver_version,memory.total,pci.bus_id,mig.mode.current,compute_mode --format=csv ||
    echo "nvidia-smi: status $?"
  ip link set lo up || true  # ranks meet by it
  for name in "$GPU_CHECK_KIT"/bin/*; do
    with_libraries "${name##*/}" ldd "$name" | grep -E "not found|$GPU_CHECK_KIT" | sort -u || true
    missing+=$(with_libraries "${name##*/}" ldd "$name" 2>&1 | grep -E 'not found|not a dynamic' || true)
  done
  [[ -z $missing ]]
  program 0 ronde info
}

# Says, without Ronde, whether the GPU works at all. Its process reads LibTorch from the disk for those that
# follow and, until this script ends, spares them the start of the GPU.
pytorch() {
  grep -m 1 '1048576.0$' < <(python3 -u -c '
import os, sys, time, torch
total = torch.ones(1 << 20, device="cuda").sum().item()
print(torch.__version__, torch.cuda.get_device_name(), "NCCL", torch.cuda.nccl.version(), "sum", total)
while os.path.exists(sys.argv[1]): time.sleep(1)' "$GPU_CHECK_KIT")
}

# --- what runs under other tools

on_path() {
  if command -v "$1" >/dev/null; then return; fi
  echo "left out: there is no $1"
  return 1
}

memcheck() {
  on_path compute-sanitizer || return 0
  with_libraries gpu_tests compute-sanitizer --tool memcheck --error-exitcode 1 \
    --report-api-errors no --kernel-name regex=ronde_ "$GPU_CHECK_KIT/bin/gpu_tests" "${kKernels[@]}"
}

profile() {
  on_path ncu || return 0
  with_libraries gpu_pack ncu --clock-control none --kernel-name regex:ronde_ \
    --launch-count 20 "$GPU_CHECK_KIT/bin/gpu_pack" "${kModel:-resnet50}"
}

# Processes share the GPU at the same time, and not in turns.
under_mps() {
  on_path nvidia-cuda-mps-control || return 0
  CUDA_MPS_PIPE_DIRECTORY=$(mktemp -d)
  export CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY="$CUDA_MPS_PIPE_DIRECTORY"
  nvidia-cuda-mps-control -d
  trap 'echo quit | nvidia-cuda-mps-control' EXIT
  measure "$@"
}

# --- the stages

readonly kKernels=('cuda *,blocks of*')
readonly kSetups=(ronde bench setups --min 32KiB --max "${kMost:-64MiB}" --model "${kModel:-edsr-full}")
readonly kEdsr=(edsr --device cuda --efficiency --num-warmup-batches 3 --num-batches-per-iter 5 --num-iters 4
  --preset full --batch-size 8)

# ranks SECONDS NUMBER TITLE CASE: a case of ranks that share the GPU.
ranks() { part "$1" "$2 ranks: $3" program "$2" gpu_mp_tests -d yes "$4"; }

first() {
  part 30 "the machine" machine
  if grep -q ^failed "$GPU_CHECK_KIT/verdicts"; then return; fi
  part 60 "PyTorch" pytorch &
  part 45 "kernels" program 0 gpu_tests -d yes "${kKernels[@]}" &
  part 45 "the driver, and CUDA IPC between processes" program 0 gpu_tests -d yes 'gpu: a w*,gpu: ipc*' &
  part 60 "NCCL of one rank" program 0 gpu_mp_tests -d yes '*by nccl*' &
  ranks 60 2 'by CUDA IPC' '*\, by ipc' &
  wait
  ranks 45 2 'by CUDA IPC, tensors mapped' '*mapped directly' &
  ranks 45 2 'tensors that come and go' 'gpu: allocations that come and go*' &
  ranks 60 4 'by CUDA IPC' '*\, by ipc' &
  part 45 "a rank dies" program 0 gpu_death_tests -d yes 'gpu: a rank is killed within an ipc*' &
  wait
  part 75 "2 ranks: tensors of LibTorch" program 2 gpu_torch_tests -d yes '~[own]' &
  part 75 "2 ranks: the allocator of LibTorch" program 2 gpu_torch_tests -d yes 'device: what emptyCache*' &
  wait
  part 30 "packing and sums" program 0 gpu_pack "${kModel:-resnet50}"
  part 60 "2 ranks: EDSR" measure 2 "${kEdsr[@]}"
  part 60 "2 ranks: set-ups" measure 2 "${kSetups[@]}"
  part 40 "memcheck" memcheck
}

second() {
  local again
  export RONDE_LOG_LEVEL=debug NCCL_DEBUG=INFO
  if [[ -f $kFailed ]]; then
    while read -r again; do eval "$again"; done <"$kFailed"
  fi
  unset RONDE_LOG_LEVEL NCCL_DEBUG
  ranks 45 2 'staged' '*\, staged' &
  ranks 45 2 'staged, nothing registered' '*nothing registered' &
  ranks 45 2 'by CUDA IPC, no registration cache' '*without registration cache' &
  wait
  part 40 "2 ranks: EDSR in bf16" measure 2 "${kEdsr[@]}" --amp
  part 30 "a profile of the kernels" profile
  part 30 "2 ranks: set-ups by MPS" under_mps 2 "${kSetups[@]}"
  nccl
}

# NCCL's manual: each rank needs multiprocessors of its own, or NCCL hangs.
nccl() {
  export NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_MAX_CTAS=4 GPU_CHECK_LIBRARIES
  GPU_CHECK_LIBRARIES="${GPU_CHECK_FAKES:-$GPU_CHECK_KIT/nccl}:$GPU_CHECK_KIT/lib"
  ranks 60 2 'by NCCL' '*by nccl*'
  part 45 "a rank of NCCL dies" program 0 gpu_death_tests -d yes 'gpu: a rank is killed within an nccl*'
  part 45 "2 ranks: set-ups, with NCCL" measure 2 "${kSetups[@]}" --setup mpi-opt --setup nccl
  # Four processes take turns on the GPU, and each step of a ring waits for another's turn.
  ranks 60 4 'by NCCL' '*\, by nccl'
}

if [[ $1 == --part ]]; then
  "${@:2}"
  exit
fi
mkdir -p "${GPU_CHECK_REPORT%/*}" "${kFailed%/*}"
: >"$GPU_CHECK_REPORT"
: >"$GPU_CHECK_KIT/verdicts"
: >"$GPU_CHECK_KIT/failed"
rm -f "$kResults"
"$1"
say "== summary, after $SECONDS s"
while read -r line; do say "$line"; done <"$GPU_CHECK_KIT/verdicts"
say "$(grep -c . "$GPU_CHECK_KIT/failed" || true) parts failed; the report is $GPU_CHECK_REPORT, the results are in $kResults"
if [[ $1 != nccl ]]; then cp "$GPU_CHECK_KIT/failed" "$kFailed"; fi
[[ ! -s $GPU_CHECK_KIT/failed ]]
