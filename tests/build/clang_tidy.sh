#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# clang_tidy.sh BUILD_FOLDER [COMMIT]: what clang-tidy 19 finds (.clang-tidy) in lines of the product that
# changed since the commit: by default since origin/main, and on that branch itself since the commit before.
# Exit status 77 (skipped) where clang-tidy or an earlier commit is missing.
set -euo pipefail
cd "$(dirname "$0")/../.."

skip() {
  echo "skipped: $*"
  exit 77
}
command -v clang-tidy-19 >/dev/null || skip "no clang-tidy-19"
if ! base=${2:-$(git merge-base HEAD origin/main 2>/dev/null)} || [[ $base == "$(git rev-parse HEAD)" ]]; then
  base=$(git rev-parse -q --verify HEAD~1) || skip "clang-tidy has no earlier commit to compare with"
fi

echo "lines that changed since $(git log -1 --format='%h %s' "$base")"
# The database has the sources that GCC compiles: clang-tidy infers the flags of headers from them.
git diff -U0 --no-color --diff-filter=d "$base" -- '*.h' '*.cc' ':!tests' |
  clang-tidy-diff-19.py -p1 -path "$1" -clang-tidy-binary clang-tidy-19 -quiet -j "$(nproc)" \
    -extra-arg=-Wno-pragma-once-outside-header -extra-arg=-Wno-unknown-warning-option -extra-arg=-Wno-ignored-gch
