#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: two_hosts.sh ARGUMENTS-OF-ELASTIC_TEST.PY
# Runs elastic_test.py on two hosts of two ranks each, which are network namespaces joined by a veth pair.
set -u
test=$(realpath "$(dirname "$0")/elastic_test.py")
source "$(dirname "$0")/../support/processes/two_namespaces.sh"

two_namespaces_make || exit
export ELASTIC_CUT="ip -n $space_b link set $link down"
two_namespaces_run python3 "$test" --hosts "$address_a:2,$address_b:2" --rsh "$folder/enter" "$@"
