#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: needs_memory.sh GIB COMMAND...
# Runs the command, or skips the test (exit status 77) where fewer GiB of memory are available: the
# kernel would end some process or other. Asked once, before there are ranks that could disagree.
set -u
needed=$1
shift
available_kib=$(awk '$1 == "MemAvailable:" { print $2 }' /proc/meminfo)
if [[ ! $available_kib =~ ^[0-9]+$ ]]; then
  echo "cannot tell how much memory is available: no MemAvailable in /proc/meminfo" >&2
  exit 1
fi
if ((available_kib < needed * 1024 * 1024)); then
  echo "skipped: needs $needed GiB of memory; $((available_kib / 1024 / 1024)) GiB are available"
  exit 77
fi
exec "$@"
