#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# quoted_tests.sh PYTHON CTEST BUILD SOURCE: every test that a page of SOURCE quotes exists in BUILD, as a source
# file's or as a case's.
set -euo pipefail
python=$1 ctest=$2 build=$3 source=$4

# From a folder of its own: ctest opens its log even for a list, and BUILD's may be that of a run.
list=$(mktemp -d)
trap 'rm -rf "$list"' EXIT
echo "subdirs(\"$build\")" >"$list/CTestTestfile.cmake"
for grain in suite case; do
  RONDE_TEST_GRAIN=$grain "$ctest" --test-dir "$list" -N
done | sed -nE 's/^ +Test +#[0-9]+: //p' >"$build/tests.txt"
"$python" "$source/tests/build/quoted_tests.py" "$build/tests.txt" "$source/docs" \
  "$source"/{README,CONTRIBUTING,tests/README,tests/horovod_tests}.md
