#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Packs all that scripts/gpu_check.sh runs on a machine with a GPU where nothing can be installed: Ronde's
# programs without MPI, the libraries that they load, and an NCCL in which ranks may share a GPU. LibTorch is
# that of the Python there.
#
#   scripts/gpu_kit.sh [KIT]
#
# KIT                what to make (default: .cache/gpu_kit.tar.gz, which git ignores)
#
# RONDE_BUILD        the build folder, with LibTorch and CUDA (default: build)
# RONDE_VENV         as in scripts/deps.sh: its pip fetches NCCL from PyPI
# GPU_KIT_MEGABYTES  the most that the kit may have (default: 45)
set -euo pipefail
cd "$(dirname "$0")/.."

if [[ ${1:-} == -* ]] || (($# > 1)); then
  sed -n '3,13s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
kit=$(realpath -m "${1:-.cache/gpu_kit.tar.gz}")
readonly kit
readonly kBuild="${RONDE_BUILD:-build}"
readonly kMegabytes="${GPU_KIT_MEGABYTES:-45}"
readonly kPrograms=(gpu_tests gpu_mp_tests gpu_death_tests gpu_torch_tests gpu_pack edsr)
readonly kCache="${XDG_CACHE_HOME:-$HOME/.cache}/ronde"
readonly kNccl="$kCache/libnccl-2.30.7-sm_90.so.2"

say() { printf 'gpu_kit: %s\n' "$*"; }
fail() { printf 'gpu_kit: error: %s\n' "$*" >&2; exit 1; }

# Of what a program loads, the paths.
loaded_by() { ldd "$1" | sed -nE 's/.* => ([^ ]+) .*/\1/p'; }

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir -p "$(dirname "$kit")" "$folder"/{bin,lib,nccl}

cmake --build "$kBuild" --target "${kPrograms[@]}" ronde_without_mpi ronde_tool_without_mpi >"$folder/log" 2>&1 || {
  tail -20 "$folder/log" >&2
  fail "the programs could not be built in $kBuild (scripts/test.sh makes it; needs LibTorch and CUDA)"
}
rm "$folder/log"

# Not the libraries of the system, which are older here than there, and of LibTorch.
cp "${kPrograms[@]/#/$kBuild/bin/}" "$kBuild/without_mpi/ronde" "$folder/bin"
export LD_LIBRARY_PATH="$PWD/$kBuild/without_mpi"
if [[ $kBuild == /* ]]; then LD_LIBRARY_PATH="$kBuild/without_mpi"; fi
for program in "$folder"/bin/*; do loaded_by "$program"; done | sort -u |
  grep -vE '/site-packages/|/lib(stdc\+\+|gcc_s|c|m|dl|rt|util|pthread)\.so' |
  while read -r library; do cp -L "$library" "$folder/lib"; done
strip "$folder"/bin/* "$folder"/lib/*
# What is found there is up to LD_LIBRARY_PATH alone.
printf 'file(RPATH_REMOVE FILE "%s")\n' "$folder"/bin/* "$folder"/lib/* >"$folder/rpath.cmake"
cmake -P "$folder/rpath.cmake" >/dev/null
rm "$folder/rpath.cmake"

if [[ ! -f $kNccl ]]; then
  mkdir -p "$kCache"
  # Debian's python3 has no pip; the environment that scripts/deps.sh makes has one.
  python="${RONDE_VENV:-$kCache/venv-torch-2.11.0}/bin/python"
  if [[ ! -x $python ]]; then python=python3; fi
  "$python" scripts/slim_nccl.py "$kNccl" || fail "NCCL cannot be downloaded from PyPI"
fi
cp "$kNccl" "$folder/nccl/libnccl.so.2"
tar --sparse --hole-detection=raw -czf "$kit" -C "$folder" .
size=$(du -m "$kit" | cut -f1)
((size <= kMegabytes)) || fail "$kit has $size MB, and may have $kMegabytes"
say "$kit has $size MB"
