#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# stops.sh COMMAND...: a program that does not ask for `ierr` fails, and says which ranks disagree.
set -uo pipefail
output=$("$@" 2>&1)
status=$?
printf '%s\n' "$output"
[[ $status != 0 && $output == *'ronde: '*'field'*'rank 1'* && $output != *'goes on'* ]]
