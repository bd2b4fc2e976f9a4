#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: RONDE_PORT=PORT without_mpi.sh RANKS PROGRAM [arguments]
# Starts ranks of PROGRAM on this host as torchrun does, without MPI, and waits for their ends. None
# is ended because of another's.
export MASTER_ADDR=127.0.0.1 WORLD_SIZE=$1
shift
for ((rank = 0; rank < WORLD_SIZE; ++rank)); do
  RANK=$rank "$@" </dev/null &
done
wait
exit 1
