// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include "ronde/process_set.h"

namespace ronde {

/// Returns the device this rank should train on: GPU number (local rank modulo visible GPUs) if
/// LibTorch sees GPUs and Ronde has a backend for them, else the CPU; if only libtorch_cuda is
/// missing, rank 0 logs a warning. Throws UsageError before init, and if libtorch_cuda was loaded
/// too late: after a call of LibTorch that asks for CUDA, such as torch::manual_seed(). The local
/// rank is that in the world of `set`: pass a world that has all ranks of the host, so that each
/// has a GPU of its own.
c10::Device local_device(ProcessSet set = kGlobalSet);

namespace detail {

/// Returns the number of threads for LibTorch on this rank: `configured` (RONDE_COMPUTE_THREADS) if
/// not 0; else 0 (unchanged) if it `stays`, as OMP_NUM_THREADS is set or Ronde is a guest; else the
/// rank's share of the `cores`, at least 1.
int compute_threads(unsigned long long configured, bool stays, int cores, int local_size) noexcept;

/// Returns whether LibTorch's threads, in all ranks of a world on this host, use all cores.
bool computing_takes_all_cores(ProcessSet set);

/// Makes every later init apply that rule with at::set_num_threads, log it on rank 0, and restart
/// the counters of this library. Idempotent; returns true.
bool install_thread_rule();

}  // namespace detail

}  // namespace ronde
