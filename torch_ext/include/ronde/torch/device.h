// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include "ronde/process_set.h"

namespace ronde {

/// The device this rank should train on: GPU number (local rank modulo visible GPUs) if LibTorch
/// sees GPUs and Ronde has a backend for them, else the CPU; if only libtorch_cuda is missing, rank
/// 0 logs a warning. Throws UsageError before init, and where libtorch_cuda was loaded too late:
/// after a call of LibTorch that asks for CUDA, such as torch::manual_seed().
/// The local rank is that in the world of `set`: of several worlds, one that has all ranks of the
/// host, so that each has a GPU of its own.
c10::Device local_device(ProcessSet set = kGlobalSet);

namespace detail {

/// How many threads LibTorch may use on this rank: `configured` (RONDE_COMPUTE_THREADS) if it is
/// not 0; else 0 (leave it alone) if it `stays`, as OMP_NUM_THREADS is set or Ronde is a guest;
/// else the rank's share of the `cores`, at least 1.
int compute_threads(unsigned long long configured, bool stays, int cores, int local_size) noexcept;

/// Whether the threads that LibTorch computes with on this host, in the ranks of a world, leave no
/// core to Ronde.
bool computing_takes_all_cores(ProcessSet set);

/// Makes every later init apply that rule with at::set_num_threads and log it once on rank 0.
/// Installing it again changes nothing. Returns true. Also counts gradients anew for each init.
bool install_thread_rule();

}  // namespace detail

}  // namespace ronde
