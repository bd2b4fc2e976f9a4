// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ronde/options.h"
#include "ronde/torch/work.h"

namespace ronde::detail {

/// What the handle shares with the operation.
struct TensorOperation {
  /// Written before the work is done, read after it.
  at::Tensor result;
};

/// Throws UsageError, its text beginning with `what`, unless Ronde can move `tensor`.
void check_tensor(const std::string& what, const at::Tensor& tensor);

/// As check_tensor, and refuses memory that overlaps itself.
void check_writable(const std::string& what, const at::Tensor& tensor);

/// "float32 [2, 3] on cpu", or "undefined".
std::string describe(const at::Tensor& tensor);

/// "[2, 3]"
std::string describe_shape(at::IntArrayRef sizes);

/// "rank 2: ": how this library's own texts begin.
std::string rank_prefix();

/// "rank 2: ronde::allreduce("x")": how the texts about a call begin.
std::string caller(std::string_view function, const std::string& name);

/// Whether an allreduce adds to the result (Request::contributes).
enum class Contribution { Tensor, Nothing };

/// allreduce_async_ for the optimiser.
TensorWork start_allreduce_(const at::Tensor& tensor, const AllreduceOptions& options,
                            Contribution contribution);

/// The same for memory of the symmetric heap (Request::symmetric), row-major. `lazy`:
/// Request::lazy.
TensorWork start_symmetric_allreduce_(const at::Tensor& tensor, const AllreduceOptions& options,
                                      Contribution contribution, bool lazy);

/// alltoall without autograd; `received`: the rows that came from each rank.
at::Tensor alltoall_to(std::vector<std::int64_t>& received, const at::Tensor& tensor,
                       at::IntArrayRef splits, const AlltoallOptions& options);

}  // namespace ronde::detail
