#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds Ronde with other compilers and libraries than CI has, and runs the everyday tests with each: Open MPI
# in place of MPICH, Clang 19 in place of GCC, LibTorch 2.7 in place of 2.11. By hand, as root on Debian; about
# 6 minutes for each. docs/testing.md keeps the results.
#
#   scripts/matrix.sh [openmpi|clang|torch27]...     all of them by default
#
# RONDE_JOBS   how many to compile at once (default: the number of cores)
set -euo pipefail
cd "$(dirname "$0")/.."

readonly kJobs="${RONDE_JOBS:-$(nproc)}"
readonly kCache="${XDG_CACHE_HOME:-$HOME/.cache}/ronde"
readonly kOldTorch=2.7.1

say() { printf 'matrix: %s\n' "$*"; }

install() {
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

# Each prints the options of its configuration.
openmpi() {
  install libopenmpi-dev openmpi-bin
  # Debian's default would now be Open MPI for every other build on this machine.
  update-alternatives --quiet --set mpi /usr/bin/mpicc.mpich
  update-alternatives --quiet --set mpirun /usr/bin/mpirun.mpich
  printf '%s\n' -DMPI_C_COMPILER=/usr/bin/mpicc.openmpi -DMPIEXEC_EXECUTABLE=/usr/bin/mpiexec.openmpi
}

clang() {
  install clang-19
  printf '%s\n' -DCMAKE_C_COMPILER=clang-19 -DCMAKE_CXX_COMPILER=clang++-19
}

torch27() {
  local venv="$kCache/venv-torch-$kOldTorch"
  if [[ ! -x $venv/bin/python ]]; then
    python3 -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "torch==$kOldTorch"
  fi
  printf '%s\n' "-DPython3_EXECUTABLE=$venv/bin/python"
}

run() {
  local name=$1 build="build-$1" begun=$SECONDS
  local -a options
  mapfile -t options < <("$name")
  ((${#options[@]} > 0)) || return 1
  cmake --preset release -B "$build" -DRONDE_WITH_TORCH=ON -DRONDE_WITH_MPI=ON "${options[@]}" &&
    cmake --build "$build" --parallel "$kJobs" --target everyday_tests &&
    ctest --test-dir "$build" --parallel 2 --output-on-failure --no-tests=error -L everyday &&
    say "$name passed in $((SECONDS - begun)) s, without: $(tr '\n' ';' <"$build/left_out_everyday.txt")"
}

# In a container all is root's, and ranks may outnumber cores: Open MPI wants to be told. Ranks of a group that
# ended by an error do not finalise MPI, which its mpiexec otherwise reports as a failure.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 \
  OMPI_MCA_orte_allowed_exit_without_sync=1

scripts/deps.sh everyday
failed=
if (($# == 0)); then set -- openmpi clang torch27; fi
for name in "$@"; do
  run "$name" || failed+=" $name"
done
if [[ -n $failed ]]; then
  say "failed:$failed"
  exit 1
fi
