#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# From a fresh clone to a trained network: installs what is missing, builds, and trains EDSR "tiny" on
# two ranks with photographs from Debian packages, until it beats bicubic upscaling by 0.3 dB on
# photographs that it has not seen. Cheap to run again: only the training is repeated.
#
#   scripts/quickstart.sh [further options of build/bin/edsr]
#
# RONDE_MINUTES   minutes of training at most (default: 8)
# RONDE_RANKS     ranks (default: 2)
# RONDE_JOBS      how many to compile at once (default: the number of cores)
set -euo pipefail
cd "$(dirname "$0")/.."

readonly kMinutes="${RONDE_MINUTES:-8}"
readonly kRanks="${RONDE_RANKS:-2}"
readonly kJobs="${RONDE_JOBS:-$(nproc)}"
readonly kGain=0.3  # dB
readonly kTable=build/quickstart.json
readonly kOutput=build/quickstart
readonly kLog=build/quickstart.log

# The photographs among the pictures of mate-backgrounds and plasma-workspace-wallpapers; the other
# wallpapers there are drawn or rendered.
readonly kPhotographs=(
  /usr/share/backgrounds/mate/nature
  /usr/share/wallpapers/{BytheWater,ColdRipple,ColorfulCups,DarkestHour,EveningGlow,FallenLeaf}
  /usr/share/wallpapers/{Grey,Kite,OneStandsOut,Path,summer_1am}
)
# Another release of those packages may lack some of them; with few the gain is no longer certain.
readonly kFewestFolders=8

say() { printf 'quickstart: %s\n' "$*"; }
fail() { printf 'quickstart: error: %s\n' "$*" >&2; exit 1; }

# Writes what is built to the log, and says from time to time how far it is: ninja counts its steps.
log_progress() {
  local line next=20
  while IFS= read -r line; do
    printf '%s\n' "$line" >>"$kLog"
    if [[ $line =~ ^\[([0-9]+)/([0-9]+)\] ]] && ((100 * BASH_REMATCH[1] / BASH_REMATCH[2] >= next)); then
      say "building: step ${BASH_REMATCH[1]} of ${BASH_REMATCH[2]}, $((SECONDS - began)) s"
      next=$((next + 20))
    fi
  done
}

build() {
  local -r began=$SECONDS
  local options=(-DRONDE_WITH_TORCH=ON -DRONDE_WITH_MPI=ON)
  # A folder that scripts/test.sh has used stays as it is.
  [[ -e build/CMakeCache.txt ]] || options+=(-DRONDE_BUILD_GPU=OFF)
  mkdir -p build
  say "building, which takes about five minutes on two cores (log: $kLog)"
  : >"$kLog"
  if ! { cmake --preset release "${options[@]}" &&
    cmake --build build --parallel "$kJobs" --target edsr; } 2>&1 | log_progress; then
    tail -n 40 "$kLog" >&2
    fail "the build failed; the whole log is $kLog"
  fi
}

# The cache knows the mpiexec of the MPI that was linked: another MPI's would start N jobs of one rank.
launcher() {
  sed -n 's/^MPIEXEC_EXECUTABLE:[A-Z]*=//p' build/CMakeCache.txt
}

train() {
  local folder data=() there=0
  for folder in "${kPhotographs[@]}"; do
    if [[ -d $folder ]]; then
      data+=(--data "$folder")
      there=$((there + 1))
    else
      say "$folder is missing: training goes on without it"
    fi
  done
  ((there >= kFewestFolders)) || fail "only $there of ${#kPhotographs[@]} folders of photographs are \
there, at least $kFewestFolders are needed: are mate-backgrounds and plasma-workspace-wallpapers installed?"
  rm -f "$kTable"
  say "training on $kRanks ranks until the network beats bicubic by $kGain dB, $kMinutes minutes at most"
  "$(launcher)" -n "$kRanks" build/bin/edsr --preset tiny --until-gain "$kGain" --minutes "$kMinutes" \
    "${data[@]}" --output "$kOutput" --json "$kTable" "$@"
}

# What the quick start promises: 0.1 dB above bicubic, and the same network on every rank.
check_table() {
  python3 - "$kTable" <<'EOF'
import json, sys
table = json.load(open(sys.argv[1]))
gain = table["psnr_network"] - table["psnr_bicubic"]
if not table["parameters_identical"]:
    sys.exit("the ranks' parameters differ")
if gain < 0.1:
    sys.exit(f"the network is {gain:+.2f} dB against bicubic, less than +0.1 dB: on a slow machine "
             "give it more time, RONDE_MINUTES=16")
print(f"quickstart: {gain:+.2f} dB against bicubic, and {table['ranks']} ranks hold the same network")
EOF
}

next_things() {
  cat <<EOF
quickstart: the table   $PWD/$kTable
quickstart: the picture $PWD/$kOutput/comparison.png
Next:
  RONDE_RANKS=1 scripts/quickstart.sh         the same on one rank
  build/bin/edsr --help                       your own photographs: --data FOLDER
  scripts/test.sh                             the everyday tests
  docs/getting_started.md                     Ronde in your own program
Built by cmake build -DRONDE_BUILD_GPU=ON && cmake --build build --target ronde_tool digits kmeans:
  build/bin/ronde info                        what this build is made of, and every variable's value
  build/bin/digits                            the program of docs/examples/digits.md
  build/bin/kmeans                            handwritten digits in clusters, without LibTorch
EOF
}

scripts/deps.sh quickstart
build
train "$@"
check_table
next_things
