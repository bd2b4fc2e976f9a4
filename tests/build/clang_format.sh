#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# clang_format.sh CLANG_FORMAT ROOT: names the sources that are not formatted as .clang-format says.
# Exit status 77 (skipped) where clang-format is missing or not version 14: the versions disagree on details.
set -euo pipefail
if ! command -v "$1" >/dev/null; then
  echo "skipped: no clang-format"
  exit 77
fi
version="$("$1" --version)"
if [[ $version != *"version 14."* ]]; then
  echo "skipped: this needs clang-format 14, found: $version"
  exit 77
fi
cd "$2"
find core backends api c_api torch_ext examples tools tests \( -name '*.h' -o -name '*.c' -o -name '*.cc' \) -print0 |
  xargs -0 "$1" --dry-run -Werror
