#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks what needs no build: layout by clang-format 14, functions of at most 60 lines, includes that keep
# the layers, licence lines, shell scripts. Names each place that breaks a rule. Takes some 20 seconds; pre-commit,
# the lint job and ctest (style.lint) run it.
#
# Exit status 77 where a tool is missing and all else is in order.
set -euo pipefail
cd "$(dirname "$0")/.."

status=0
fail() {
  printf 'lint.sh: %s\n' "$*" >&2
  status=1
}
missing() {
  echo "skipped: $*"
  ((status)) || status=77
}

mapfile -t sources < <(git ls-files -co --exclude-standard -- '*.h' '*.c' '*.cc' | grep -v '^tests/build/violations/')
product=(core backends observe api c_api torch_ext python examples tools)

clang_format=$(command -v clang-format-14 || command -v clang-format || true)
if [[ -z $clang_format ]]; then
  missing "no clang-format"
elif version=$("$clang_format" --version) && [[ $version != *"version 14."* ]]; then
  missing "this needs clang-format 14, found: $version"  # the versions disagree on details
else
  printf '%s\0' "${sources[@]}" | xargs -0 -P "$(nproc)" -n 50 "$clang_format" --dry-run -Werror ||
    fail "run clang-format -i on these files"
fi
python3 tests/build/length.py 60 "${product[@]}" || fail "these functions are too long"
cmake -DDIR="$PWD/core" -P tests/build/layering.cmake || status=1
cmake -DROOT="$PWD" -P tests/build/includes.cmake || status=1
git grep -L SPDX-License-Identifier -- '*.h' '*.c' '*.cc' '*.cu' '*.cuh' '*.cmake' '*CMakeLists.txt' '*.sh' '*.py' '*.f90' &&
  fail "these files have no licence line"
if command -v shellcheck >/dev/null; then
  git ls-files -z '*.sh' .ci/run docs/recipes/train.sbatch docs/recipes/train.pbs |
    xargs -0 shellcheck -x -P SCRIPTDIR -S warning || fail "shellcheck warns"
else
  missing "no shellcheck (Debian: apt-get install shellcheck)"
fi
exit "$status"
