#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# On a machine with a GPU: runs what scripts/gpu_kit.sh has put together, in two commands of less than
# ten minutes each. The report is written as things happen, so that it holds what was done if the command
# is ended; what fails or is missing leaves the rest alone. Fails if a part failed.
#
#   scripts/gpu_check.sh first|second [KIT]
#
# first    the machine, CUDA IPC, the tests on one GPU that two ranks share, LibTorch, measurements, deaths
# second   four ranks, staging, no registration cache, memcheck, profiles, MPS
# KIT      the folder (default: .cache/gpu_kit). A program of it that does not load is built from the
#          sources, which takes nvcc, cmake and ninja; LibTorch and NCCL are those of the python3 on PATH
#
# RONDE_MINUTES      all is over by then (default: 9)
# RONDE_BUILD        where programs are built if they have to be (default: build-gpu)
# GPU_CHECK_REPORT   the report (default: gpu_report.STAGE.txt in RONDE_BUILD); beside it, with .jsonl for
#                    .txt, a line of JSON for each measurement
# GPU_CHECK_FAKES    to try all this without a GPU: a folder of fakes of the driver and of NCCL, which all
#                    programs but LibTorch's load; sizes are small then
set -euo pipefail

# It runs itself for each part, so that `timeout` can end it.
self=$(realpath "${BASH_SOURCE[0]}")
readonly self
if [[ ${1:-} == --part ]]; then
  # The report, the paths and the PATH are those of the caller.
  shift
  part_of_it=yes
else
  if [[ ${1:-} != first && ${1:-} != second ]] || (($# > 2)); then
    sed -n '3,22s/^# \{0,1\}//p' "$self" >&2
    exit 2
  fi
  GPU_CHECK_KIT=$(realpath -m "${2:-$(dirname "$self")/../.cache/gpu_kit}")
  if [[ ! -d $GPU_CHECK_KIT/mpich ]]; then
    printf 'gpu_check: error: there is no %s, which scripts/gpu_kit.sh makes\n' "$GPU_CHECK_KIT" >&2
    exit 2
  fi
  GPU_CHECK_BUILD=$(realpath -m "${RONDE_BUILD:-$(dirname "$self")/../build-gpu}")
  GPU_CHECK_REPORT=$(realpath -m "${GPU_CHECK_REPORT:-$GPU_CHECK_BUILD/gpu_report.$1.txt}")
  GPU_CHECK_REBUILT=
  PATH="$GPU_CHECK_KIT/mpich/bin:$PATH:/usr/local/cuda/bin"
  # The driver's comes last: its folder may be named in the variable.
  GPU_CHECK_LIBRARIES="$GPU_CHECK_KIT/lib:$GPU_CHECK_KIT/mpich/lib:$(python3 -c '
import glob, importlib.util
torch = importlib.util.find_spec("torch").submodule_search_locations[0]
print(":".join([torch + "/lib", *sorted(glob.glob(torch + "/../nvidia/*/lib"))]))' ||
    true)${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
  export PATH GPU_CHECK_KIT GPU_CHECK_BUILD GPU_CHECK_REPORT GPU_CHECK_REBUILT GPU_CHECK_LIBRARIES
fi
cd "$(dirname "$self")/.."
readonly kResults="${GPU_CHECK_REPORT%.txt}.jsonl"
readonly kMost="${GPU_CHECK_FAKES:+64KiB}" kModel="${GPU_CHECK_FAKES:+edsr}"

say() { printf 'gpu_check: %s\n' "$*" | tee -a "$GPU_CHECK_REPORT"; }

# --- parts

failures=0
planned=0  # seconds that all parts so far may take
verdicts=()

# verdict RESULT TITLE
verdict() {
  verdicts+=("$1: $2")
  say "$1: $2"
}

# part SECONDS TITLE COMMAND...: what it prints goes into the report. It may take twice as long where parts
# before it took less than theirs; then it is ended, and the rest goes on.
part() {
  local limit title=$2 status=0 begin begun words left=$((minutes * 60 - SECONDS - 10))
  planned=$((planned + $1))
  limit=$((planned - SECONDS))
  limit=$((limit < $1 ? $1 : limit > 2 * $1 ? 2 * $1 : limit))
  shift 2
  if ((left <= 0)); then
    verdict "left out" "$title: $minutes minutes are over"
    return
  fi
  limit=$((left < limit ? left : limit))
  say "== $title"
  begun=$SECONDS
  # Not through a pipe, which a process that is left over would keep open.
  begin=$(stat -c %s "$GPU_CHECK_REPORT")
  timeout -k 5 "$limit" "$self" --part "$@" >>"$GPU_CHECK_REPORT" 2>&1 </dev/null || status=$?
  tail -c "+$((begin + 1))" "$GPU_CHECK_REPORT"
  # By these words a test that could not be run is known, whatever its status.
  words=$(tail -c "+$((begin + 1))" "$GPU_CHECK_REPORT" | grep -m1 -E '^(skipped: |left out: there is no )' || true)
  if [[ -n $words ]]; then
    verdict "left out" "$title: ${words#*: }"
  elif ((status == 0)); then
    verdict "passed, $((SECONDS - begun)) s" "$title"
  else
    failures=$((failures + 1))
    case $status in
      124 | 137) verdict "failed, $limit s" "$title: it was ended" ;;
      *) verdict "failed, $((SECONDS - begun)) s" "$title: status $status" ;;
    esac
  fi
}

# The kit's, or that which was built here in its place.
path_of() {
  if [[ " $GPU_CHECK_REBUILT " == *" $1 "* ]]; then echo "$GPU_CHECK_BUILD/bin/$1"; else echo "$GPU_CHECK_KIT/bin/$1"; fi
}

# Where NAME loads from.
libraries_of() {
  local fakes=${GPU_CHECK_FAKES:-}
  if [[ $1 =~ torch|edsr|resnet ]]; then fakes=; fi
  echo "${fakes:+$fakes:}$GPU_CHECK_LIBRARIES"
}

# program RANKS NAME ARGUMENT...: 0 ranks: without a launcher.
program() {
  local ranks=$1 path libraries
  local -a launcher=()
  path=$(path_of "$2")
  libraries=$(libraries_of "$2")
  if ((ranks > 0)); then launcher=(mpiexec -n "$ranks"); fi
  "${launcher[@]}" env LD_LIBRARY_PATH="$libraries" "$path" "${@:3}"
}

# with_libraries NAME COMMAND...: in this process.
with_libraries() {
  LD_LIBRARY_PATH=$(libraries_of "$1")
  export LD_LIBRARY_PATH
  exec "${@:2}"
}

# measure RANKS NAME ARGUMENT...: a program with --json, whose results become one line.
measure() {
  local json status=0
  json=$(mktemp)
  program "$@" --json "$json" || status=$?
  if [[ -s $json ]]; then
    python3 -c '
import json, sys
print(json.dumps({"ranks": int(sys.argv[2]), "command": " ".join(sys.argv[3:]), "results": json.load(open(sys.argv[1]))}))
' "$json" "$@" >>"$kResults"
  fi
  rm "$json"
  return "$status"
}

# --- the machine

# Hydra connects to this machine by its name.
make_reachable() {
  if ! getent hosts "$(hostname)" >/dev/null; then
    echo "$(hostname) does not resolve"
    if ((EUID == 0)); then echo "127.0.0.1 $(hostname)" | tee -a /etc/hosts; fi
  fi
  if (((16#$(sed s/0x// /sys/class/net/lo/flags) & 1) == 0)); then
    echo "lo is down"
    if ((EUID == 0)); then ip link set lo up; fi
  fi
}

machine() {
  date -u '+%Y-%m-%d %H:%M UTC'
  uname -srm
  echo "$(nproc) cores, $(df -h --output=avail /dev/shm | tail -1) of /dev/shm"
  nvidia-smi --query-gpu=name,driver_version,memory.total,pci.bus_id,mig.mode.current,compute_mode --format=csv ||
    echo "nvidia-smi: status $?"
  nvcc --version | tail -2 || true
  make_reachable || echo "this machine may not reach itself"
  mpiexec -n 1 true || echo "mpiexec: status $?"
  (with_libraries edsr ldd "$(path_of edsr)") || true
  program 0 ronde info
}

# load_problem NAME: why it does not load; nothing if it does.
load_problem() {
  (with_libraries "$1" ldd -r "$(path_of "$1")") 2>&1 |
    grep -m1 -E "not found|undefined symbol|not a dynamic|No such file" || true
}

# With the kit's headers and MPI.
build_here() {
  local usr="$GPU_CHECK_KIT/usr" log="${GPU_CHECK_REPORT%.txt}.build.log"
  local -a options=(-DRONDE_WITH_MPI=ON -DRONDE_WITH_TORCH=OFF -DRONDE_WERROR=OFF -DRONDE_INSTALL=OFF
    -DCMAKE_SKIP_RPATH=ON "-DCMAKE_PREFIX_PATH=$usr;$usr/lib/x86_64-linux-gnu/cmake"
    "-DMPI_HOME=$GPU_CHECK_KIT/mpich" "-DMPIEXEC_EXECUTABLE=$GPU_CHECK_KIT/mpich/bin/mpiexec")
  if [[ "$*" =~ torch|edsr|resnet ]]; then
    options+=(-DRONDE_WITH_TORCH=ON "-DPython3_EXECUTABLE=$(command -v python3)" -DRONDE_UNITY=ON)
  fi
  # Tests are asked for their cases once they are linked.
  export LD_LIBRARY_PATH="$GPU_CHECK_BUILD/lib:$GPU_CHECK_LIBRARIES"
  if ! { cmake --preset release -B "$GPU_CHECK_BUILD" "${options[@]}" &&
    cmake --build "$GPU_CHECK_BUILD" --parallel --target "${@/%ronde/ronde_tool}"; } >"$log" 2>&1; then
    grep -m 5 -A 10 -E 'CMake Error|error:|FAILED|undefined reference' "$log" || tail -30 "$log"
    return 1
  fi
}

# loaded NAME...: those that do not load are built.
loaded() {
  local name problem
  local -a broken=()
  for name; do
    problem=$(load_problem "$name")
    if [[ -z $problem ]]; then continue; fi
    say "$name does not load: $problem"
    broken+=("$name")
  done
  if ((${#broken[@]} == 0)); then return; fi
  part 240 "building ${broken[*]}" build_here "${broken[@]}"
  GPU_CHECK_REBUILT+=" ${broken[*]}"
  GPU_CHECK_LIBRARIES="$GPU_CHECK_BUILD/lib:$GPU_CHECK_LIBRARIES"
}

# --- what runs under other tools

on_path() {
  if command -v "$1" >/dev/null; then return; fi
  echo "left out: there is no $1"
  return 1
}

# The cases of one process, without those of NCCL and of memory that is registered twice on purpose.
memcheck() {
  on_path compute-sanitizer || return 0
  with_libraries gpu_tests compute-sanitizer --tool memcheck --error-exitcode 1 \
    --report-api-errors no --kernel-name regex=ronde_ "$(path_of gpu_tests)" \
    '~[.]' '~*: ipc*' '~gpu: nccl*' '~*host memory of the program*'
}

profile() {
  on_path ncu || return 0
  with_libraries gpu_pack ncu --clock-control none --kernel-name regex:ronde_ \
    --launch-count 20 "$(path_of gpu_pack)" "${kModel:-resnet50}"
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

# Spares each process the start of the GPU; ends with this one.
hold_context() {
  RONDE_TEST_DEADLINE_S=900 with_libraries gpu_tests "$(path_of gpu_tests)" \
    "helper: a gpu context is held" >/dev/null 2>&1 </dev/null &
}

readonly kSetups=(ronde bench setups --min 32KiB --max "${kMost:-64MiB}" --model "${kModel:-edsr-full}")
readonly kSteps=(--device cuda --efficiency --num-warmup-batches 3 --num-batches-per-iter 5 --num-iters 4)
readonly kEdsr=(edsr "${kSteps[@]}" --preset full --batch-size 8)

# ranks SECONDS NUMBER TITLE CASE: a case of ranks that share the GPU.
ranks() { part "$1" "$2 ranks: $3" program "$2" gpu_mp_tests -d yes "$4"; }

first() {
  part 30 "the machine" machine
  loaded gpu_tests gpu_mp_tests gpu_death_tests gpu_pack ronde
  hold_context
  part 15 "CUDA IPC between two processes" program 0 gpu_tests -d yes 'gpu: ipc shows memory*'
  part 45 "the tests of one process" program 0 gpu_tests -d yes '~[.]' '~gpu: ipc shows memory*'
  ranks 60 2 'by CUDA IPC' '*\, by ipc'
  ranks 40 2 'by CUDA IPC, tensors mapped' '*mapped directly'
  ranks 30 2 'tensors that come and go' 'gpu: allocations that come and go*'
  loaded gpu_torch_tests edsr
  part 60 "2 ranks: tensors of LibTorch" program 2 gpu_torch_tests -d yes '~[own]'
  part 30 "2 ranks: the allocator of LibTorch" program 2 gpu_torch_tests -d yes '[own]'
  part 60 "2 ranks: set-ups, staged for shm" measure 2 "${kSetups[@]}" --backend shm
  part 40 "2 ranks: EDSR" measure 2 "${kEdsr[@]}"
  part 20 "packing and sums" program 0 gpu_pack "${kModel:-resnet50}"
  part 30 "a rank dies" program 0 gpu_death_tests -d yes 'gpu: a rank is killed*'
}

second() {
  loaded gpu_tests gpu_mp_tests gpu_pack ronde edsr resnet_synthetic
  hold_context
  ranks 60 4 'by CUDA IPC' '*\, by ipc'
  ranks 40 2 'staged' '*\, staged'
  ranks 40 2 'staged, nothing registered' '*nothing registered'
  ranks 40 2 'by CUDA IPC, no registration cache' '*without registration cache'
  part 40 "2 ranks: EDSR in bf16" measure 2 "${kEdsr[@]}" --amp
  part 40 "2 ranks: ResNet-50" measure 2 resnet_synthetic "${kSteps[@]}" --model resnet50 --batch-size 16
  part 40 "4 ranks: set-ups, staged for shm" measure 4 "${kSetups[@]}" --backend shm
  part 40 "2 ranks: set-ups, staged for MPI" measure 2 "${kSetups[@]}" --backend mpi
  part 20 "2 ranks: allreduce through the engine" measure 2 ronde bench allreduce --device cuda \
    --backend mpi --min 32KiB --max "${kMost:-64MiB}"
  part 60 "memcheck" memcheck
  part 40 "a profile of the kernels" profile
  part 40 "2 ranks: set-ups by MPS" under_mps 2 "${kSetups[@]}" --backend shm
}

if [[ ${part_of_it:-} == yes ]]; then
  "$@"
  exit
fi
readonly minutes="${RONDE_MINUTES:-9}"
mkdir -p "${GPU_CHECK_REPORT%/*}"
: >"$GPU_CHECK_REPORT"
rm -f "$kResults"
# Where modes did not travel; and a name that programs know MPICH by, too.
chmod -f +x "$GPU_CHECK_KIT"/bin/* "$GPU_CHECK_KIT"/mpich/bin/* || true
ln -sf libmpi.so.12 "$GPU_CHECK_KIT/mpich/lib/libmpich.so.12"
"$1"
say "== summary, after $SECONDS s"
for line in "${verdicts[@]}"; do say "$line"; done
say "$failures parts failed; the report is $GPU_CHECK_REPORT, the results are in $kResults"
((failures == 0))
