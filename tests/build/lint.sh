#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# lint.sh LINTER ARGUMENT...: runs it. Exit status 77 (skipped) where it is not installed.
set -euo pipefail
if ! command -v "$1" >/dev/null; then
  echo "skipped: no $1 (Debian: apt-get install $1)"
  exit 77
fi
exec "$@"
