#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: two_hosts.sh OPTIONS-OF-CHAOS.PY
# Runs chaos.py on two hosts of two ranks each, which are network namespaces joined by a veth pair, or by
# far_link where RONDE_LINK_DELAY_MS is set.
set -u
chaos=$(realpath "$(dirname "$0")/chaos.py")
source "$(dirname "$0")/../support/processes/two_namespaces.sh"

two_namespaces_make || exit
two_namespaces_run python3 "$chaos" --hosts "$address_a:2,$address_b:2" --rsh "$folder/enter" \
  --spaces "$space_a,$space_b" --link "$link" "$@"
