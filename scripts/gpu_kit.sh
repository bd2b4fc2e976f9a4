#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes a folder with all that scripts/gpu_check.sh runs on a machine with a GPU where nothing can be
# installed: Ronde's programs, the libraries that they load, PyPI's MPICH, and the headers to build the
# programs there if they do not load. LibTorch and NCCL are those of the Python there.
#
#   scripts/gpu_kit.sh [FOLDER]
#
# FOLDER        what to make (default: .cache/gpu_kit, which git ignores); at most 55 MB
#
# RONDE_BUILD   the build folder, with MPICH and LibTorch (default: build)
set -euo pipefail
cd "$(dirname "$0")/.."

if [[ ${1:-} == -* ]] || (($# > 1)); then
  sed -n '3,11s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
folder=$(realpath -m "${1:-.cache/gpu_kit}")
readonly folder
readonly kBuild="${RONDE_BUILD:-build}"
readonly kMegabytes="${GPU_KIT_MEGABYTES:-55}"
readonly kPrograms=(gpu_tests gpu_mp_tests gpu_death_tests gpu_torch_tests gpu_pack ronde edsr resnet_synthetic)
# What the sources need beside CUDA, LibTorch and MPI.
readonly kPackages=(libspdlog-dev libfmt-dev libsodium-dev catch2 libcli11-dev nlohmann-json3-dev
  libturbojpeg0-dev libpng-dev zlib1g-dev)
readonly kMpich=5.0.2
readonly kCache="${XDG_CACHE_HOME:-$HOME/.cache}/ronde"

say() { printf 'gpu_kit: %s\n' "$*"; }
fail() { printf 'gpu_kit: error: %s\n' "$*" >&2; exit 1; }

# Of what a program loads, the paths.
loaded_by() { ldd "$1" | sed -nE 's/.* => ([^ ]+) .*/\1/p'; }

build_programs() {
  cmake --build "$kBuild" --target "${kPrograms[@]/%ronde/ronde_tool}" >"$folder.log" 2>&1 || {
    tail -20 "$folder.log" >&2
    fail "the programs could not be built in $kBuild (scripts/test.sh makes it; needs MPICH, LibTorch, CUDA)"
  }
  rm "$folder.log"
}

# Not those of the system, which are older here than there, of LibTorch, and of the MPI here.
copy_programs() {
  local program library mpi
  mpi=$(loaded_by "$kBuild/bin/gpu_mp_tests" | grep -E '/lib(mpich|mpi)\.so\.12$') ||
    fail "$kBuild/bin/gpu_mp_tests is linked with another MPI than MPICH"
  mkdir -p "$folder/bin" "$folder/lib"
  for program in "${kPrograms[@]}"; do
    cp "$kBuild/bin/$program" "$folder/bin"
    loaded_by "$kBuild/bin/$program"
  done | sort -u | grep -vxF -f <(echo "$mpi"; loaded_by "$mpi") |
    grep -vE '/site-packages/|/lib(stdc\+\+|gcc_s|c|m|dl|rt|util|pthread)\.so' >"$folder/libraries"
  while read -r library; do cp -L "$library" "$folder/lib"; done <"$folder/libraries"
  rm "$folder/libraries"
  strip "$folder"/bin/* "$folder"/lib/*
  # What is found there is up to LD_LIBRARY_PATH alone.
  printf 'file(RPATH_REMOVE FILE "%s")\n' "$folder"/bin/* "$folder"/lib/* >"$folder/rpath.cmake"
  cmake -P "$folder/rpath.cmake" >/dev/null
  rm "$folder/rpath.cmake"
}

# Runs from any folder. It is what programs know by Debian's name, too.
copy_mpich() {
  local wheel="$kCache/mpich-$kMpich-py3-none-manylinux_2_28_x86_64.whl" unpacked
  if [[ ! -f $wheel ]]; then
    mkdir -p "$kCache"
    python3 -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: \
      --platform manylinux_2_28_x86_64 -d "$kCache" "mpich==$kMpich" ||
      fail "MPICH $kMpich cannot be downloaded from PyPI"
  fi
  unpacked=$(mktemp -d)
  python3 -m zipfile -e "$wheel" "$unpacked"
  cp -r "$unpacked/mpich-$kMpich.data/data" "$folder/mpich"
  # One host needs no network.
  rm -rf "$unpacked" "$folder"/mpich/lib/libmpi_abi* "$folder"/mpich/lib/mpich/{libfabric,ucx/*_ib*,ucx/*rdma*} \
    "$folder"/mpich/bin/{*_abi,mpirun,mpiexec.*,hydra_persist,hydra_nameserver}
  chmod +x "$folder"/mpich/bin/*
}

# Headers, libraries to link, and what tells cmake of them. No links, which may not travel.
copy_headers() {
  local file
  dpkg-query -L "${kPackages[@]}" | sort -u |
    grep -E '^/usr/(include/|share/cmake/|lib/libCatch2[^/]*\.a$|lib/([^/]+/)?cmake/|lib/[^/]+/lib[^/]*\.so$)' |
    while read -r file; do
      [[ -f $file ]] || continue
      cp -L --parents "$file" "$folder"
      if [[ -L $file ]]; then cp --parents "$(realpath "$file")" "$folder"; fi
    done
}

if [[ -e $folder ]]; then
  [[ -d $folder/mpich ]] || fail "$folder is there, and not made by this script: remove it, or name another one"
  rm -rf "$folder"
fi
mkdir -p "$(dirname "$folder")"
build_programs
copy_programs
copy_mpich
copy_headers
size=$(du -sm "$folder" | cut -f1)
((size <= kMegabytes)) || fail "$folder has $size MB, and may have $kMegabytes"
say "$folder has $size MB"
