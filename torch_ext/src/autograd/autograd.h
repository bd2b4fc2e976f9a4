// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "ronde/options.h"

// The collectives whose results have a gradient: the waiting forms call these for tensors that
// autograd records.
namespace ronde::detail {

using Tensors = std::vector<at::Tensor>;
using Splits = std::vector<std::vector<std::int64_t>>;

/// How tensors are submitted: one by itself, or several as a group.
enum class Form { One, Group };

/// Whether autograd records operations on `tensor` here and now.
bool is_recorded(const at::Tensor& tensor);

/// Whether autograd records operations on one of these tensors.
bool is_recorded(const Tensors& tensors);

/// Whether autograd records changing `tensor` in place. A leaf, or a view of one, is changed
/// without a record, as under NoGradGuard, so that parameters can be initialized.
bool is_recorded_in_place(const at::Tensor& tensor);

/// Throws UsageError, its text beginning with `what`, for a tensor that autograd has computed, as
/// it cannot record a change after the call. `waiting` is the form that waits.
void refuse_recorded(const std::string& what, const std::string& waiting, const at::Tensor& tensor);

// Each throws what the plain form throws, and UsageError for an operation that has no gradient.
// The collectives of backward are named after the one of forward. Form::One has one tensor.
Tensors recorded_allreduce(Form form, const Tensors& tensors, const AllreduceOptions& options);
Tensors recorded_allgather(Form form, const Tensors& tensors, const AllgatherOptions& options);
Tensors recorded_reducescatter(Form form, const Tensors& tensors,
                               const ReducescatterOptions& options);
Tensors recorded_alltoall(Form form, const Tensors& tensors, const Splits& splits,
                          const AlltoallOptions& options);
at::Tensor recorded_allreduce_(const at::Tensor& tensor, const AllreduceOptions& options);
Tensors recorded_grouped_allreduce_(const Tensors& tensors, const AllreduceOptions& options);
at::Tensor recorded_broadcast(const at::Tensor& tensor, const BroadcastOptions& options,
                              bool in_place);

/// Runs alltoall without autograd, with the splits of each tensor, and sets `received` to the rows
/// that came from each rank.
Tensors alltoall_to(Form form, Splits& received, const Tensors& tensors, const Splits& splits,
                    const AlltoallOptions& options);

}  // namespace ronde::detail
