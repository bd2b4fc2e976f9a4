#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Unpacks what Ronde needs, beside CUDA, LibTorch, cmake and ninja, into a folder that can be taken to
# a machine with a GPU where nothing can be installed: Debian packages, and MPICH from PyPI, which runs
# from any folder. There: scripts/gpu_check.sh FOLDER
#
#   scripts/gpu_deps.sh FOLDER
set -euo pipefail
if (($# != 1)); then
  sed -n '3,7s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi

readonly kFolder="$1"
# Of each line the first package that there is: the names of libraries change with the release.
readonly kAlternatives=(
  "libspdlog-dev" "libspdlog1.10 libspdlog1.15 libspdlog1.12" "libfmt-dev" "libfmt9 libfmt10" "catch2"
  "libcli11-dev" "nlohmann-json3-dev" "libturbojpeg0-dev libturbojpeg-dev" "libturbojpeg0 libturbojpeg"
  "libjpeg62-turbo libjpeg-turbo8" "libjpeg62-turbo-dev libjpeg-turbo8-dev" "libpng-dev"
  "libpng16-16 libpng16-16t64" "zlib1g-dev")
readonly kMpich=5.0.2

say() { printf 'gpu_deps: %s\n' "$*"; }
fail() { printf 'gpu_deps: error: %s\n' "$*" >&2; exit 1; }

command -v apt-get >/dev/null || fail "this needs Debian's apt-get"
command -v apt-cache >/dev/null || fail "this needs Debian's apt-cache"
# Those that can be downloaded, as against those that others only mention.
exists() { [[ -n $(apt-cache --no-all-versions show "$1" 2>/dev/null) ]]; }
chosen=()
for alternatives in "${kAlternatives[@]}"; do
  found=
  for name in $alternatives; do
    if [[ -z $found ]] && exists "$name"; then found=$name; fi
  done
  [[ -n $found ]] || fail "apt-cache knows none of: $alternatives (is apt-get update due? Debian 12 is known to do)"
  [[ $found == "${alternatives%% *}" ]] || say "$found in place of ${alternatives%% *} of Debian 12"
  chosen+=("$found")
done
packages=$(mktemp -d)
trap 'rm -rf "$packages"' EXIT
# Reads as another user otherwise, who may not look into the folder.
(cd "$packages" && apt-get -o APT::Sandbox::User=root download -qq "${chosen[@]}") ||
  fail "the packages could not be downloaded: ${chosen[*]} (is apt-get update due?)"
mkdir -p "$kFolder"
for package in "$packages"/*.deb; do
  dpkg -x "$package" "$kFolder"
done
python3 -m pip download -q --no-deps --only-binary=:all: --platform manylinux_2_28_x86_64 \
  -d "$packages" "mpich==$kMpich" || fail "MPICH could not be downloaded from PyPI"
python3 -m zipfile -e "$packages"/mpich-*.whl "$packages/mpich"
rm -rf "$kFolder/usr/share/doc" "$kFolder/usr/share/man"
mkdir -p "$kFolder/mpich"
cp -r "$packages"/mpich/mpich-*.data/data/. "$kFolder/mpich"
chmod +x "$kFolder"/mpich/bin/*
say "$kFolder has $(du -sm "$kFolder" | cut -f1) MB: ${chosen[*]} mpich"
