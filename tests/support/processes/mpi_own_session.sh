#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# mpiexec -disable-auto-cleanup -n N mpi_own_session.sh PROGRAM ARGUMENTS...
# Runs a rank out of reach of Hydra, for tests in which another rank dies. Even with automatic
# clean-up disabled, Hydra's proxy kills the process groups of all ranks as soon as it has reaped
# one that a signal ended, which happens when something next wakes it: a line of output, or the
# question that MPICH's progress engine asks it after SIGUSR1. Survivors then have no time to say
# what they saw. In a session of its own a rank lives on; only this wrapper is killed.
trap '' USR1
exec setsid --wait "$@"
