#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: far_link.sh FAR_LINK
# Three hosts are as far from each other as they are to be, in both directions.
set -u
export RONDE_HOSTS=3 RONDE_LINK_DELAY_MS=30 RONDE_FAR_LINK=$1
source "$(dirname "$0")/../processes/two_namespaces.sh"

two_namespaces_make || exit

# Nobody listens at the port: the answer says so.
ask() {
  ip netns exec "${spaces[$1]}" bash -c ": <>/dev/tcp/10.213.77.$(($2 + 1))/9" 2>&1 |
    grep -q "Connection refused" || { echo "host $1 had no answer from host $2"; exit 1; }
}
for pair in "0 1" "0 2" "2 1"; do
  read -r from to <<<"$pair"
  ask "$from" "$to"  # they now know each other's address
  before=${EPOCHREALTIME/.}
  ask "$from" "$to"
  microseconds=$((${EPOCHREALTIME/.} - before))
  echo "from host $from to host $to and back: $microseconds us"
  ((microseconds >= 60000)) || exit 1
done
