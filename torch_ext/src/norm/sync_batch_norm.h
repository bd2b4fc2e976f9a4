// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

#include "ronde/process_set.h"
#include "ronde/stats.h"
#include "ronde/torch/sync_batch_norm.h"

namespace ronde::detail {

/// Any thread may read and add.
struct SyncBatchNormCounters {
  std::atomic<std::uint64_t> layers{0};     ///< forward passes of a layer over all ranks
  std::atomic<std::uint64_t> exchanges{0};  ///< collectives, of forward and backward
  std::atomic<std::uint64_t> bytes{0};      ///< that this rank gave to them

  StatsGroup stats() const;
};

/// Counts an exchange to which this rank gives `sent`.
void count_exchange(const at::Tensor& sent, ProcessSet set);

/// A forward of one layer, and its input, which fits.
struct SyncBatchNormCall {
  std::string subject;    ///< begins the texts of errors
  std::string operation;  ///< "sync_batch_norm/a"
  ProcessSet set;
  std::chrono::nanoseconds timeout{0};
  SyncBatchNormState layer;
  at::Tensor input;
};

/// Collective. The result, recorded by autograd where it records.
at::Tensor run_sync_batch_norm(const SyncBatchNormCall& call);

/// How far the running statistics go towards those of the next batch. Counts the batch.
double next_momentum(const SyncBatchNormState& layer);

}  // namespace ronde::detail
