#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Sets up, builds with warnings as errors, and runs the everyday tests, in 8 to 11 minutes on two cores
# where nothing is installed yet. Ends with ctest's summary, what this machine left out, and the time that
# each part took.
#
#   scripts/test.sh [--all] [--soak MINUTES] [ctest arguments]     for example: scripts/test.sh -R '^unit\.'
#
# --all           also sanitizers, kill matrices, sweeps, examples, packages, tools: everything
# --soak MINUTES  after --all: random programs with random seeds, and tensors of several GiB, again and again
#
# RONDE_BUILD   the build folder (default: build)
# RONDE_JOBS    how many to compile and to test at once (default: the number of cores)
set -euo pipefail
cd "$(dirname "$0")/.."

readonly kBuild="${RONDE_BUILD:-build}"
readonly kJobs="${RONDE_JOBS:-$(nproc)}"
# The tests time out by themselves: two at once also on a large machine, since ranks need cores.
readonly kTestJobs="$((kJobs < 2 ? kJobs : 2))"
readonly kResults="$kBuild/Testing/Temporary"

# The objects that carry debug information, too, are found again by a clone in another folder.
export CCACHE_NOHASHDIR=1

say() { printf 'test.sh: %s\n' "$*"; }

tier=everyday
soak_minutes=
while (($# > 0)); do
  case $1 in
    --all) tier=all ;;
    --soak)
      tier=all
      soak_minutes=${2:-}
      [[ $soak_minutes =~ ^[1-9][0-9]*$ ]] || {
        say "error: --soak needs a number of minutes, not \"$soak_minutes\"" >&2
        exit 2
      }
      shift
      ;;
    *) break ;;
  esac
  shift
done
if [[ $tier == everyday ]]; then
  kTargets=(everyday_tests)
  kSelection=(-L everyday)
  kPython=OFF
else
  kTargets=(all sanitized_tests)
  kSelection=()
  kPython=ON
fi
readonly kTargets kSelection kPython

times=
# part NAME COMMAND...: runs a part and notes how long it took, also when it fails.
part() {
  local name=$1 begun=$SECONDS status=0
  shift
  "$@" || status=$?
  times+=" $name $((SECONDS - begun)) s,"
  return "$status"
}
trap 'say "$times in all $SECONDS s"' EXIT

build() {
  cmake --preset release -B "$kBuild" -DRONDE_WITH_TORCH=ON -DRONDE_WITH_MPI=ON -DRONDE_BUILD_GPU=ON \
    -DRONDE_BUILD_PYTHON=$kPython &&
    cmake --build "$kBuild" --parallel "$kJobs" --target "${kTargets[@]}"
}

run_ctest() {
  ctest --test-dir "$kBuild" --parallel "$kTestJobs" --output-on-failure --no-tests=error "$@"
}

# words_of_failures LOG: of each test that failed, what names the cause, else its last lines.
words_of_failures() {
  awk '
    / Testing: / { name = substr($0, index($0, ": ") + 2); said = last = ""; n = more = 0 }
    /^FAILED |: FAILED:$|^SUMMARY: |^watchdog: / { more = 5 }
    more-- > 0 { said = said "  " $0 "\n" }
    /^<end of output>/ { for (i = n < 6 ? 0 : n - 6; i < n && said == ""; ++i) last = last "  " line[i] "\n" }
    { line[n++] = $0 }
    /^Test Fail/ { printf "%s:\n%s", name, said == "" ? last : said }
  ' "$1" | cut -c -300
}

# A test is a file's cases in one process, which ends early where a case crashes or hangs. The cases of
# the tests that failed are run each by itself, so that none is hidden by another. What the first run said
# comes last, as a case may pass by itself.
explain_failures() {
  local failed words
  words=$(words_of_failures "$kResults/LastTest.log")
  failed=$(sed -E 's/^[0-9]+://; s/@n[0-9]+$//; s/[][().*+?^$|{}\\]/\\&/g' "$kResults/LastTestsFailed.log" |
    sort -u | paste -sd '|')
  say "what failed, case by case:"
  RONDE_TEST_GRAIN=case run_ctest "${kSelection[@]}" -R "^($failed)(\\.|@|\$)" || true
  say "what the first run said:
$words"
}

# What cannot run here is named, and must be on the list of what may be left out.
check_omissions() {
  local unlisted
  if ! grep -q ' Testing: ' "$kResults/LastTest.log"; then
    say "error: $kResults/LastTest.log is not the log of these tests: has something else run ctest there?"
    return 1
  fi
  {
    cat "$kBuild/left_out_$tier.txt"
    sed -nE 's/^(-- )?(skipped|left out): /left out: /p' "$kResults/LastTest.log"
  } | sort -u >"$kBuild/left_out_here.txt"
  if [[ -s $kBuild/left_out_here.txt ]]; then
    say "left out on this machine:"
    sed 's/^/  /' "$kBuild/left_out_here.txt"
  fi
  unlisted=$(grep -vE -f <(grep -v '^#' tests/allowed_omissions.txt) "$kBuild/left_out_here.txt" || true)
  if [[ -n $unlisted ]]; then
    say "error: tests/allowed_omissions.txt does not allow to leave out:
$unlisted"
    return 1
  fi
}

# run_tests CTEST-ARGUMENT...
run_tests() {
  local status=0 passed=yes
  run_ctest "${kSelection[@]}" "$@" || passed=no
  # A selection cannot tell what all the others leave out.
  if (($# == 0)); then check_omissions || status=1; fi
  if [[ $passed == no ]]; then
    explain_failures
    status=1
  fi
  return "$status"
}

soak() {
  local end=$((SECONDS + soak_minutes * 60))
  export RONDE_TEST_SOAK=1
  until ((SECONDS >= end)); do
    run_ctest -C soak -R '^(fuzz\.|mp\.(random_programs|failures|big))' && check_omissions || return 1
  done
}

if [[ $tier == everyday ]]; then
  say "the everyday tests. Left to --all: sanitizers, kill matrices, GPU backends over stand-ins, LibTorch \
and MPI on other than 2 ranks, the C API under mpiexec, examples, tools, packages, docs"
else
  say "all tests${soak_minutes:+, then $soak_minutes minutes of random programs and big tensors}"
fi
part dependencies scripts/deps.sh "$tier"
part build build
part tests run_tests "$@"
if [[ -n $soak_minutes ]]; then part soak soak; fi
