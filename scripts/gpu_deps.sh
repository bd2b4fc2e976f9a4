#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Unpacks what Ronde needs, beside CUDA, LibTorch, cmake and ninja, into a folder that can be taken to
# a machine with a GPU where nothing can be installed. There: scripts/gpu_check.sh FOLDER
#
#   scripts/gpu_deps.sh FOLDER
set -euo pipefail
if (($# != 1)); then
  sed -n '3,6s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi

readonly kFolder="$1"
readonly kPackages=(libspdlog-dev libspdlog1.10 libfmt-dev libfmt9 catch2 libcli11-dev nlohmann-json3-dev)

say() { printf 'gpu_deps: %s\n' "$*"; }
fail() { printf 'gpu_deps: error: %s\n' "$*" >&2; exit 1; }

command -v apt-get >/dev/null || fail "this needs Debian's apt-get"
packages=$(mktemp -d)
trap 'rm -rf "$packages"' EXIT
# Reads as another user otherwise, who may not look into the folder.
(cd "$packages" && apt-get -o APT::Sandbox::User=root download -qq "${kPackages[@]}") ||
  fail "the packages could not be downloaded: ${kPackages[*]} (is apt-get update due?)"
mkdir -p "$kFolder"
for package in "$packages"/*.deb; do
  dpkg -x "$package" "$kFolder"
done
say "$kFolder has $(du -sm "$kFolder" | cut -f1) MB: ${kPackages[*]}"
